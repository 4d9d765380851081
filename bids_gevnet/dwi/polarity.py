r"""Are two phase encodings of one axis equal or opposite, where nobody tells? Both are tried.

As equal, the b0s differ by motion alone and match once one of them has been moved onto the other.
As opposite, they match once a susceptibility field has been undone in both, of which the coarse
part suffices to tell (`TRIAL_LEVELS`). `Trial` holds both correlations, and which of the two is
kept is decided by :func:`bids_gevnet.dwi.phase_encoding.resolve_relation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.gradients import voxel_sizes
from bids_gevnet.dwi.model_corrector.susceptibility import (
    LEVELS,
    correlate_aligned,
    estimate_field,
)
from bids_gevnet.dwi.phase_encoding import Relation, resolve_relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRIAL_LEVELS = LEVELS[:3]


@dataclass(frozen=True)
class Trial:
    """How well two b0s agree under either assumption.

    Attributes
    ----------
    as_equal, as_opposite : float
        Correlation over the head, after rigid alignment and with a susceptibility field.
    """

    as_equal: float
    as_opposite: float

    @property
    def relation(self) -> Relation:
        """The assumption to keep."""
        return resolve_relation(self.as_equal, self.as_opposite)


def try_both(
    first: NDArray[Any],
    second: NDArray[Any],
    affine: NDArray[np.float64],
    axis: int,
    *,
    readout_ratio: float = 1.0,
    start: NDArray[np.float64] | None = None,
) -> Trial:
    """Compare two b0s as if their phase encodings were equal, and as if they were opposite.

    Parameters
    ----------
    first, second : (X, Y, Z) array
        On the same conformed grid.
    affine : (4, 4) array
        Of both.
    axis : int
        Phase-encoding voxel axis.
    readout_ratio : float
        Readout time of the second over that of the first.
    start : (4, 4) array, optional
        First guess of the motion from the first image to the second, from their headers.

    Returns
    -------
    trial : Trial
    """
    one, other = (np.asarray(image, dtype=np.float32) for image in (first, second))
    sizes = voxel_sizes(affine)
    field = estimate_field(
        one,
        other,
        sizes,
        axis,
        readout_ratio=readout_ratio,
        start=start,
        levels=TRIAL_LEVELS,
    )
    as_equal = correlate_aligned(one, other, sizes, start=start, levels=TRIAL_LEVELS)
    return Trial(as_equal, field.correlation_after)
