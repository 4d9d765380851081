"""Evidence of a cross-validation on what its scores rest on, and what it amounts to.

`Evidence` gathers the contributions of held-out people fold by fold; `judge_evidence` tests
voxels, regions and angles (`significance`) and compares folds with each other and with networks
that were not trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.facts.saliency import AngleSaliency, RegionSaliency
from bids_gevnet.learn.evaluate.contributions import ANGLE_BINS, smooth
from bids_gevnet.learn.evaluate.significance import (
    FEWEST_ARRANGEMENTS,
    count_arrangements,
    judge_contributions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.facts.saliency import ExplainedScan, SaliencyFacts
    from bids_gevnet.learn.evaluate.contributions import Explanation
    from bids_gevnet.learn.evaluate.regions import Regions
    from bids_gevnet.learn.evaluate.significance import ContributionTest

    Floats = NDArray[np.floating[Any]]
    Ints = NDArray[np.intp]

LEVEL = 0.05
TOO_FEW = (
    "too few held-out people whose labels could be exchanged within their fold and site to tell "
    "what the network looks at from chance"
)
_LEAST_SHARE = 0.5  # of people whose brain a voxel must be in
_TINY = 1e-30


@dataclass
class Evidence:
    """Contributions of people, gathered fold by fold, of one kind of network.

    Parameters
    ----------
    shape : sequence of int
    classes : int
        Scores of the network; 1 where a number is predicted.
    voxel_mm : float
    """

    shape: Sequence[int]
    classes: int
    voxel_mm: float
    voxels: list[Floats] = field(default_factory=list)
    angles: list[Floats] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)
    strata: list[tuple[int, str]] = field(default_factory=list)
    sensitivity: dict[int, Floats] = field(default_factory=dict)

    def add_fold(
        self, fold: int, people: Sequence[tuple[float, str, Sequence[Explanation]]]
    ) -> None:
        """Add the people of a fold, each with true class or number, site and explained scans.

        Networks of two folds differ in the scale of their scores. Each is divided by the root
        mean square of its contributions, which does not know the labels.
        """
        maps = [np.mean([e.voxels for e in scans], axis=0) for _, _, scans in people]
        scale = max(float(np.sqrt(np.mean(np.square(maps)))), _TINY)
        gradients = []
        for (label, site, scans), voxels in zip(people, maps, strict=True):
            self.voxels.append((voxels / scale).astype(np.float32))
            self.angles.append(np.mean([e.angles for e in scans], axis=0) / scale)
            self.truth.append(label)
            self.strata.append((fold, site))
            for each in scans:
                inside = each.sensitivity[each.sensitivity > 0]
                gradients.append(each.sensitivity / max(_rms(inside), _TINY))
        self.sensitivity[fold] = np.mean(gradients, axis=0)

    @property
    def labels(self) -> NDArray[Any]:
        """True class or number of every person: (n,) array."""
        return np.array(self.truth, dtype=float if self.classes == 1 else np.intp)

    def inside(self) -> NDArray[np.bool_]:
        """Voxels to which enough people contribute: (X, Y, Z) array."""
        share = np.mean([(maps != 0).any(axis=0) for maps in self.voxels], axis=0)
        return np.asarray(share >= _LEAST_SHARE)

    def features(self, inside: NDArray[np.bool_]) -> Floats:
        """Contributions of voxels: (n_people, n_classes, n_voxels) array.

        Smoothed, unlike the sums over regions: a region would take what belongs to the next.
        """
        return np.stack(
            [
                np.stack([smooth(each, self.voxel_mm)[inside] for each in maps])
                for maps in self.voxels
            ]
        )

    def fold_maps(self, inside: NDArray[np.bool_], seed: int) -> list[Floats]:
        """Map z of every fold alone that has people to exchange."""
        values = self.features(inside)
        maps: list[Floats] = []
        for fold in sorted(self.sensitivity):
            own = [i for i, (number, _) in enumerate(self.strata) if number == fold]
            test = judge_contributions(
                values[own], self.labels[own], [self.strata[i] for i in own], seed=seed, count=1
            )
            if test.z.any():
                maps.append(test.z)
        return maps

    def mean_sensitivity(self) -> Floats:
        """Mean over folds: (X, Y, Z) array."""
        return np.asarray(np.mean(list(self.sensitivity.values()), axis=0))


@dataclass
class Gathered:
    """What is averaged over scans and folds beside the evidence.

    Attributes
    ----------
    scans : list of ExplainedScan
    people : int
    shells : list of (n_shells,) arrays
        Shares in the squared gradient.
    sums : list of (float, float)
        Sum of the contributions of a scan, and the difference in score it should be.
    pairs : (ANGLE_BINS,) array
        Pairs of voxel and direction by angle, over all folds.
    """

    scans: list[ExplainedScan] = field(default_factory=list)
    people: int = 0
    shells: list[Floats] = field(default_factory=list)
    sums: list[tuple[float, float]] = field(default_factory=list)
    pairs: Floats = field(default_factory=lambda: np.zeros(ANGLE_BINS))


def judge_evidence(
    plan: SaliencyFacts,
    trained: Evidence,
    untrained: Evidence,
    gathered: Gathered,
    regions: Regions,
) -> tuple[SaliencyFacts, ContributionTest]:
    """Test what was gathered, and write down what it amounts to.

    Parameters
    ----------
    plan : SaliencyFacts
        What is known before.
    trained, untrained : Evidence
        By the networks of the folds, and by the same networks before training.
    gathered : Gathered
    regions : Regions

    Returns
    -------
    facts : SaliencyFacts
    test : ContributionTest
        Of the voxels of ``trained.inside()``.
    """
    seed = plan.seed or 0
    inside = trained.inside()
    options: dict[str, Any] = {"truth": trained.labels, "strata": trained.strata, "seed": seed}
    test = judge_contributions(trained.features(inside), **options)
    before = judge_contributions(untrained.features(inside), **options)
    total, expected = np.array(gathered.sums).T
    facts = replace(
        plan,
        scans=tuple(gathered.scans),
        people=gathered.people,
        shell_shares=tuple(float(share) for share in np.mean(gathered.shells, axis=0)),
        brain_voxels=int(inside.sum()),
        explained_share=_slope(expected, total),
        fold_agreement=mean_correlation(trained.fold_maps(inside, seed)),
        untrained_agreement=mean_correlation([test.z, before.z]),
        sensitivity_fold_agreement=mean_correlation(
            [values[inside] for values in trained.sensitivity.values()]
        ),
        sensitivity_untrained_agreement=mean_correlation(
            [each.mean_sensitivity()[inside] for each in (trained, untrained)]
        ),
    )
    if count_arrangements(trained.labels, trained.strata) < FEWEST_ARRANGEMENTS:
        return replace(facts, reason=TOO_FEW), test
    significant = np.zeros(inside.shape, bool)
    significant[inside] = test.p < LEVEL
    facts = replace(
        facts,
        significant_voxels=int(significant.sum()),
        largest_z=float(test.z.max()),
        needed_z=test.needed,
        p=float(test.p.min()),
        regions=_judge_regions(trained, regions, inside, significant, options),
        angles=_judge_angles(trained, gathered.pairs, options),
    )
    return facts, test


def _judge_regions(
    evidence: Evidence,
    regions: Regions,
    inside: NDArray[np.bool_],
    significant: NDArray[np.bool_],
    options: dict[str, Any],
) -> tuple[RegionSaliency, ...]:
    """Test the sums over regions; the largest z comes first."""
    sums = np.stack([regions.sums(np.where(inside, maps, 0)) for maps in evidence.voxels])
    outside = [
        np.where(inside & (regions.labels == 0), maps, 0).sum((1, 2, 3))
        for maps in evidence.voxels
    ]
    test = judge_contributions(sums, **options)
    rest = judge_contributions(np.stack(outside)[..., None], **options, count=1)
    whole = float(test.total.sum() + rest.total.sum())
    counts = regions.sums(inside.astype(float)).astype(int)
    hits = regions.sums(significant.astype(float)).astype(int)
    rows = [
        RegionSaliency(
            region=name,
            voxels=int(counts[i]),
            significant_voxels=int(hits[i]),
            share=float(test.total[i] / whole) if whole > _TINY else None,
            z=float(test.z[i]),
            p=float(test.p[i]),
        )
        for i, name in enumerate(regions.names)
        if counts[i]
    ]
    return tuple(sorted(rows, key=lambda row: -(row.z or 0.0)))


def _judge_angles(
    evidence: Evidence, pairs: Floats, options: dict[str, Any]
) -> tuple[AngleSaliency, ...]:
    """Test the sums by angle to the fibre; nothing where there is no fibre."""
    if not pairs.all():
        return ()
    test = judge_contributions(np.stack(evidence.angles), **options)
    whole = float(test.total.sum())
    density = test.total / pairs * (pairs.sum() / whole) if whole > _TINY else None
    step = 90 / ANGLE_BINS
    return tuple(
        AngleSaliency(
            low=step * i,
            high=step * (i + 1),
            density=None if density is None else float(density[i]),
            z=float(test.z[i]),
            p=float(test.p[i]),
        )
        for i in range(ANGLE_BINS)
    )


def mean_correlation(maps: Sequence[Floats]) -> float | None:
    """Mean correlation over all pairs of maps; None without a pair that varies."""
    correlations = [
        float(np.corrcoef(one, other)[0, 1])
        for number, one in enumerate(maps)
        for other in maps[number + 1 :]
        if one.size > 2 and one.std() > 0 and other.std() > 0
    ]
    return float(np.mean(correlations)) if correlations else None


def _slope(expected: Floats, found: Floats) -> float | None:
    """Least squares slope through 0 of what contributions add up to over what they should."""
    squares = float(np.square(expected).sum())
    return float(expected @ found) / squares if squares > _TINY else None


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
