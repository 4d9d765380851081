"""Resample a scan to the template: volumes, gradients and mask, in one interpolation."""

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
from bids_gevnet.dwi.gradients import rotate_bvecs
from bids_gevnet.dwi.interpolation import resample_series
from bids_gevnet.facts import StandardFacts
from bids_gevnet.interfaces.series import (
    Series,
    read_image,
    read_series,
    write_facts,
    write_series,
)
from bids_gevnet.interfaces.warps import load_placements, resample_placed


class ResampleToTemplateInputSpec(BaseInterfaceInputSpec):
    """A scan and its transform to the template."""

    image = File(exists=True, mandatory=True, desc="all volumes, before resampling")
    gradients = File(exists=True, mandatory=True, desc="gradients in the scan's space")
    transforms = File(exists=True, mandatory=True, desc="volume to the scan's reference")
    mask = File(exists=True, mandatory=True, desc="brain in the scan's space")
    bias_field = File(exists=True, desc="in the scan's space; divided by, where there is one")
    to_template = traits.List(mandatory=True, desc="rows of the affine, world mm")
    grid_shape = traits.List(traits.Int(), mandatory=True, desc="of the output")
    grid_affine = traits.List(mandatory=True, desc="rows of the output's voxel-to-world affine")
    num_threads = traits.Int(1, usedefault=True, nohash=True, desc="threads to use")


class ResampleToTemplateOutputSpec(TraitedSpec):
    """The scan in template space."""

    image = File(exists=True, desc="series on the output grid")
    gradients = File(exists=True, desc="gradients rotated by the polar part of the affine")
    mask = File(exists=True, desc="brain on the output grid, where every volume has data")
    facts = File(exists=True, desc="StandardFacts of the scan")


class ResampleToTemplate(SimpleInterface):
    """Resample every volume to the template in one interpolation."""

    input_spec = ResampleToTemplateInputSpec
    output_spec = ResampleToTemplateOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        folder = Path(runtime.cwd)
        series = read_series(self.inputs.image, self.inputs.gradients)
        to_template = np.array(self.inputs.to_template)
        x, y, z = self.inputs.grid_shape
        grid_affine = np.array(self.inputs.grid_affine)
        data = resample_placed(
            series,
            load_placements(self.inputs.transforms),
            to_template,
            (x, y, z),
            grid_affine,
            n_threads=self.inputs.num_threads,
        )
        if isdefined(self.inputs.bias_field):
            field, field_affine = read_image(self.inputs.bias_field)
            data /= _field_on_grid(field, field_affine, to_template, (x, y, z), grid_affine)
        mask, mask_affine = read_image(self.inputs.mask)
        inside = resample_series(
            np.asarray(mask > 0, dtype=np.float32)[..., None],
            mask_affine,
            to_template,
            (x, y, z),
            grid_affine,
            order=1,
        )[..., 0]
        turned = rotate_bvecs(series.bvecs_ras, to_template)
        result = Series(data, grid_affine, series.bvals, turned)
        image, gradients = write_series(folder, result)
        brain = inside > 0.5
        seen = see_brain(brain, data)
        write_image(folder / "mask.nii", seen.mask, grid_affine)
        facts = StandardFacts(
            without_data=int(brain.sum() - seen.mask.sum()),
            lost_volumes=int(np.sum(~seen.volumes)),
        )
        self._results["image"] = str(image)
        self._results["gradients"] = str(gradients)
        self._results["mask"] = str(folder / "mask.nii")
        self._results["facts"] = write_facts(folder, facts)
        return runtime


def _field_on_grid(
    field: npt.NDArray[Any],
    affine: npt.NDArray[np.float64],
    to_template: npt.NDArray[np.float64],
    shape: tuple[int, int, int],
    grid_affine: npt.NDArray[np.float64],
) -> npt.NDArray[np.float32]:
    """Resample a bias field, (X', Y', Z', 1); 1 where the scan did not reach."""
    found = resample_series(field[..., None], affine, to_template, shape, grid_affine, order=1)
    return np.where(found > 0, found, np.float32(1))
