r"""Affine registration of a scan to the template, and how good it is.

Transforms lead from the moving image to the fixed one, world RAS mm: ``dwi_to_mni`` takes a point
of the conformed scan to MNI. Similarity is mutual information, because b0 looks like T2 and the
template like T1.

The start matters: conforming takes the rotation out of oblique headers, so heads come pitched by
20 degrees and more. Brains are put on each other by centre of mass and size, turned by several
rotations, registered briefly at 8 mm; the start with the highest mutual information goes on to
4 and 3 mm.

How good a result is, `registration_quality` says; a poor one is tried again from more starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bids_gevnet.dwi.ants_linear import Schedule, register, to_ants_image
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.interpolation import coarsen
from bids_gevnet.dwi.mask import grow_mask
from bids_gevnet.dwi.registration_quality import (
    Overlay,
    Registration,
    Volume,
    assess,
    judge,
    onto_grid,
)
from bids_gevnet.errors import ParticipantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

START_MM, MIDDLE_MM, FINE_MM = 8.0, 4.0, 3.0
START_ANGLES_DEG = (
    (0, 0, 0),
    *((angle, 0, 0) for angle in (-30, 30)),
    *((0, angle, 0) for angle in (-20, 20)),
    *((0, 0, angle) for angle in (-20, 20)),
)
"""Rotations about x (nodding, the largest in practice), y and z that are tried."""

FAR_ANGLES_DEG = (
    *((angle, 0, 0) for angle in (-90, -60, 60, 90, 180)),
    *((0, angle, 0) for angle in (-90, -45, 45, 90, 180)),
    *((0, 0, angle) for angle in (-90, -45, 45, 90, 180)),
)
"""Rotations that are tried where nothing else fits: a wrong header can turn a head anyhow."""

ROUNDS = 4
"""How often a poor result is left for a better place nearby."""

START_SHIFTS_MM = (-20.0, 0.0, 20.0)
MASK_MARGIN_MM = 8.0
SHADING_MM = 25.0
CLEAR_GAIN = 1.5
"""What is above 1 of the normalised mutual information must grow by this factor before a header is
overruled: a b0 without contrast reaches 1.3 at a place 16 mm away from the right one."""

_START = Schedule("Affine", "MI", 24, 1.0, (60,), (1,), (0.0,), step=0.25)
_MIDDLE = Schedule("Affine", "MI", 32, 0.5, (150,), (1,), (0.0,), step=0.25)
_FINE = Schedule("Affine", "MI", 32, 0.5, (60,), (1,), (0.0,))


def flatten_shading(volume: Volume, width_mm: float = SHADING_MM) -> Volume:
    """Divide a volume by its own blurred brain, so that coil shading does not look like tissue.

    Parameters
    ----------
    volume : Volume
    width_mm : float
        Standard deviation of the blur; wider than tissue, narrower than shading.

    Returns
    -------
    volume : Volume
        About 1 everywhere in the brain, 0 outside.
    """
    from scipy.ndimage import gaussian_filter

    sigma = width_mm / voxel_sizes(volume.affine)
    signal = np.maximum(volume.data, 0).astype(np.float32) * volume.mask
    # A few bright voxels (vessels, eyes) must not cast a shadow around them.
    if volume.mask.any():
        signal = np.minimum(signal, np.percentile(signal[volume.mask], 99))
    weight = gaussian_filter(volume.mask.astype(np.float32), sigma)
    blurred = gaussian_filter(signal, sigma)
    flat = np.zeros_like(signal)
    np.divide(signal * weight, blurred, out=flat, where=volume.mask & (blurred > 0))
    return replace(volume, data=flat)


def register_to_template(moving: Volume, template: Volume) -> Registration:
    """Find the affine transform of a brain to the template.

    Parameters
    ----------
    moving, template : Volume
        Any contrast.

    Returns
    -------
    registration : Registration
        From ``moving`` to ``template``.
    """
    moving, template = flatten_shading(moving), flatten_shading(template)
    starts = [
        _turn_about_centres(moving, template, angles, scale=True) for angles in START_ANGLES_DEG
    ]
    # A brain cut by the field of view has its centre elsewhere, and says nothing about its size.
    for shift_mm in START_SHIFTS_MM:
        start = _turn_about_centres(moving, template, (0, 0, 0), scale=False)
        start[2, 3] += shift_mm
        starts.append(start)
    transform = _refine(moving, template, starts, (_START, _MIDDLE, _FINE))
    found = judge(transform, moving, template)
    return _try_again(moving, template, found) if found.is_poor else found


def _try_again(moving: Volume, template: Volume, first: Registration) -> Registration:
    """Go on from the best places near a poor result, and else from heads turned far."""
    overlay, tried = Overlay(moving, template), [first]
    for _ in range(ROUNDS):
        if not tried[-1].is_outdone:
            break
        _, place = overlay.nearby(tried[-1].moving_to_fixed)[0]
        tried.append(judge(_refine_by_tissue(moving, template, place), moving, template))
    if all(one.is_poor for one in tried):
        far = [
            _turn_about_centres(moving, template, angles, scale=True) for angles in FAR_ANGLES_DEG
        ]
        found = _refine(moving, template, far, (_START, _MIDDLE, _FINE))
        tried.append(judge(found, moving, template))
    return replace(max(tried, key=lambda one: one.worth), retried=True)


def fit_affine(
    moving: NDArray[np.float64], fixed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Find the affine that takes points nearest to others, in the sense of least squares.

    A nonlinear registration becomes the affine that fits it best over the brain: one rotation per
    scan, as for scans that are registered here, so that scans from both can be compared.

    Parameters
    ----------
    moving, fixed : (n, 3) array
        The same points in both images, world mm.

    Returns
    -------
    moving_to_fixed : (4, 4) array
    residual_mm : float
        Root mean square distance that remains.
    """
    homogeneous = np.column_stack([moving, np.ones(len(moving))])
    solution = np.linalg.lstsq(homogeneous, fixed, rcond=None)[0]
    affine = np.eye(4)
    affine[:3] = solution.T
    away = np.linalg.norm(homogeneous @ solution - fixed, axis=1)
    return affine, float(np.sqrt(np.mean(away**2)))


def register_rigid(
    moving: Volume, fixed: Volume, starts: Sequence[NDArray[np.float64]]
) -> Registration:
    """Find the rigid transform between two images of one session, for instance b0 and T1w.

    Parameters
    ----------
    moving : Volume
        With a brain mask, for instance the mean b0.
    fixed : Volume
        Its brain need not be known: give a mask that is True everywhere.
    starts : sequence of (4, 4) array
        First guesses of ``moving_to_fixed``. The first is that of the headers (for two conformed
        images ``fixed.old_to_new @ inv(moving.old_to_new)``); it is kept unless a transform that
        was found from these guesses or from the centres of mass has clearly more information: in
        one session headers are mostly right, and a distorted b0 of low contrast can be drawn
        away by millimetres for hardly any gain.

    Returns
    -------
    registration : Registration
        From ``moving`` to ``fixed``; its ``dice`` is 1 where the fixed brain is not known.
    """
    guesses = [*starts, _turn_about_centres(moving, fixed, (0, 0, 0), scale=False)]
    # The brain is known in the moving image only, and the metric looks where the fixed image is
    # masked: so the two change places.
    backwards = [np.asarray(np.linalg.inv(guess)) for guess in guesses]
    start, middle, fine = (replace(s, kind="Rigid") for s in (_START, _MIDDLE, _FINE))
    whole = replace(fixed, mask=np.ones_like(fixed.mask))
    found = _refine(whole, moving, backwards, (start, middle, fine), strip=False)
    by_image = assess(np.asarray(np.linalg.inv(found)), moving, fixed)
    by_header = assess(guesses[0], moving, fixed)
    clearly_better = by_image.information - 1 > CLEAR_GAIN * (by_header.information - 1)
    return by_image if clearly_better else by_header


def _centre_mm(volume: Volume) -> NDArray[np.float64]:
    if not volume.mask.any():
        raise ParticipantError(
            expected="a brain mask with voxels in it",
            found="an empty one",
            remedy="look at the b0 and its mask, or try --masking bet",
        )
    # An unknown brain (mask all True) is found by its signal.
    weight = volume.mask * np.maximum(volume.data, 0) if volume.mask.all() else volume.mask
    axes = [np.arange(size) for size in weight.shape]
    total = float(weight.sum()) or 1.0
    index = [
        float(np.tensordot(weight.sum(axis=tuple({0, 1, 2} - {i})), axes[i], 1)) / total
        for i in range(3)
    ]
    return np.asarray((volume.affine @ np.array([*index, 1.0]))[:3])


def _brain_ml(volume: Volume) -> float:
    return float(volume.mask.sum() * np.prod(voxel_sizes(volume.affine)) / 1000)


def _turn_about_centres(
    moving: Volume, fixed: Volume, angles_deg: tuple[float, float, float], *, scale: bool
) -> NDArray[np.float64]:
    from scipy.spatial.transform import Rotation

    centres = _centre_mm(fixed), _centre_mm(moving)
    # A brain cut by the field of view is small for another reason: keep the size plausible.
    size = np.cbrt(_brain_ml(fixed) / _brain_ml(moving)) if scale else 1.0
    matrix = np.eye(4)
    matrix[:3, :3] = (
        np.clip(size, 0.85, 1.2) * Rotation.from_euler("xyz", angles_deg, degrees=True).as_matrix()
    )
    matrix[:3, 3] = centres[0] - matrix[:3, :3] @ centres[1]
    return matrix


def _refine(
    moving: Volume,
    fixed: Volume,
    starts: list[NDArray[np.float64]],
    schedules: tuple[Schedule, Schedule, Schedule],
    *,
    strip: bool = True,
) -> NDArray[np.float64]:
    """Register briefly from every start, then go on from the best."""
    pair = (_strip(moving), _strip(fixed)) if strip else (moving, fixed)
    tried = [_register_at(START_MM, *pair, fixed.mask, start, schedules[0]) for start in starts]
    best = max((assess(found, moving, fixed, START_MM) for found in tried), key=_score)
    middle = _register_at(MIDDLE_MM, *pair, fixed.mask, best.moving_to_fixed, schedules[1])
    return _register_at(FINE_MM, *pair, fixed.mask, middle, schedules[2])


def _refine_by_tissue(
    moving: Volume, fixed: Volume, start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Register where both are brain: the outline of a brain that is cut can hold a wrong place."""
    inside = replace(moving, seen=moving.mask)
    middle = _register_at(MIDDLE_MM, inside, fixed, fixed.mask, start, _MIDDLE, margin_mm=0.0)
    return _register_at(FINE_MM, inside, fixed, fixed.mask, middle, _FINE, margin_mm=0.0)


def _score(registration: Registration) -> float:
    # Overlap counts too: a brain shrunk into a uniform region has high information.
    return registration.information * registration.dice


def _strip(volume: Volume) -> Volume:
    return replace(volume, data=volume.data * volume.mask)


def _register_at(
    voxel_mm: float,
    moving: Volume,
    fixed: Volume,
    where: NDArray[np.bool_],
    start: NDArray[np.float64],
    schedule: Schedule,
    margin_mm: float = MASK_MARGIN_MM,
) -> NDArray[np.float64]:
    target, affine = coarsen(fixed.data, fixed.affine, voxel_mm)
    image, image_affine = coarsen(moving.data, moving.affine, voxel_mm)
    around = grow_mask(
        onto_grid(where, fixed.affine, np.eye(4), target.shape, affine), affine, margin_mm
    )
    # Beyond the field of view there is no information, which is not the same as darkness: a
    # brain that was cut must not be stretched to fill the template.
    seen = None
    if moving.seen is not None:
        field = onto_grid(moving.seen, moving.affine, np.eye(4), image.shape, image_affine)
        seen = to_ants_image(field, image_affine)
    return register(
        to_ants_image(target, affine),
        image,
        image_affine,
        schedule,
        affine_start=start,
        fixed_mask=to_ants_image(around, affine),
        moving_mask=seen,
    )


def brain_box(
    mask: NDArray[np.bool_],
    affine: NDArray[np.float64],
    resolution_mm: float,
    margin_mm: float = 4.0,
) -> tuple[tuple[int, int, int], NDArray[np.float64]]:
    """Return the grid of the output: the template's brain box at some resolution.

    Parameters
    ----------
    mask : (X, Y, Z) array of bool
        Brain of the template.
    affine : (4, 4) array
        Axis-aligned voxel to MNI.
    resolution_mm : float
    margin_mm : float
        Room around the brain on every side.

    Returns
    -------
    shape : (int, int, int)
    affine : (4, 4) array
        RAS; voxel centres at whole multiples of the resolution, so that grids of equal
        resolution agree voxel by voxel whatever the margin.
    """
    corners = np.stack([np.argwhere(mask).min(axis=0), np.argwhere(mask).max(axis=0)])
    world = np.sort((corners @ affine[:3, :3].T) + affine[:3, 3], axis=0)
    low = np.floor((world[0] - margin_mm) / resolution_mm)
    high = np.ceil((world[1] + margin_mm) / resolution_mm)
    shape = (high - low).astype(int) + 1
    box = np.diag([resolution_mm, resolution_mm, resolution_mm, 1.0])
    box[:3, 3] = low * resolution_mm
    return (int(shape[0]), int(shape[1]), int(shape[2])), box
