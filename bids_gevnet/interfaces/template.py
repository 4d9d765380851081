"""Register a scan to the template."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from nipype.interfaces.base import (
    BaseInterfaceInputSpec,
    File,
    SimpleInterface,
    TraitedSpec,
    isdefined,
    traits,
)

from bids_gevnet.dwi.ants_linear import apply_itk_transform
from bids_gevnet.dwi.field_of_view import coverage
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.registration import fit_affine, register_rigid, register_to_template
from bids_gevnet.dwi.registration_quality import Registration, Volume, assess
from bids_gevnet.facts import RegistrationFacts
from bids_gevnet.interfaces.series import read_image, read_mask, write_facts
from bids_gevnet.interfaces.template_grid import load_template

_MOST_POINTS = 20000
"""Points of the brain that an affine is fitted to: thousands for each of its twelve numbers."""


class RegisterToTemplateInputSpec(BaseInterfaceInputSpec):
    """A scan's mean b0 and, if there is one, the participant's T1w."""

    image = File(exists=True, mandatory=True, desc="mean b0, conformed")
    mask = File(exists=True, mandatory=True, desc="brain")
    template = File(exists=True, desc="another template than nilearn's")
    t1w = File(exists=True, desc="raw T1-weighted image")
    transform = File(exists=True, desc="ITK transform to the template that is known already")
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
        known, nonlinear_mm = self._known(scan, template)
        registration: Registration | None = known
        source: Literal["b0", "T1w", "transform"] = "transform"
        through_t1w = None
        if (known is None or known.is_poor) and isdefined(self.inputs.t1w):
            through_t1w = self._through_t1w(scan, template)
        if through_t1w is not None and (
            registration is None or through_t1w.worth > registration.worth
        ):
            registration, source = through_t1w, "T1w"
        if registration is None or registration.is_poor:
            direct = register_to_template(scan, template)
            if registration is None or direct.worth > registration.worth:
                registration, source = direct, "b0"
        self._results["to_template"] = registration.moving_to_fixed.tolist()
        taken = source == "transform"
        facts = RegistrationFacts(
            source=source,
            transform=Path(self.inputs.transform).name if taken else "",
            nonlinear_mm=nonlinear_mm if taken else None,
            transform_dice=None if taken or known is None else round(float(known.dice), 4),
            template=loaded.label,
            dice=round(float(registration.dice), 4),
            information=round(float(registration.information), 4),
            rival=None if registration.rival is None else round(registration.rival, 4),
            edges=None if registration.edges is None else round(registration.edges, 4),
            retried=registration.retried,
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

    def _known(self, scan: Volume, template: Volume) -> tuple[Registration | None, float | None]:
        """Assess the transform that is given, and say how far it is from an affine, mm."""
        if not isdefined(self.inputs.transform):
            return None, None
        brain = np.argwhere(template.mask)
        index = brain[:: max(1, len(brain) // _MOST_POINTS)]
        fixed = index @ template.affine[:3, :3].T + template.affine[:3, 3]
        moving = apply_itk_transform(self.inputs.transform, fixed)
        original_to_fixed, residual_mm = fit_affine(moving, fixed)
        to_template = original_to_fixed @ np.linalg.inv(np.array(self.inputs.old_to_new))
        return assess(to_template, scan, template), round(residual_mm, 3)

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
        return replace(t1w_to_template, moving_to_fixed=whole.moving_to_fixed, dice=whole.dice)
