"""What the correction benchmarks measure: displacements, tensors, noise that comes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import direction_angle_deg
from bids_gevnet.dwi.model_corrector.corrector import fill_slices
from bids_gevnet.dwi.model_corrector.warp import Warp, resample_warped
from bids_gevnet.dwi.tensor import fit_tensor

if TYPE_CHECKING:
    from bids_gevnet.dwi.model_corrector.corrector import Correction
    from bids_gevnet.dwi.model_corrector.susceptibility import Susceptibility

Show = Callable[[str, str, str], None]

_COHERENT_FA = 0.3


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def rms_vector(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(np.square(values), axis=-1))))


def corrected_data(
    data: np.ndarray, affine: np.ndarray, found: Correction, slice_axis: int
) -> np.ndarray:
    filled = [
        fill_slices(data[..., k], k, found.replacements, slice_axis) for k in range(data.shape[3])
    ]
    return resample_warped(
        np.stack(filled, axis=-1), affine, found.warp, np.eye(4), data.shape[:3], affine
    )


def unwarp(
    pair: Sequence[np.ndarray], affine: np.ndarray, axis: int, found: Susceptibility
) -> list[np.ndarray]:
    """Return two images of opposite phase encoding without the field that was found."""
    return [
        resample_warped(
            image[..., None],
            affine,
            Warp(motion[None], np.zeros((1, 10)), axis, np.float32(sign) * found.field),
            np.eye(4),
            image.shape,
            affine,
        )[..., 0]
        for image, motion, sign in zip(pair, (np.eye(4), found.motion), (1, -1), strict=True)
    ]


def alike(pair: Sequence[np.ndarray], where: np.ndarray) -> float:
    """Return the correlation of two images in some voxels."""
    return float(np.corrcoef(pair[0][where], pair[1][where])[0, 1])


@dataclass(frozen=True)
class TensorScore:
    """Errors of FA (RMS) and of the main direction (median, degrees) against the truth."""

    fa: float
    angle_deg: float

    def __str__(self) -> str:
        return f"FA {self.fa:.4f}, {self.angle_deg:.2f} deg"


class TensorTruth:
    """The tensors of a still, undistorted, noise-free phantom.

    Parameters
    ----------
    clean : (X, Y, Z, n) array
    where : (X, Y, Z) array of bool
        Voxels that are scored.
    bvals : (n,) array
    bvecs : (n, 3) array
    """

    def __init__(
        self, clean: np.ndarray, where: np.ndarray, bvals: np.ndarray, bvecs: np.ndarray
    ) -> None:
        self.where, self.bvals = where, bvals
        self.fit = fit_tensor(clean[where], bvals, bvecs)

    def score(self, data: np.ndarray, bvecs: np.ndarray) -> TensorScore:
        """Compare a corrected series, with its rotated gradients, with the truth."""
        found = fit_tensor(data[self.where], self.bvals, bvecs)
        coherent = self.fit.fa > _COHERENT_FA
        angle = direction_angle_deg(found.direction[coherent], self.fit.direction[coherent])
        return TensorScore(rms(found.fa - self.fit.fa), float(np.median(angle)))


def noise_let_through(
    noisy: np.ndarray, clean: np.ndarray, where: np.ndarray, sigma: float
) -> float:
    """Variance of the noise in corrected data, as a fraction of that in raw data.

    A spline read at a voxel lets all noise through, between voxels it averages over neighbours.
    """
    return float(np.mean(np.var(noisy[where] - clean[where], axis=0))) / sigma**2
