"""What harmonisation takes away between scanners, and what it leaves between groups.

    python benchmarks/harmonisation.py --write

A phantom cohort of three groups at two sites; diagnosis leans on the site (two thirds of AD at A,
two thirds of PD at B). RISH-GLM is fitted to its scans and applied to people who were not among
them and were scanned at both sites: the same head, another scanner, other noise. The difference
between sites is the mean over the brain of |log RISH at A - log RISH at B|, of maps smoothed by 15
mm and averaged over people. The difference between groups is that of PD and AD in the region that
truly differs, degree 2, against the one that would have been found had everybody been scanned at
A. Heads lie still and come to the template by their true pose.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pages import RESULTS, current_commit, write_page
from phantom_cohort import sample_participant, still_settings

from bids_gevnet.harmonisation.features import log_rish_maps
from bids_gevnet.harmonisation.gains import RishGains
from bids_gevnet.harmonisation.glm import fit_rish_glm
from bids_gevnet.harmonisation.rish import DEGREES
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.anatomy import grid_points
from bids_gevnet.phantom.cohort import ParticipantSpec, plan_cohort
from bids_gevnet.phantom.fibres import dispersion_region

PAGE = RESULTS / "harmonisation.md"
SMOOTH_MM = 15.0
NSIDE = 4
WANTED = {0: 70, 2: 70, 4: 50}
"""Per cent of the difference between sites that should go, by degree."""
LEAN = {0: (0, 0, 1), 1: (0, 1), 2: (1, 1, 0)}
"""Sites of the members of each group, in turn."""


@dataclass(frozen=True)
class Scan:
    """One scan in template space."""

    spec: ParticipantSpec
    samples: np.ndarray
    mask: np.ndarray
    affine: np.ndarray
    voxel_mm: float

    @property
    def site(self) -> str:
        """Name of the scanner."""
        return "AB"[self.spec.site]

    def maps(self, gains: RishGains | None = None, fwhm_mm: float = SMOOTH_MM) -> np.ndarray:
        """Log RISH of every degree, harmonised if gains are given."""
        samples = self.samples
        if gains is not None:
            samples = gains.apply(samples, self.site, self.mask)
        return log_rish_maps(samples, self.mask, voxel_mm=self.voxel_mm, fwhm_mm=fwhm_mm)


def scan(settings: PhantomSettings, spec: ParticipantSpec, site: int, voxel_mm: float) -> Scan:
    own = replace(spec, site=site)
    print(".", end="", flush=True)
    return Scan(own, *sample_participant(settings, own, voxel_mm, NSIDE), voxel_mm)


def fit(scans: Sequence[Scan], reference: str | None = None) -> RishGains:
    return fit_rish_glm(
        [log_rish_maps(s.samples, s.mask, voxel_mm=s.voxel_mm) for s in scans],
        participants=[s.spec.label for s in scans],
        sites=[s.site for s in scans],
        groups=[s.spec.diagnosis for s in scans],
        covariates={"age": [s.spec.age for s in scans], "sex": [s.spec.sex for s in scans]},
        reference=reference,
    )


def site_difference(scans: Sequence[Scan], gains: RishGains | None = None) -> np.ndarray:
    """Mean over the brain of |difference of log RISH between sites|, per degree."""
    a, b = (np.mean([s.maps(gains) for s in scans if s.site == site], axis=0) for site in "AB")
    return np.nanmean(np.abs(a - b), axis=(0, 1, 2))


def group_difference(scans: Sequence[Scan], gains: RishGains | None = None) -> float:
    """PD minus AD in the region of the effect: log RISH of degree 2."""
    ad, pd = (
        np.mean([s.maps(gains) for s in scans if s.spec.diagnosis == group], axis=0)
        for group in ("AD", "PD")
    )
    region = dispersion_region(grid_points(scans[0].mask.shape, scans[0].affine)) > 0.5
    return float(np.nanmean((pd - ad)[region][:, DEGREES.index(2)]))


def measure(options: argparse.Namespace) -> list[str]:
    """Rows of the table."""
    settings = still_settings(
        per_group=options.per_group + options.travellers,
        voxel_mm=options.voxel_mm,
        micro_effect=1.0,
        seed=options.seed,
    )
    specs = plan_cohort(settings)
    stay = [s for s in specs if s.index // 3 < options.per_group]
    travel = [s for s in specs if s.index // 3 >= options.per_group]
    sites = [LEAN[s.group][(s.index // 3) % len(LEAN[s.group])] for s in stay]
    size = options.resolution
    training = [scan(settings, s, site, size) for s, site in zip(stay, sites, strict=True)]
    at_a = [
        known if known.spec.site == 0 else scan(settings, s, 0, size)
        for s, known in zip(stay, training, strict=True)
    ]
    pairs = [[scan(settings, s, site, size) for site in (0, 1)] for s in travel]
    print(flush=True)

    gains = fit(training)
    travellers = [each for pair in pairs for each in pair]
    before, after = site_difference(travellers), site_difference(travellers, gains)
    rows = []
    for number, degree in enumerate(DEGREES):
        cut = 100 * (1 - after[number] / before[number])
        alike = np.mean(
            [site_difference(p, gains)[number] / site_difference(p)[number] for p in pairs]
        )
        wanted = f"at least {WANTED[degree]} % less" if degree in WANTED else "-"
        rows.append(
            f"| degree {degree}: difference between sites, people not fitted "
            f"| {before[number]:.3f} "
            f"| {after[number]:.3f}: {cut:.0f} % less (one by one: {100 * (1 - alike):.0f} %) "
            f"| {wanted} |"
        )
    truth = group_difference(at_a)
    found = {
        "before": group_difference(training),
        "after": group_difference(training, fit(training, "A")),
    }
    error = {name: 100 * (value / truth - 1) for name, value in found.items()}
    rows.append(
        f"| difference of groups, truth {truth:.3f} "
        f"| {found['before']:.3f} ({error['before']:+.0f} %) "
        f"| {found['after']:.3f} ({error['after']:+.0f} %) | within 10 % |"
    )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-group", type=int, default=12, help="people fitted, of each group")
    parser.add_argument("--travellers", type=int, default=3, help="people not fitted, likewise")
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--resolution", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"write results/{PAGE.name}")
    options = parser.parse_args()
    rows = measure(options)
    about = (
        f"    python benchmarks/harmonisation.py\n\n{3 * options.per_group} people fitted, "
        f"{3 * options.travellers} scanned at both sites, {options.resolution:g} mm, seed "
        f"{options.seed}, commit {current_commit()}. Phantoms, not patients."
    )
    head = ["| what | before | after | wanted |", "|---|---|---|---|"]
    purpose = __doc__.split("\n\n", 2)[2].strip()
    text = "\n".join(["# Harmonisation", "", about, "", purpose, "", *head, *rows, ""])
    print(text)
    if options.write:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
