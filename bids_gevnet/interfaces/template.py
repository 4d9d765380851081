"""Load the template, choose the output grid, and register a scan to the template."""

import re
from dataclasses import dataclass, replace
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

from bids_gevnet.bids.derivatives import DEFAULT_TEMPLATE
from bids_gevnet.dwi.interpolation import coverage, resample_volume
from bids_gevnet.dwi.registration import (
    Registration,
    Volume,
    assess,
    brain_box,
    register_rigid,
    register_to_template,
)
from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.facts import RegistrationFacts
from bids_gevnet.interfaces.series import read_image, read_mask, write_facts
from bids_gevnet.settings import PreprocessingSettings

FloatArray = npt.NDArray[np.float64]

_TEMPLATE_MM = 2
"""Resolution at which the template is used for registration; diffusion scans are no finer."""


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
        from nilearn.datasets import load_mni152_brain_mask, load_mni152_template

        image = load_mni152_template(resolution=_TEMPLATE_MM)
        mask = load_mni152_brain_mask(resolution=_TEMPLATE_MM)
        return Template(
            np.asarray(image.dataobj, dtype=np.float32),
            np.asarray(mask.dataobj) > 0,
            np.asarray(image.affine, dtype=np.float64),
            DEFAULT_TEMPLATE,
        )
    from nibabel.filebasedimages import ImageFileError

    try:
        data, affine = read_image(path)
    except (OSError, ValueError, ImageFileError, ParticipantError) as error:
        raise InputError(
            expected="a NIfTI image for --template",
            found=f"{path} ({error})",
            remedy="check the path",
        ) from None
    if data.ndim != 3:
        raise InputError(
            expected="a 3D image for --template",
            found=f"{data.ndim} axes in {path}",
            remedy="give one volume",
        )
    beside = path.with_name(re.sub(r"_T1w(\.nii(\.gz)?)$", r"_desc-brain_mask\1", path.name))
    brain = read_mask(beside)[0] if beside != path and beside.exists() else np.asarray(data) > 0
    return Template(np.asarray(data, dtype=np.float32), brain, affine, template_label(path))


def template_label(path: Path) -> str:
    """Label of a template's space: what follows `tpl-` in its name, else its letters and digits.

    >>> template_label(Path("tpl-MNIPediatricAsym_cohort-1_T1w.nii.gz"))
    'MNIPediatricAsym'
    """
    named = re.match(r"tpl-([A-Za-z0-9]+)", path.name)
    return named.group(1) if named else re.sub(r"[^A-Za-z0-9]", "", path.name.split(".")[0])


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


class RegisterToTemplateInputSpec(BaseInterfaceInputSpec):
    """A scan's mean b0 and, if there is one, the participant's T1w."""

    image = File(exists=True, mandatory=True, desc="mean b0, conformed")
    mask = File(exists=True, mandatory=True, desc="brain")
    template = File(exists=True, desc="another template than nilearn's")
    t1w = File(exists=True, desc="raw T1-weighted image")
    old_to_new = traits.List(
        mandatory=True, desc="rows: world of the raw run to the conformed one"
    )


class RegisterToTemplateOutputSpec(TraitedSpec):
    """The transform to the template."""

    to_template = traits.List(desc="rows of the affine from the scan to the template, world mm")
    facts = File(exists=True, desc="RegistrationFacts of the scan")


class RegisterToTemplate(SimpleInterface):
    """Estimate the affine from a scan to the template, through the T1w where there is one."""

    input_spec = RegisterToTemplateInputSpec
    output_spec = RegisterToTemplateOutputSpec

    def _run_interface(self, runtime: Any) -> Any:
        b0, affine = read_image(self.inputs.image)
        scan = Volume(b0, affine, read_mask(self.inputs.mask)[0])
        path = Path(self.inputs.template) if isdefined(self.inputs.template) else None
        loaded = load_template(path)
        template = Volume(loaded.image, loaded.affine, loaded.mask)
        registration, source = None, "b0"
        through_t1w = self._through_t1w(scan, template) if isdefined(self.inputs.t1w) else None
        if through_t1w is not None:
            registration, source = through_t1w, "T1w"
        if registration is None or registration.is_poor:
            direct = register_to_template(scan, template)
            if registration is None or _worth(direct) > _worth(registration):
                registration, source = direct, "b0"
        self._results["to_template"] = registration.moving_to_fixed.tolist()
        facts = RegistrationFacts(
            source="T1w" if source == "T1w" else "b0",
            template=loaded.label,
            dice=round(float(registration.dice), 4),
            information=round(float(registration.information), 4),
            poor=bool(registration.is_poor),
            text=str(registration),
            coverage=round(
                coverage(
                    scan.mask.shape,
                    affine,
                    registration.moving_to_fixed,
                    loaded.mask,
                    loaded.affine,
                ),
                4,
            ),
            t1w_dice=round(float(through_t1w.dice), 4)
            if through_t1w is not None and source == "b0"
            else None,
        )
        self._results["facts"] = write_facts(Path(runtime.cwd), facts)
        return runtime

    def _through_t1w(self, scan: Volume, template: Volume) -> Registration | None:
        data, affine = read_image(self.inputs.t1w)
        if data.ndim != 3:
            return None
        head = Volume(np.nan_to_num(data), affine, np.ones(data.shape, bool))
        by_headers = np.linalg.inv(np.array(self.inputs.old_to_new))
        to_t1w = register_rigid(scan, head, [by_headers]).moving_to_fixed
        x, y, z = data.shape
        # The brain is known from the scan, and only where the scan reaches.
        brain, seen = (
            resample_volume(region, scan.affine, to_t1w, (x, y, z), affine, order=1) > 0.5
            for region in (scan.mask, np.ones_like(scan.mask))
        )
        if not brain.any():
            return None
        t1w_to_template = register_to_template(Volume(head.data, affine, brain, seen), template)
        whole = assess(t1w_to_template.moving_to_fixed @ to_t1w, scan, template)
        # The T1w has the contrast of the template; a b0 may have nearly none and still be right.
        return replace(whole, information=t1w_to_template.information)


def _worth(registration: Registration) -> float:
    return registration.dice * registration.information
