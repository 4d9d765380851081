"""Average a run as it was acquired, to be compared with the corrected scan."""

from pathlib import Path
from typing import Any

import numpy as np
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.bids.gradient_files import read_gradient_table
from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.shells import find_shells, mean_volume
from bids_gevnet.interfaces.series import read_image
from bids_gevnet.settings import B0_THRESHOLD


class AverageUncorrectedInputSpec(BaseInterfaceInputSpec):
    """The first run of a scan, in whose space the others are put."""

    image = File(exists=True, mandatory=True, desc="the run as it lies in the dataset")
    bval = File(exists=True, mandatory=True, desc="its b-values")
    bvec = File(exists=True, mandatory=True, desc="its gradient vectors")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class AverageUncorrectedOutputSpec(TraitedSpec):
    """Two volumes."""

    means = File(exists=True, desc="mean b0, then mean diffusion-weighted volume")


class AverageUncorrected(SimpleInterface):
    """Average the b0s and the diffusion-weighted volumes of a run, on the conformed grid."""

    input_spec = AverageUncorrectedInputSpec
    output_spec = AverageUncorrectedOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        data, affine = read_image(self.inputs.image)
        image, bval, bvec = (
            Path(path) for path in (self.inputs.image, self.inputs.bval, self.inputs.bvec)
        )
        b0_threshold = self.inputs.b0_threshold
        table = read_gradient_table(
            image, bval, bvec, n_volumes=data.shape[3], b0_threshold=b0_threshold
        )
        shells = find_shells(table.bvals, b0_threshold=b0_threshold)
        weighted = np.concatenate([shell.volumes for shell in shells.shells])
        means = np.stack([mean_volume(data, v) for v in (shells.b0, weighted)], axis=-1)
        conformed = conform(means, affine)
        path = Path(runtime.cwd) / "uncorrected.nii"
        write_image(path, conformed.data, conformed.affine)
        self._results["means"] = str(path)
        return runtime
