"""Mask the brain without FSL."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    traits,
)

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.mask import brain_mask
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.facts import MaskFacts
from bids_gevnet.interfaces.series import read_image, read_series, write_facts
from bids_gevnet.settings import B0_THRESHOLD


class MaskBrainInputSpec(BaseInterfaceInputSpec):
    """A series, corrected or not."""

    image = File(exists=True, mandatory=True, desc="series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class MaskBrainOutputSpec(TraitedSpec):
    """A brain mask."""

    mask = File(exists=True, desc="brain")
    facts = File(exists=True, desc="MaskFacts of the scan")


class MaskBrain(SimpleInterface):
    """Mask the brain by thresholds and shapes on the mean b0 and the mean of one shell."""

    input_spec = MaskBrainInputSpec
    output_spec = MaskBrainOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        shells = find_shells(series.bvals, b0_threshold=self.inputs.b0_threshold)
        b0 = mean_volume(series.data, shells.b0)
        weighted = mean_volume(series.data, choose_shell(shells).volumes)
        mask = brain_mask(b0, series.affine, weighted)
        write_image(folder / "mask.nii", mask, series.affine)
        self._results["mask"] = str(folder / "mask.nii")
        facts = MaskFacts(method="otsu", volume_ml=mask_volume_ml(mask, series.affine))
        self._results["facts"] = write_facts(folder, facts)
        return runtime


class MaskB0sInputSpec(BaseInterfaceInputSpec):
    """Corrected b0s."""

    image = File(exists=True, mandatory=True, desc="b0s on one grid, aligned")


class MaskB0sOutputSpec(TraitedSpec):
    """A brain mask."""

    mask = File(exists=True, desc="brain")


class MaskB0s(SimpleInterface):
    """Mask the brain where topup has put it, by the mean of the corrected b0s alone."""

    input_spec = MaskB0sInputSpec
    output_spec = MaskB0sOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        path = Path(runtime.cwd) / "mask.nii"
        b0s, affine = read_image(self.inputs.image)
        write_image(path, brain_mask(mean_volume(b0s, np.arange(b0s.shape[3])), affine), affine)
        self._results["mask"] = str(path)
        return runtime


def mask_volume_ml(mask: npt.NDArray[np.bool_], affine: npt.NDArray[np.float64]) -> float:
    """Return the volume of a mask in ml, to a tenth."""
    return round(float(mask.sum() * abs(np.linalg.det(affine[:3, :3])) / 1000), 1)
