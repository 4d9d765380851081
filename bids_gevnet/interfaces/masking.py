"""Mask the brain without FSL."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.bids.writing import write_image
from bids_gevnet.dwi.field_of_view import see_brain
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.mask import brain_mask, refine_mask, shading_of_head
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.facts import MaskFacts, RegistrationFacts
from bids_gevnet.interfaces.series import (
    Series,
    read_facts,
    read_image,
    read_mask,
    read_series,
    write_facts,
)
from bids_gevnet.interfaces.template_grid import load_template
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
    """Mask the brain by thresholds and shapes on the mean b0 and the mean of one shell.

    Both are divided by their shading first.
    """

    input_spec = MaskBrainInputSpec
    output_spec = MaskBrainOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        b0, weighted = _mean_volumes(series, self.inputs.b0_threshold)
        shading = shading_of_head(b0, series.affine, weighted)
        mask = brain_mask(b0 / shading, series.affine, weighted / shading)
        write_image(folder / "mask.nii", mask, series.affine)
        self._results["mask"] = str(folder / "mask.nii")
        facts = MaskFacts(method="otsu", volume_ml=mask_volume_ml(mask, series.affine))
        self._results["facts"] = write_facts(folder, facts)
        return runtime


class RefineMaskInputSpec(BaseInterfaceInputSpec):
    """A series with a first mask, and where it lies in the template."""

    image = File(exists=True, mandatory=True, desc="series")
    gradients = File(exists=True, mandatory=True, desc="its gradients")
    mask = File(exists=True, mandatory=True, desc="brain, before the registration")
    mask_facts = File(exists=True, mandatory=True, desc="its MaskFacts")
    to_template = traits.List(mandatory=True, desc="rows of the affine, world mm")
    registration_facts = File(exists=True, mandatory=True, desc="how good the affine is")
    template = File(exists=True, desc="another template than nilearn's")
    b0_threshold = traits.Float(B0_THRESHOLD, usedefault=True, desc="largest b-value of a b0")


class RefineMask(SimpleInterface):
    """Mask the brain again with what the template's brain tells, where every volume has data.

    The mask of bet stays as bet made it, and any mask stays where the registration is poor; but
    voxels that left the field of view in some volume leave every mask.
    """

    input_spec = RefineMaskInputSpec
    output_spec = MaskBrainOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        mask, facts = (
            read_mask(self.inputs.mask)[0],
            read_facts(self.inputs.mask_facts, MaskFacts),
        )
        registration = read_facts(self.inputs.registration_facts, RegistrationFacts)
        refined = facts.method == "otsu" and not registration.poor
        if refined:
            b0, weighted = _mean_volumes(series, self.inputs.b0_threshold)
            mask = refine_mask(b0, series.affine, self._prior(series), weighted)
        seen = see_brain(mask, series.data)
        write_image(folder / "mask.nii", seen.mask, series.affine)
        self._results["mask"] = str(folder / "mask.nii")
        facts = replace(
            facts,
            volume_ml=mask_volume_ml(seen.mask, series.affine),
            refined=refined,
            without_data=int(mask.sum() - seen.mask.sum()),
        )
        self._results["facts"] = write_facts(folder, facts)
        return runtime

    def _prior(self, series: Series) -> npt.NDArray[np.bool_]:
        """Bring the template's brain to the space of the scan."""
        path = Path(self.inputs.template) if isdefined(self.inputs.template) else None
        template = load_template(path)
        x, y, z = series.data.shape[:3]
        to_scan = np.linalg.inv(np.array(self.inputs.to_template))
        brain = resample_volume(
            template.mask, template.affine, to_scan, (x, y, z), series.affine, order=1
        )
        return np.asarray(brain > 0.5)


def _mean_volumes(
    series: Series, b0_threshold: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the mean b0 and the mean of the shell that is sampled."""
    shells = find_shells(series.bvals, b0_threshold=b0_threshold)
    weighted = mean_volume(series.data, choose_shell(shells).volumes)
    return mean_volume(series.data, shells.b0), weighted


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
        b0 = mean_volume(b0s, np.arange(b0s.shape[3]))
        write_image(path, brain_mask(b0 / shading_of_head(b0, affine), affine), affine)
        self._results["mask"] = str(path)
        return runtime


def mask_volume_ml(mask: npt.NDArray[np.bool_], affine: npt.NDArray[np.float64]) -> float:
    """Return the volume of a mask in ml, to a tenth."""
    return round(float(mask.sum() * abs(np.linalg.det(affine[:3, :3])) / 1000), 1)
