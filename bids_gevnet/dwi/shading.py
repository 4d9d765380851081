"""Coil shading, estimated with N4 [Tustison et al. 2010] as ANTs implements it.

Receive coils see the rim of the head better than its middle: on some scans the brainstem is a
quarter as bright as the cortex, and no single threshold keeps the one and leaves out the skull
around the other. Shading varies over centimetres, so it is estimated on voxels of 8 mm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.ants_linear import n4_field
from bids_gevnet.dwi.interpolation import coarsen, resample_volume

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHADING_MM = 8.0
KNOTS_MM = 200.0
ITERATIONS = (50, 50, 50, 50)
"""Per level; each level halves the distance of the knots, to 25 mm at last."""

TOLERANCE = 1e-3
"""Change of the field at which a level ends: 1e-6 changes it by 3 % and takes twice the time."""

_FEWEST_VOXELS = 100
"""Of 8 mm; in less of a head there is nothing to estimate from."""


def estimate_shading(
    contrast: NDArray[np.floating[Any]],
    affine: NDArray[np.float64],
    inside: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Estimate the shading of an image.

    Parameters
    ----------
    contrast : (X, Y, Z) array
        Never negative.
    affine : (4, 4) array
    inside : (X, Y, Z) array of bool
        Where there is tissue to estimate it from.

    Returns
    -------
    shading : (X, Y, Z) array of float32
        Divide the image by it. Its median inside is 1; outside it goes on as at the nearest
        place that N4 saw.
    """
    small, coarse_affine = coarsen(contrast, affine, SHADING_MM)
    shape = (small.shape[0], small.shape[1], small.shape[2])
    within = resample_volume(inside, affine, np.eye(4), shape, coarse_affine, order=1) > 0.5
    if within.sum() < _FEWEST_VOXELS or not np.any(small[within] > 0):
        return np.ones(contrast.shape, np.float32)
    positive = np.maximum(small, 1e-3 * small[within].max())  # N4 takes logarithms
    field = n4_field(
        positive,
        coarse_affine,
        within,
        shrink_factor=1,
        convergence={"iters": list(ITERATIONS), "tol": TOLERANCE},
        spline_param=KNOTS_MM,
    )
    return _onto_grid(np.log(np.maximum(field, 1e-6)), within, coarse_affine, inside, affine)


def _onto_grid(
    log_field: NDArray[np.floating[Any]],
    within: NDArray[np.bool_],
    coarse_affine: NDArray[np.float64],
    inside: NDArray[np.bool_],
    affine: NDArray[np.float64],
) -> NDArray[np.float32]:
    from scipy.ndimage import affine_transform, distance_transform_edt

    # Beyond the tissue the splines are free: the nearest value is a better guess.
    nearest = distance_transform_edt(~within, return_distances=False, return_indices=True)
    pull = np.linalg.inv(coarse_affine) @ affine
    fine = affine_transform(
        log_field[tuple(nearest)].astype(np.float32),
        pull[:3, :3],
        pull[:3, 3],
        output_shape=inside.shape,
        order=1,
        mode="nearest",
    )
    return np.asarray(np.exp(fine - np.median(fine[inside])), dtype=np.float32)
