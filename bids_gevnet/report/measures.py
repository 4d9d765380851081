"""Quality measures that scans are compared by, and what is far from the others.

A value x is far from those of other scans where its robust distance,

    z = 0.6745 (x - median) / MAD,

is above 3.5 in size (Iglewicz and Hoaglin 1993). The usual range is the middle 90 % of the
others, without those that are far themselves. Neither says that a scan is bad: only that
somebody should look.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bids_gevnet.facts import CorrectionFacts, ScanFacts

FAR = 3.5
FEWEST_OTHERS = 5
"""Scans without which there is no range."""


@dataclass(frozen=True, slots=True)
class FactMeasure:
    """A measure that is read from the facts of a scan.

    Attributes
    ----------
    key, name, unit, hint : str
    read : callable
        From facts to the value; None where it is not known.
    """

    key: str
    name: str
    unit: str
    hint: str
    read: Callable[[ScanFacts], float | None]


def _over_runs(
    read: Callable[[CorrectionFacts], float | None], combine: Callable[[list[float]], float]
) -> Callable[[ScanFacts], float | None]:
    """Read a measure from the correction of each run, and combine what is known."""

    def measure(facts: ScanFacts) -> float | None:
        values = [value for run in facts.correction if (value := read(run)) is not None]
        return combine(values) if values else None

    return measure


FACT_MEASURES: Sequence[FactMeasure] = (
    FactMeasure("displacement", "Largest displacement", "mm", "from the reference volume",
                _over_runs(lambda run: run.largest_displacement_mm, max)),
    FactMeasure("outliers", "Outlier slices", "", "replaced by the correction",
                _over_runs(lambda run: run.outlier_slices, sum)),
    FactMeasure("snr", "Signal to noise", "", "of b0", lambda facts: facts.quality.snr_b0),
    FactMeasure("cnr", "Contrast to noise", "", "directions over misfit",
                lambda facts: facts.quality.cnr),
    FactMeasure("misfit", "Tensor misfit", "", "fraction of b0, in white matter",
                lambda facts: facts.quality.tensor_residual),
    FactMeasure("neighbours", "Neighbour correlation", "", "of volumes with nearest directions",
                lambda facts: facts.quality.neighbour_correlation),
    FactMeasure("fa", "Mean FA", "", "of white matter",
                lambda facts: facts.quality.mean_fa_white_matter),
    FactMeasure("brain", "Brain volume", "ml", "of the mask", lambda facts: facts.mask.volume_ml),
    FactMeasure("dice", "Overlap with template", "", "Dice of the brains",
                lambda facts: facts.registration.dice),
    FactMeasure("coverage", "Field of view", "", "share of the template's brain",
                lambda facts: facts.registration.coverage),
    FactMeasure("information", "Match with template", "", "normalised mutual information",
                lambda facts: facts.registration.information),
    FactMeasure("residual", "Sampling residual", "", "RMS of S/b0",
                lambda facts: facts.sphere.residual_rms),
)  # fmt: skip
"""In the order in which they are shown."""


def robust_distances(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the robust distance (n,) of each value from the median; 0 where none spread.

    >>> robust_distances(np.array([1.0, 2.0, 3.0, 4.0, 40.0])).round(1).tolist()
    [1.3, 0.7, 0.0, 0.7, 25.0]
    """
    return _distances(values, values)


def _distances(
    values: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    middle = np.median(others)
    spread = float(np.median(np.abs(others - middle)))
    if spread == 0:
        return np.zeros(len(values))
    return np.asarray(0.6745 * np.abs(values - middle) / spread)


@dataclass(frozen=True, slots=True)
class UsualRange:
    """The middle 90 % of other scans, how many there are, and whether this one is far."""

    low: float
    high: float
    count: int
    far: bool


def usual_range(value: float | None, others: Sequence[float | None]) -> UsualRange | None:
    """Compare a value with those of other scans; nothing if there are too few of them.

    >>> usual_range(30.0, [1.0, 2.0, 3.0, 4.0, 5.0])
    UsualRange(low=1.2, high=4.8, count=5, far=True)
    >>> usual_range(2.0, [1.0, 2.0]) is None
    True
    """
    known = np.array([other for other in others if other is not None], np.float64)
    if len(known) < FEWEST_OTHERS:
        return None
    usual = known[robust_distances(known) <= FAR]
    low, high = (float(edge) for edge in np.percentile(usual, [5, 95]))
    far = value is not None and bool(_distances(np.array([value]), known)[0] > FAR)
    return UsualRange(low, high, len(known), far)
