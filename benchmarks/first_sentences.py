"""What does a clinician read first? Eight phantom studies whose truth is known.

    python benchmarks/first_sentences.py --folder FOLDER --write
    python benchmarks/first_sentences.py --folder FOLDER --studies crossing regression

Each study is a small cohort of still phantoms, brought to the template by their true pose, and
everything after that is `bids_gevnet ... group` with short training. FOLDER/<study>/out then has
the report; the page has the first sentence and the line of numbers of each beside what is true.
These are phantoms, not patients.

A study that is in FOLDER already is not run again.
"""

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pages import RESULTS, current_commit, write_page
from phantom_cohort import link_scans, still_settings, write_cohort

from bids_gevnet.cli.run import main as bids_gevnet
from bids_gevnet.phantom.cohort import ParticipantSpec

TRAINING = (
    "--folds 3 --epochs 8 --samples-per-class 32 --nprocs 1 --devices cpu:1 --no-leave-site-out"
)
PAIR = ("AD", "DLB")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A cohort and what is true of it.

    Parameters
    ----------
    truth : str
    per_group : int
    groups : tuple of str
    effects : dict
        Changes of the phantom's settings.
    chosen : callable
        Which people take part.
    sessions : int
    options : str
        Of the group level.
    """

    truth: str
    per_group: int = 20
    groups: tuple[str, ...] = PAIR
    effects: dict[str, Any] = field(default_factory=dict)
    chosen: Callable[[ParticipantSpec], bool] = lambda _: True
    sessions: int = 1
    options: str = ""


def mostly_at_own_site(spec: ParticipantSpec) -> bool:
    """Leave four of five people out who were not scanned where most of their group were."""
    return spec.site == spec.group or spec.index % 5 == 0


def few_of_the_second(spec: ParticipantSpec) -> bool:
    """Keep eight people of the second group: two at each site in four folds."""
    return spec.group == 0 or spec.index < 24


STUDIES = {
    "none": Study(truth="the groups do not differ"),
    "site": Study(
        truth="the groups do not differ, but most of each were scanned at a scanner of their own",
        per_group=30,
        chosen=mostly_at_own_site,
    ),
    "global": Study(
        truth="DLB has larger ventricles and thinner grey matter",
        effects={"macro_effect": 0.8},
    ),
    "crossing": Study(
        truth="fibres cross at another angle in DLB, in two balls of 20 mm",
        effects={"micro_effect": 1.0},
    ),
    "both": Study(
        truth="both of these",
        effects={"macro_effect": 0.8, "micro_effect": 1.0},
    ),
    "imbalance": Study(
        truth="DLB has larger ventricles and thinner grey matter; 36 people against 8",
        per_group=36,
        effects={"macro_effect": 0.8},
        chosen=few_of_the_second,
    ),
    "sessions": Study(
        truth="the groups do not differ; everybody was scanned three times",
        per_group=10,
        sessions=3,
    ),
    "regression": Study(
        truth="ventricles widen and grey matter thins by 1 % a year",
        per_group=28,
        groups=("AD",),
        effects={"age_effect": 5.0},
        options="--target age",
    ),
}


def run(name: str, study: Study, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the cohort and run the group level; give the headline."""
    place = folder / name
    still = still_settings(
        per_group=study.per_group, voxel_mm=options.voxel_mm, micro_effect=0.0, seed=options.seed
    )

    def known(spec: ParticipantSpec) -> Path | None:
        """Find the same scans in another study: people of the first group have no effect."""
        alike = (
            other
            for other, its in STUDIES.items()
            if its.groups == study.groups
            and its.sessions == study.sessions == 1
            and (spec.group == 0 or its.effects == study.effects)
        )
        written = (folder / other for other in alike if other != name)
        return next((o for o in written if (o / f"scans/sub-{spec.label}").is_dir()), None)

    write_cohort(
        place,
        dataclasses.replace(still, directions=options.directions, **study.effects),
        study.groups,
        resolution_mm=options.resolution,
        nside=options.nside,
        chosen=study.chosen,
        sessions=study.sessions,
        known=known,
    )
    units = '{"age": {"Units": "year"}}'
    (place / "raw" / "participants.json").write_text(units, encoding="utf-8")
    output = link_scans(place, "out")
    metrics = output / "group_metrics.json"
    if not metrics.is_file():
        words = shlex.split(f"{options.training} {study.options}")
        code = bids_gevnet(
            [str(place / "raw"), str(output), "group", *words, "-w", str(place / "work")]
        )
        if code:
            raise SystemExit(code)
    (task,) = json.loads(metrics.read_text(encoding="utf-8"))["tasks"]
    headline: dict[str, Any] = task["headline"] | {"people": task["n_participants"]}
    return headline


def describe(options: argparse.Namespace) -> str:
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/first_sentences.py", *words])
    return (
        f"# First sentences\n\n`{command}`, commit {current_commit()}, seed {options.seed}. "
        f"Phantoms, not patients: {options.voxel_mm:g} mm scans on a grid of "
        f"{options.resolution:g} mm, nside {options.nside}, two sites, still heads, true "
        f"registration; group level with `{options.training}`."
    )


def main() -> None:
    """Run the studies and print their first sentences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--directions", type=int, default=24, help="at the first site")
    parser.add_argument("--resolution", type=float, default=16.0)
    parser.add_argument("--nside", type=int, default=1)
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--training", default=TRAINING, help="options of the group level")
    parser.add_argument("--folder", type=Path, required=True, help="cohorts and reports go here")
    parser.add_argument("--write", action="store_true", help="write results/first_sentences.md")
    options = parser.parse_args()
    parts = [describe(options)]
    for name in options.studies:
        study = STUDIES[name]
        found = run(name, study, options.folder, options)
        parts.append(
            f"## {name.capitalize()}\n\nTrue: {study.truth} ({found['people']} people).\n\n"
            f"> {found['sentence']}\n\n{found['numbers']}"
        )
        print(parts[-1], flush=True)
        if options.write:
            write_page(RESULTS / "first_sentences.md", "\n\n".join(parts))


if __name__ == "__main__":
    main()
