"""Brain masks before and after the template's brain is known, on real scans and phantoms.

    python benchmarks/accuracy.py --only masks [--real-data FOLDER] [--voxel-mm 3] [--heads 2]

The app's own nodes run one after another, on the uncorrected series: conform, mask, register
(through the T1w where there is one), refine. *Before* is the mask by the threshold alone, without
a correction for shading. The box of the brainstem is midbrain and pons in MNI: the template's
brain within 12 mm of the midline, y from -36 to -14 and z from -42 to -8 mm, as far as the field
of view reaches. dwi2mask leaves the dark base of a shaded scan out, so Dice against it is also
given above that box, where it is right.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel
import numpy as np

from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.mask import brain_mask, dice
from bids_gevnet.dwi.model_corrector.warp import grid_points
from bids_gevnet.dwi.shells import choose_shell, find_shells, mean_volume
from bids_gevnet.errors import ParticipantError
from bids_gevnet.facts import RegistrationFacts
from bids_gevnet.interfaces.conform import Conform
from bids_gevnet.interfaces.masking import MaskBrain, RefineMask
from bids_gevnet.interfaces.series import read_facts, read_mask, read_series
from bids_gevnet.interfaces.template import RegisterToTemplate
from bids_gevnet.interfaces.template_grid import load_template
from bids_gevnet.phantom.cohort import plan_cohort
from bids_gevnet.phantom.settings import PhantomSettings
from bids_gevnet.phantom.simulation import simulate_participant

if TYPE_CHECKING:
    from correction_scores import Show

BOX_MM = ((-12.0, 12.0), (-36.0, -14.0), (-42.0, -8.0))


@dataclass(frozen=True)
class Masks:
    """Masks of one scan, in its conformed space."""

    before: np.ndarray
    after: np.ndarray
    brainstem: np.ndarray
    above: np.ndarray
    raw_affine: np.ndarray
    verdict: str


def mask_scan(image: Path, t1w: Path | None) -> Masks:
    """Run the nodes of the app on a series as it lies in the dataset."""
    bval, bvec = (Path(str(image).replace(".nii.gz", end)) for end in (".bval", ".bvec"))
    with tempfile.TemporaryDirectory() as name:
        folders = {key: Path(name) / key for key in ("conform", "mask", "register", "refine")}
        for folder in folders.values():
            folder.mkdir()
        conformed = Conform(image=str(image), bval=str(bval), bvec=str(bvec))
        moved = conformed.run(cwd=str(folders["conform"])).outputs
        series_files = {"image": moved.image, "gradients": moved.gradients}
        first = MaskBrain(**series_files).run(cwd=str(folders["mask"])).outputs
        series = read_series(moved.image, moved.gradients)
        shells = find_shells(series.bvals)
        b0 = mean_volume(series.data, shells.b0)
        nibabel.save(nibabel.Nifti1Image(b0, series.affine), folders["register"] / "b0.nii")
        register = RegisterToTemplate(
            image=str(folders["register"] / "b0.nii"),
            mask=first.mask,
            old_to_new=moved.old_to_new,
            **({"t1w": str(t1w)} if t1w else {}),
        )
        found = register.run(cwd=str(folders["register"])).outputs
        refine = RefineMask(
            **series_files,
            mask=first.mask,
            mask_facts=first.facts,
            to_template=found.to_template,
            registration_facts=found.facts,
        )
        after = read_mask(refine.run(cwd=str(folders["refine"])).outputs.mask)[0]
        weighted = mean_volume(series.data, choose_shell(shells).volumes)
        before = brain_mask(b0, series.affine, weighted)
        to_scan = np.linalg.inv(np.array(found.to_template))
        box = brainstem_box(to_scan, b0.shape, series.affine)
        height = np.array(found.to_template)[2]
        place = grid_points(b0.shape, series.affine)
        above = (place @ height[:3] + height[3] > BOX_MM[2][1]).reshape(b0.shape)
        facts = read_facts(found.facts, RegistrationFacts)
    verdict = (
        f"{facts.text} (through the {facts.source}; overlap {facts.dice}, rival {facts.rival}, "
        f"borders {facts.edges}, information {facts.information}, coverage {facts.coverage})"
    )
    raw_affine = np.asarray(nibabel.load(image).affine)
    return Masks(before, after, box, above, raw_affine, verdict)


def brainstem_box(to_scan: np.ndarray, shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    """Return midbrain and pons of the template in the space of a scan."""
    template = load_template(None)
    index = np.moveaxis(np.indices(template.mask.shape), 0, -1)
    place = index @ template.affine[:3, :3].T + template.affine[:3, 3]
    box = template.mask.copy()
    for axis, (low, high) in enumerate(BOX_MM):
        box &= (place[..., axis] >= low) & (place[..., axis] <= high)
    grid = (shape[0], shape[1], shape[2])
    return resample_volume(box, template.affine, to_scan, grid, affine, order=1) > 0.5


def real_masks(show: Show, folder: Path, names: tuple[str, ...] = ()) -> None:
    """Compare with masks of other tools, and with the box of the brainstem."""
    for path in sorted(folder.glob("sub-*/dwi/*_dwi.nii.gz")):
        name = path.name.removesuffix("_dwi.nii.gz")
        if names and name not in names:
            continue
        t1w = next(iter(sorted((path.parents[1] / "anat").glob("*_T1w.nii.gz"))), None)
        try:
            masks = mask_scan(path, t1w)
        except ParticipantError as error:  # a scan without a brain must not stop the others
            show(f"{name}: brain mask", f"none ({error})".replace("|", " "), "-")
            continue
        show(f"{name}: verdict on the affine", masks.verdict, "-")
        if masks.brainstem.any():
            before, after = (m[masks.brainstem].mean() for m in (masks.before, masks.after))
            show(
                f"{name}: share of the brainstem's box in the mask, before and after",
                f"{before:.2f}, {after:.2f}",
                "at least 0.9",
            )
        for reference in ("bet2", "mrtrix"):
            other = folder / "derivatives" / "fsl" / f"{name}_desc-{reference}_mask.nii.gz"
            if other.exists():
                truth = np.asarray(nibabel.load(other).dataobj) > 0
                truth = conform(truth, masks.raw_affine).data
                tool = {"bet2": "bet2", "mrtrix": "dwi2mask"}[reference]
                wanted = "at least 0.96 where dwi2mask is right" if reference == "mrtrix" else "-"
                for where, part in {"": np.True_, " above the brainstem": masks.above}.items():
                    overlap = [dice(m & part, truth & part) for m in (masks.before, masks.after)]
                    show(
                        f"{name}: Dice against {tool}{where}, before and after",
                        f"{overlap[0]:.3f}, {overlap[1]:.3f}",
                        wanted,
                    )


def phantom_masks(show: Show, voxel_mm: float, heads: int) -> None:
    """Compare with the truth."""
    for seed in range(heads):
        settings = PhantomSettings(
            per_group=1,
            voxel_mm=voxel_mm,
            directions=6,
            eddy=0.0,
            motion_mm=0.0,
            motion_deg=0.0,
            pose_deg=20.0,
            pose_size=0.15,
            seed=seed,
        )
        scan = simulate_participant(settings, plan_cohort(settings)[0])
        with tempfile.TemporaryDirectory() as name:
            image = Path(name) / "sub-01_dwi.nii.gz"
            nibabel.save(nibabel.Nifti1Image(scan.data, scan.affine), image)
            np.savetxt(Path(name) / "sub-01_dwi.bval", scan.bvals[None], fmt="%g")
            np.savetxt(Path(name) / "sub-01_dwi.bvec", scan.bvecs_fsl.T, fmt="%.6f")
            masks = mask_scan(image, None)
        truth = conform(scan.truth.mask, scan.affine).data
        show(
            f"phantom {seed}, {voxel_mm:g} mm: Dice of the mask, before and after",
            f"{dice(masks.before, truth):.3f}, {dice(masks.after, truth):.3f}",
            "not less",
        )
