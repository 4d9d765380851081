r"""The susceptibility field without a second b0: the b0 against the participant's own T1w.

A T1w is hardly distorted, and inverted it looks like a b0: fluid bright, white matter dark. The
b0 is registered to it by ANTs' SyN with local correlation, along the phase-encoding axis alone, as
SDCFlows and QSIPrep do (Wang et al. 2017). The displacement found is the field u of
:mod:`bids_gevnet.dwi.model_corrector.susceptibility`: what is truly at x appears at x + u(x) p.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.ants_linear import load_ants
from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.interpolation import resample_volume
from bids_gevnet.dwi.mask import brain_mask, grow_mask
from bids_gevnet.dwi.model_corrector.susceptibility import Susceptibility
from bids_gevnet.dwi.registration import register_rigid
from bids_gevnet.dwi.registration_quality import Volume

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARGIN_MM = 6.0
"""Around the brain of the b0, which is distorted itself."""

_BINS = 32
"""Of the histogram for mutual information. Local correlation follows noise in flat tissue."""

_STEP = 0.2
_UPDATE_SMOOTHING = 3.0
_FIELD_SMOOTHING = 2.0
"""Of the whole field: without it displacements of centimetres build up in flat tissue."""
_ITERATIONS = (60, 40, 20)


def estimate_field_from_t1w(
    b0: NDArray[np.floating[Any]],
    affine: NDArray[np.float64],
    axis: int,
    t1w: NDArray[np.floating[Any]],
    t1w_affine: NDArray[np.float64],
    start: NDArray[np.float64],
) -> Susceptibility:
    """Estimate the displacement of a b0 along one axis from a T1w.

    Parameters
    ----------
    b0 : (X, Y, Z) array
    affine : (4, 4) array
        Voxel to world RAS; axes along those of the world, as after conforming.
    axis : int
        Phase-encoding axis.
    t1w : (X', Y', Z') array
    t1w_affine : (4, 4) array
    start : (4, 4) array
        From the world of the b0 to that of the T1w, by their headers.

    Returns
    -------
    field : Susceptibility
        Its correlations are those of b0 and inverted T1w in the brain.
    """
    brain = brain_mask(b0, affine)
    head = Volume(np.nan_to_num(t1w), t1w_affine, np.ones(t1w.shape, bool))
    to_t1w = register_rigid(Volume(b0, affine, brain), head, [start]).moving_to_fixed
    x, y, z = b0.shape
    from_t1w = np.asarray(np.linalg.inv(to_t1w), np.float64)
    anatomy = resample_volume(head.data, t1w_affine, from_t1w, (x, y, z), affine)
    region = grow_mask(brain, affine, MARGIN_MM)
    inverted = np.where(region, np.percentile(anatomy[region], 99) - anatomy, 0).clip(min=0)
    field = _register_along(np.where(region, b0, 0), inverted, voxel_sizes(affine), axis)
    before, after = (
        _correlation(_displace(b0, shift / voxel_sizes(affine)[axis], axis), inverted, brain)
        for shift in (np.zeros_like(field), field)
    )
    return Susceptibility(field, to_t1w, before, after)


def _register_along(
    moving: NDArray[Any], fixed: NDArray[Any], sizes_mm: NDArray[np.float64], axis: int
) -> NDArray[np.float32]:
    """Register with SyN along one voxel axis; return where fixed points lie, mm further along."""
    ants = load_ants()
    images = [
        ants.from_numpy(np.asarray(image, dtype=np.float32), spacing=sizes_mm.tolist())
        for image in (fixed, moving)
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = ants.registration(
            *images,
            "SyNOnly",
            initial_transform="identity",
            outprefix=str(Path(folder) / "syn"),
            syn_metric="mattes",
            syn_sampling=_BINS,
            grad_step=_STEP,
            flow_sigma=_UPDATE_SMOOTHING,
            total_sigma=_FIELD_SMOOTHING,
            reg_iterations=_ITERATIONS,
            restrict_transformation=tuple(int(i == axis) for i in range(3)),
        )
        warp = next(path for path in found["fwdtransforms"] if path.endswith("Warp.nii.gz"))
        displacement = ants.image_read(warp).numpy()
    return np.asarray(displacement[..., axis], dtype=np.float32)


def _displace(
    volume: NDArray[np.floating[Any]], shift: NDArray[np.floating[Any]], axis: int
) -> NDArray[np.float32]:
    """Read a volume some voxels further along an axis."""
    from scipy.ndimage import map_coordinates

    where = np.stack(np.meshgrid(*map(np.arange, volume.shape), indexing="ij")).astype(np.float32)
    where[axis] += shift
    return np.asarray(map_coordinates(np.asarray(volume, np.float32), where, order=1))


def _correlation(
    one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]], brain: NDArray[np.bool_]
) -> float:
    return float(np.corrcoef(one[brain], other[brain])[0, 1])
