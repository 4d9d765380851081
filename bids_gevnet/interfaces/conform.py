"""Conform a run: axes in RAS order, centred header, gradients in world RAS."""

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
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras
from bids_gevnet.facts import ConformFacts
from bids_gevnet.interfaces.series import Series, read_image, to_rows, write_facts, write_series
from bids_gevnet.settings import B0_THRESHOLD


class ConformInputSpec(BaseInterfaceInputSpec):
    """Files of one BIDS run."""

    image = File(exists=True, mandatory=True, desc="4D diffusion series")
    bval = File(exists=True, mandatory=True, desc="FSL-style b-values")
    bvec = File(exists=True, mandatory=True, desc="FSL-style gradient vectors")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class ConformOutputSpec(TraitedSpec):
    """The conformed run."""

    image = File(exists=True, desc="series with RAS axes and centred header")
    gradients = File(exists=True, desc="b-values and directions in world RAS")
    old_to_new = traits.List(desc="rows of the transform from the old to the new world, mm")
    facts = File(exists=True, desc="ConformFacts of the run")


class Conform(SimpleInterface):
    """Axis-align and centre a run without interpolation."""

    input_spec = ConformInputSpec
    output_spec = ConformOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        data, affine = read_image(self.inputs.image)
        table = read_gradient_table(
            Path(self.inputs.image),
            Path(self.inputs.bval),
            Path(self.inputs.bvec),
            n_volumes=data.shape[3],
            b0_threshold=self.inputs.b0_threshold,
        )
        bvals = table.bvals
        # What the scanner computed from the other volumes follows them, and has no gradient.
        data = data[..., : len(bvals)]
        conformed = conform(data, affine, bvecs_fsl_to_ras(table.bvecs, affine))
        assert conformed.bvecs_ras is not None
        series = Series(conformed.data, conformed.affine, bvals, conformed.bvecs_ras)
        image, gradients = write_series(folder, series)
        self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["old_to_new"] = conformed.old_to_new.tolist()
        facts = ConformFacts(
            shape=tuple(data.shape),
            voxel_mm=tuple(np.round(np.diag(conformed.affine)[:3], 4).tolist()),
            not_finite=conformed.n_not_finite,
            bvals=tuple(bvals.tolist()),
            bvecs_ras=to_rows(np.round(conformed.bvecs_ras, 5)),
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime
