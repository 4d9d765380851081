r"""Head motion without FSL: ANTs rigid registration of every volume.

Transforms are 4 x 4 in world mm and lead from volume k as it was acquired to the reference, the
first b0: :math:`x_\mathrm{ref} = T_k x_k`. Gradients turn with them
(:func:`bids_gevnet.dwi.gradients.rotate_bvecs`), and data are interpolated once, through
:math:`T_k` and whatever follows (:mod:`bids_gevnet.dwi.interpolation`).

b0s are registered to the first b0. Diffusion-weighted volumes have another contrast, different
for every direction, so each goes to the mean of the others on its shell, which is made sharper by
a second pass; the shell mean itself then goes to the mean b0, once. Mutual information throughout.
Rigid motion is all this corrects: no eddy currents, no susceptibility, no lost slices. The report
says so.

Framewise displacement is Power's: the sum of absolute changes of the six parameters, rotations as
arcs on a sphere of 50 mm.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.child_processes import end_with_parent, holding_signals
from bids_gevnet.dwi.ants_linear import Schedule, register, to_ants_image
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.interpolation import coarsen, resample_volume
from bids_gevnet.dwi.mask import head_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.dwi.shells import Shells

HEAD_RADIUS_MM = 50.0
LARGEST_MOTION_MM = 40.0
"""Mean displacement on the head sphere above which a registration failed rather than found."""

FIRST_PASS_MM = 4.0
SECOND_PASS_MM = 3.0
FIRST_PASS = Schedule("Rigid", "MI", 32, 1.0, (40,), (1,), (0.0,))
SECOND_PASS = Schedule("Rigid", "MI", 32, 1.0, (30,), (1,), (0.0,))
POINTS = 10_000
"""Voxels the metric looks at in both passes, at most: on two phantoms of 3 mm this many left 0.10
and 0.11 mm of motion and 25,000 left 0.10 and 0.14, and time goes with their number."""

MARGIN_MM = 25.0
"""Room around the head for the metric: the outline against air helps (on a phantom of 3 mm, 8 mm
of room left 0.35 mm of motion and 25 mm left 0.18 mm); all of the air would double the time."""

LINK = Schedule("Rigid", "MI", 64, 1.0, (60,), (1,), (0.0,))
"""b0 and shell mean differ in contrast: their link is made once, and with more bins, which took
0.04 mm off its error on the phantom."""

_FEWEST_VOXELS = 8
"""An axis with fewer voxels does not determine rotations about the others."""


@dataclass(frozen=True)
class Motion:
    """Rigid motion of a series.

    Attributes
    ----------
    transforms : (n, 4, 4) array
        Volume to reference, world mm.
    failed : (n,) array of bool
        Volumes whose registration ended somewhere impossible; they keep the identity.
    note : str
        What a reader of the report should know; empty when all went well.
    """

    transforms: NDArray[np.float64]
    failed: NDArray[np.bool_]
    note: str = ""


def estimate_motion(
    data: NDArray[Any], affine: NDArray[np.float64], shells: Shells, *, n_procs: int = 1
) -> Motion:
    """Estimate the motion of every volume relative to the first b0.

    Parameters
    ----------
    data : (X, Y, Z, n) array
    affine : (4, 4) array
        Voxel to world RAS.
    shells : Shells
        From :func:`bids_gevnet.dwi.shells.find_shells`; without b0 the first shell is the
        reference.
    n_procs : int
        Volumes that are registered at the same time; the result does not depend on it.

    Returns
    -------
    motion : Motion
    """
    count = data.shape[3]
    transforms = np.broadcast_to(np.eye(4), (count, 4, 4)).copy()
    if min(data.shape[:3]) < _FEWEST_VOXELS:
        note = f"motion was not estimated: an axis has fewer than {_FEWEST_VOXELS} voxels"
        return Motion(transforms, np.zeros(count, bool), note)
    # Finer than the scan itself the grid would show through, and hold every volume in its place.
    native_mm = float(voxel_sizes(affine).max())
    coarse = {
        voxel_mm: [coarsen(data[..., k], affine, max(voxel_mm, native_mm)) for k in range(count)]
        for voxel_mm in (FIRST_PASS_MM, SECOND_PASS_MM)
    }
    groups = [group for group in (shells.b0, *(s.volumes for s in shells.shells)) if group.size]
    context = multiprocessing.get_context("spawn")
    pool = (
        ProcessPoolExecutor(n_procs, context, initializer=end_with_parent) if n_procs > 1 else None
    )
    try:
        for position, group in enumerate(groups):
            transforms[group] = _align_group(coarse, group, pool, to_first=position == 0)
        _link_groups(coarse, groups, transforms)
    finally:
        if pool is not None:
            pool.shutdown()
    # The first volume of the first group is the reference by definition.
    transforms = np.linalg.inv(transforms[groups[0][0]]) @ transforms
    failed = displacement_mm(transforms) > LARGEST_MOTION_MM
    transforms[failed] = np.eye(4)
    listed = ", ".join(map(str, np.flatnonzero(failed)))
    note = f"registration failed for volumes {listed}; left as they were" if listed else ""
    return Motion(transforms, failed, note)


_Coarse = dict[float, list[tuple["NDArray[np.float32]", "NDArray[np.float64]"]]]


def _align_group(
    coarse: _Coarse,
    group: NDArray[np.intp],
    pool: ProcessPoolExecutor | None,
    *,
    to_first: bool,
) -> NDArray[np.float64]:
    """Align volumes of one contrast: to the first or to each other, then again, finer."""
    transforms = np.broadcast_to(np.eye(4), (len(group), 4, 4)).copy()
    if len(group) == 1:
        return transforms
    for voxel_mm, schedule in ((FIRST_PASS_MM, FIRST_PASS), (SECOND_PASS_MM, SECOND_PASS)):
        volumes = [coarse[voxel_mm][k][0] for k in group]
        affine = coarse[voxel_mm][int(group[0])][1]
        if schedule is FIRST_PASS and to_first:
            targets = [volumes[0]] * len(group)
        else:
            targets = _mean_of_others(volumes, affine, transforms)
        tasks = [
            (target, volume, affine, start, schedule)
            for target, volume, start in zip(targets, volumes, transforms, strict=True)
        ]
        with holding_signals() if pool else nullcontext():  # processes are started here
            results = pool.map(_register_one, tasks) if pool else map(_register_one, tasks)
        transforms = np.stack(list(results))
    return transforms


def _aligned(
    volumes: Sequence[NDArray[np.float32]],
    affine: NDArray[np.float64],
    transforms: NDArray[np.float64],
) -> list[NDArray[np.float32]]:
    grid = (volumes[0].shape[0], volumes[0].shape[1], volumes[0].shape[2])
    return [
        resample_volume(volume, affine, transform, grid, affine)
        for volume, transform in zip(volumes, transforms, strict=True)
    ]


def _mean_of_others(
    volumes: Sequence[NDArray[np.float32]],
    affine: NDArray[np.float64],
    transforms: NDArray[np.float64],
) -> list[NDArray[np.float32]]:
    """Return for each volume the mean of the others, as far as they are aligned.

    A mean that holds the volume itself, noise and all, is most like it where it already is.
    """
    aligned = _aligned(volumes, affine, transforms)
    total = np.sum(aligned, axis=0, dtype=np.float64)
    return [((total - volume) / (len(volumes) - 1)).astype(np.float32) for volume in aligned]


def _register_one(
    task: tuple[
        NDArray[np.float32],
        NDArray[np.float32],
        NDArray[np.float64],
        NDArray[np.float64],
        Schedule,
    ],
) -> NDArray[np.float64]:
    target, volume, affine, start, schedule = task
    if not np.any(volume > 0) or not np.any(target > 0):
        return start  # an empty volume has no position
    around = head_mask(target, affine, MARGIN_MM)
    if schedule != LINK:
        schedule = replace(schedule, sampling=min(1.0, POINTS / max(1, int(around.sum()))))
    head = to_ants_image(around, affine)
    fixed = to_ants_image(target, affine)
    return register(fixed, volume, affine, schedule, start=start, fixed_mask=head)


def _link_groups(
    coarse: _Coarse, groups: Sequence[NDArray[np.intp]], transforms: NDArray[np.float64]
) -> None:
    """Bring the mean of each further group to that of the first, in place."""
    volumes = coarse[SECOND_PASS_MM]
    affine = volumes[0][1]
    means = [
        np.mean(_aligned([volumes[k][0] for k in group], affine, transforms[group]), axis=0)
        for group in groups
    ]
    for group, mean in zip(groups[1:], means[1:], strict=True):
        link = _register_one((means[0], mean, affine, np.eye(4), LINK))
        transforms[group] = link @ transforms[group]


def align_means(
    moving: NDArray[np.float32], fixed: NDArray[np.float32], affine: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Find the rigid transform between the mean volumes of two runs on one grid.

    Parameters
    ----------
    moving, fixed : (X, Y, Z) array
    affine : (4, 4) array
        Of both.

    Returns
    -------
    moving_to_fixed : (4, 4) array
        World RAS, mm; the identity where the volumes are too small to tell.
    """
    if min(moving.shape) < _FEWEST_VOXELS:
        return np.eye(4)
    voxel_mm = max(SECOND_PASS_MM, float(voxel_sizes(affine).max()))
    target, coarse_affine = coarsen(fixed, affine, voxel_mm)
    volume, _ = coarsen(moving, affine, voxel_mm)
    return _register_one((target, volume, coarse_affine, np.eye(4), LINK))


def rigid_parameters(transforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return translations in mm and rotations about x, y and z in radians.

    Parameters
    ----------
    transforms : (n, 4, 4) array
        Rigid, world mm; translations are those of the world origin, which conforming puts in
        the centre of the volume.

    Returns
    -------
    parameters : (n, 6) array
    """
    from scipy.spatial.transform import Rotation

    angles = Rotation.from_matrix(transforms[:, :3, :3]).as_euler("xyz")
    return np.concatenate([transforms[:, :3, 3], angles], axis=1)


def framewise_displacement(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Power's framewise displacement in mm.

    Parameters
    ----------
    parameters : (n, 6) array
        Translations in mm, rotations in radians.

    Returns
    -------
    displacement_mm : (n,) array
        0 for the first volume.

    Examples
    --------
    >>> still, moved = [0, 0, 0, 0, 0, 0], [1, 0, 0, 0.01, 0, 0]  # 1 mm and 0.01 rad
    >>> framewise_displacement(np.array([still, moved]))
    array([0. , 1.5])
    """
    scaled = parameters * np.array([1, 1, 1, *[HEAD_RADIUS_MM] * 3])
    return np.asarray(np.sum(np.abs(np.diff(scaled, axis=0, prepend=scaled[:1])), axis=1))


def displacement_mm(transforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far a transform moves points of the head, root mean square.

    On a ball of radius r around the origin, with M = T - 1: the mean of |M x + t|² is
    |t|² + r²/5 trace(M^T M).

    Parameters
    ----------
    transforms : (n, 4, 4) array

    Returns
    -------
    displacement_mm : (n,) array
    """
    difference = transforms[..., :3, :3] - np.eye(3)
    spread = np.sum(np.square(difference), axis=(-2, -1)) * HEAD_RADIUS_MM**2 / 5
    return np.asarray(np.sqrt(spread + np.sum(np.square(transforms[..., :3, 3]), axis=-1)))
