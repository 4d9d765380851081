"""Load the template and choose the output grid: known before any node runs, without Nipype."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.bids.templates import brain_mask_beside, shipped_template, template_label
from bids_gevnet.dwi.registration import brain_box
from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.interfaces.series import read_image, read_mask
from bids_gevnet.settings import PreprocessingSettings

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Template:
    """A brain template: T1-weighted image, brain mask, voxel-to-world affine, BIDS label."""

    image: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]
    affine: FloatArray
    label: str


@dataclass(frozen=True, slots=True)
class TemplateGrid:
    """Output grid in template space."""

    shape: tuple[int, int, int]
    affine: FloatArray
    label: str

    @property
    def n_voxels(self) -> int:
        """Voxels of the grid."""
        return int(np.prod(self.shape))

    @property
    def affine_rows(self) -> list[list[float]]:
        """The affine as nested lists, as Nipype hashes and stores it."""
        return [[float(value) for value in row] for row in self.affine]


def load_template(path: Path | None) -> Template:
    """Load a template: nilearn's, which needs no download, or the user's own file.

    A file must hold the brain alone, or have a mask named alike beside it
    (`tpl-X_T1w.nii.gz` and `tpl-X_desc-brain_mask.nii.gz`).
    """
    if path is None:
        return Template(*shipped_template(), DEFAULT_TEMPLATE)
    from nibabel.filebasedimages import ImageFileError

    try:
        data, affine = read_image(path)
    except (OSError, ValueError, ImageFileError, ParticipantError) as error:
        why = error if path.exists() else "no such file"
        raise InputError(
            expected="a NIfTI image for --template",
            found=f"{path} ({why})",
            remedy="check the path",
        ) from None
    if data.ndim != 3:
        raise InputError(
            expected="a 3D image for --template",
            found=f"{data.ndim} axes in {path}",
            remedy="give one volume",
        )
    beside = brain_mask_beside(path)
    brain = np.asarray(data) > 0 if beside is None else read_mask(beside)[0]
    return Template(np.asarray(data, dtype=np.float32), brain, affine, template_label(path))


def output_grid(settings: PreprocessingSettings) -> TemplateGrid:
    """Return the grid around the template's brain at the requested resolution."""
    template = load_template(settings.template)
    shape, affine = brain_box(
        template.mask,
        template.affine,
        resolution_mm=settings.output_resolution,
        margin_mm=settings.crop_margin,
    )
    return TemplateGrid(shape, affine, template.label)
