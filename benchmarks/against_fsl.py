"""The correction without FSL beside FSL's topup and eddy, on the same real scans.

    bids_gevnet FOLDER EDDY participant --correction eddy --masking otsu -w WORK
    bids_gevnet FOLDER MODEL participant --correction model --masking otsu
    python benchmarks/against_fsl.py EDDY MODEL NAME [--raw RUN ...] [--topup WORK/.../topup]
        [--mask FILE]
    python benchmarks/against_fsl.py none MODEL NAME --raw RUN [RUN ...]

NAME is what the derivatives of a scan begin with, such as sub-philips. Both series are compared in
the same voxels: the brain of both masks, for the tensor those that are white matter by the mean FA
of both. ``--raw`` names the runs in the dataset and adds the misfit before; without EDDY the model
is compared with them alone. ``--topup`` names the folder of topup's node and compares its field
with ours on the b0s that it was given, in a further mask too if there is one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import nibabel
import numpy as np
from correction_scores import alike, rms, unwarp
from scipy.spatial.transform import Rotation

from bids_gevnet.bids.derivatives import BRAIN_MASK, CONFOUNDS, SERIES, gradient_files
from bids_gevnet.bids.gradient_files import read_bval, read_bvec
from bids_gevnet.dwi.conform import conform
from bids_gevnet.dwi.gradients import bvecs_fsl_to_ras, voxel_sizes
from bids_gevnet.dwi.model_corrector.susceptibility import estimate_field
from bids_gevnet.dwi.motion import displacement_mm
from bids_gevnet.dwi.shells import choose_shell, find_shells
from bids_gevnet.dwi.tensor import fit_tensor
from bids_gevnet.interfaces.confounds import read_confounds

_WHITE = (0.4, 0.95)


@dataclass(frozen=True)
class Output:
    """A corrected series and how its volumes were moved."""

    data: np.ndarray
    mask: np.ndarray
    bvals: np.ndarray
    bvecs: np.ndarray
    transforms: np.ndarray
    outlier_slices: int


def read_output(folder: Path, name: str) -> Output:
    (path,) = folder.glob(f"**/dwi/{name}_{SERIES}")
    image = nibabel.load(path)
    bval, bvec = gradient_files(path)
    table = read_confounds(path.with_name(f"{name}_{CONFOUNDS}"))
    transforms = np.tile(np.eye(4), (len(table), 1, 1))
    motion = table.iloc[:, 1:7].to_numpy()
    transforms[:, :3, :3] = Rotation.from_euler("xyz", motion[:, 3:]).as_matrix()
    transforms[:, :3, 3] = motion[:, :3]
    return Output(
        np.asarray(image.dataobj, dtype=np.float32),
        np.asarray(nibabel.load(path.with_name(f"{name}_{BRAIN_MASK}")).dataobj) > 0,
        read_bval(bval),
        bvecs_fsl_to_ras(read_bvec(bvec), image.affine),
        transforms,
        int(table["outlier_slices"].sum()),
    )


def compare_misfit(name: str, ways: dict[str, Output], raw: list[Path]) -> None:
    """Compare the misfit of the tensor before and after, in the same voxels."""
    before = read_raw(raw, next(iter(ways.values())))
    both = np.logical_and.reduce([way.mask for way in ways.values()])
    found = {}
    for way, output in {"before": before, **ways}.items():
        shells = find_shells(output.bvals)
        chosen = np.sort(np.concatenate([shells.b0, choose_shell(shells).volumes]))
        found[way] = fit_tensor(
            output.data[both][:, chosen], output.bvals[chosen], output.bvecs[chosen]
        )
    white = white_matter([found[way].fa for way in ways])
    show(
        f"{name}: misfit of the tensor in {white.sum()} voxels of white matter, median of b0: "
        + " / ".join(found),
        " / ".join(f"{np.nanmedian(fit.residual[white]):.4f}" for fit in found.values()),
    )


def read_raw(paths: list[Path], after: Output) -> Output:
    """Read runs as they lie in the dataset, one after another, on the voxels of the output."""
    runs, bvals, bvecs = [], [], []
    for path in paths:
        image, (bval, bvec) = nibabel.load(path), gradient_files(path)
        data = np.asarray(image.dataobj, dtype=np.float32)
        table = bvecs_fsl_to_ras(read_bvec(bvec), image.affine)
        conformed = conform(data, image.affine, table)
        runs.append(conformed.data)
        bvals.append(read_bval(bval))
        bvecs.append(conformed.bvecs_ras)
    return replace(
        after,
        data=np.concatenate(runs, axis=3),
        bvals=np.concatenate(bvals),
        bvecs=np.concatenate(bvecs),
    )


def white_matter(fas: list[np.ndarray]) -> np.ndarray:
    """Return which voxels are white matter by the mean FA, (v,) of bool."""
    fa = np.mean(fas, axis=0)
    return (fa > _WHITE[0]) & (fa < _WHITE[1])


def show(what: str, found: str) -> None:
    print(f"| {what} | {found} |", flush=True)


def compare_series(name: str, eddy: Output, model: Output) -> None:
    """Compare tensors, b0s and motion of both corrections."""
    both = eddy.mask & model.mask
    shells = find_shells(eddy.bvals)
    shell = choose_shell(shells)
    chosen = np.sort(np.concatenate([shells.b0, shell.volumes]))
    fits = [
        fit_tensor(way.data[both][:, chosen], way.bvals[chosen], way.bvecs[chosen])
        for way in (eddy, model)
    ]
    white = white_matter([fit.fa for fit in fits])
    show(
        f"{name}: misfit of the tensor in {white.sum()} voxels of white matter, median of b0: "
        "eddy / model",
        " / ".join(f"{np.median(fit.residual[white]):.4f}" for fit in fits),
    )
    cosine = np.abs(np.einsum("vi,vi->v", fits[0].direction, fits[1].direction))[white]
    angle = np.degrees(np.arccos(np.minimum(cosine, 1)))
    show(
        f"{name}: main directions of both apart, median; FA, mean of eddy / model",
        f"{np.median(angle):.1f} deg; {fits[0].fa[white].mean():.3f} / "
        f"{fits[1].fa[white].mean():.3f}",
    )
    moved = [displacement_mm(way.transforms) for way in (eddy, model)]
    apart = displacement_mm(eddy.transforms @ np.linalg.inv(model.transforms))
    show(
        f"{name}: motion of eddy / model, largest; between both, RMS and largest",
        f"{moved[0].max():.2f} / {moved[1].max():.2f} mm; {rms(apart):.2f}, {apart.max():.2f} mm",
    )
    lost = [way.outlier_slices for way in (eddy, model)]
    show(f"{name}: outlier slices, eddy / model", f"{lost[0]} / {lost[1]}")
    if len(shells.b0) > 1:
        for what, volumes in (("b0s", shells.b0), ("mean weighted images", shell.volumes)):
            found = [alike(halves(way.data, volumes), both) for way in (eddy, model)]
            show(
                f"{name}: correlation of the {what} of both runs in the brain: eddy / model",
                f"{found[0]:.4f} / {found[1]:.4f}",
            )


def halves(data: np.ndarray, volumes: np.ndarray) -> list[np.ndarray]:
    """Return the mean of some volumes in the first run and in the second, equally long one."""
    first = volumes < data.shape[3] // 2
    return [data[..., volumes[chosen]].mean(axis=3) for chosen in (first, ~first)]


def compare_fields(folder: Path, masks: dict[str, np.ndarray]) -> None:
    """Compare topup's field with ours on the two b0s that topup was given."""
    image = nibabel.load(folder / "b0s.nii.gz")
    pair = [np.asarray(image.dataobj[..., k], dtype=np.float32) for k in range(2)]
    row = np.loadtxt(folder / "acqp.txt")[0]
    axis = int(np.argmax(np.abs(row[:3])))
    sizes = voxel_sizes(image.affine)
    hz = np.asarray(nibabel.load(folder / "topup_fieldmap.nii.gz").dataobj, dtype=np.float32)
    theirs = hz * np.float32(row[axis] * row[3] * sizes[axis])
    own = estimate_field(pair[0], pair[1], sizes, axis)
    unwarped = np.asarray(nibabel.load(folder / "topup_unwarped.nii.gz").dataobj)
    ways = {
        "ours": unwarp(pair, image.affine, axis, own),
        "topup": [unwarped[..., 0], unwarped[..., 1]],
    }
    for name, mask in masks.items():
        difference = (own.field - theirs)[mask]
        show(
            f"field of ours and topup's in the mask of {name} ({mask.sum()} voxels): RMS "
            "difference, without its mean, correlation; RMS of topup's",
            f"{rms(difference):.3f} mm, {difference.std():.3f} mm, "
            f"{alike((own.field, theirs), mask):.3f}; {rms(theirs[mask]):.2f} mm",
        )
        show(
            f"correlation of the b0s in the mask of {name}: before / ours / topup's own output",
            f"{alike(pair, mask):.4f} / "
            + " / ".join(f"{alike(images, mask):.4f}" for images in ways.values()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("eddy", type=Path, help="output of the app with eddy, or none")
    parser.add_argument("model", type=Path)
    parser.add_argument("name")
    parser.add_argument("--raw", type=Path, nargs="+", default=[], help="runs in the dataset")
    parser.add_argument("--topup", type=Path, help="folder of topup's node")
    parser.add_argument("--mask", type=Path, help="a further mask, in the space of the raw run")
    options = parser.parse_args()
    model = read_output(options.model, options.name)
    print("| what | found |\n|---|---|")
    if str(options.eddy) == "none":
        compare_misfit(options.name, {"model": model}, options.raw)
        return
    eddy = read_output(options.eddy, options.name)
    if options.raw:
        compare_misfit(options.name, {"eddy": eddy, "model": model}, options.raw)
    compare_series(options.name, eddy, model)
    if options.topup is not None:
        masks = {"the app": eddy.mask & model.mask}
        if options.mask is not None:
            further = nibabel.load(options.mask)
            masks["FSL bet2"] = conform(np.asarray(further.dataobj) > 0, further.affine).data
        compare_fields(options.topup, masks)


if __name__ == "__main__":
    main()
