"""Where does the network earn its place? Effects of several kinds, cohorts of several sizes.

    python benchmarks/effects.py --folder FOLDER --write
    python benchmarks/effects.py --quick                     # a minute: shows that it runs

Two groups of simulated people at two sites differ in one thing:

- crossing: the angle at which fibres cross in a ball of 20 mm radius on either side;
- dispersion: the fraction of dispersed fibres in another ball, which lowers anisotropy there;
- anisotropy: the same in all white matter, where people of one group differ as well;
- atrophy: larger ventricles and thinner grey matter, all over the brain.

Network and simple models are those of the group level itself, on the same folds: mean RISH
features, whole FA, MD and RISH maps, harmonised like the network's input and by ComBat. Heads lie
still and are brought to the template by their true pose. These are phantoms, not patients.

With --folder a run that was stopped goes on where it was.
"""

import argparse
import dataclasses
import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learning import cross_validate
from pages import RESULTS, current_commit, write_page
from phantom_cohort import link_scans, still_settings, write_cohort

from bids_gevnet.layout import OutputLayout
from bids_gevnet.learn.train.progress import log
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.cohort import ParticipantSpec
from bids_gevnet.settings import ExecutionSettings, LearningSettings

EFFECTS = {
    "none": (("AD", "DLB"), {"micro_effect": 0.0}),
    "crossing": (("AD", "DLB"), {"micro_effect": 1.0}),
    "dispersion": (("AD", "PD"), {"micro_effect": 0.3}),
    "anisotropy": (("AD", "DLB"), {"micro_effect": 0.0, "anisotropy_effect": 1.2}),
    "atrophy": (("AD", "DLB"), {"micro_effect": 0.0, "macro_effect": 0.4}),
}
"""Groups of the phantom that are compared, and strengths of the effects between them.

Chosen so that simple models neither fail nor reach 1.00 with 24 people a group, on cohorts of
seeds 901 and 902, which the page has nothing of.
"""

HEADS = (
    "effect",
    "people a group",
    "network",
    "best simple model",
    "network - simple",
    "network adds",
    "processor minutes",
)
QUICK = {"effects": ["crossing"], "sizes": [4], "epochs": 1, "samples_per_class": 4, "folds": 2}


def phantom_settings(options: argparse.Namespace, effect: str, per_group: int) -> PhantomSettings:
    """Set up a cohort; strengths are those of `EFFECTS` times --strength."""
    strengths = {name: options.strength * value for name, value in EFFECTS[effect][1].items()}
    start = still_settings(
        per_group=per_group, voxel_mm=options.voxel_mm, micro_effect=0.0, seed=options.seed
    )
    return dataclasses.replace(start, directions=options.directions, **strengths)


def learning_settings(options: argparse.Namespace) -> LearningSettings:
    """Take the defaults of the group level, but for what was asked for otherwise."""
    names = ("epochs", "samples_per_class", "learning_rate", "strides")
    asked = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return LearningSettings(
        folds=options.folds, leave_site_out=False, devices="cpu:1", resume=True, **asked
    )


def measure(
    options: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, int, dict[str, Any], float]]:
    """Give effect, people a group, the task's metrics and the processor time, cohort by cohort."""
    execution = ExecutionSettings(random_seed=options.seed, nprocs=1)
    for per_group in options.sizes:
        for effect in options.effects:
            place = _write(options, folder, effect, per_group)
            layout, spent = OutputLayout(place / "out"), place / "seconds.txt"
            if not spent.is_file():  # the last thing that is written
                start = sum(os.times()[:4])
                output = link_scans(place, "out")
                cross_validate(output, place / "raw", learning_settings(options), execution)
                spent.write_text(f"{sum(os.times()[:4]) - start:.1f}", encoding="utf-8")
            (task,) = json.loads(layout.metrics_file.read_text())["tasks"]
            yield effect, per_group, task, float(spent.read_text())


def _write(options: argparse.Namespace, folder: Path, effect: str, per_group: int) -> Path:
    """Write a cohort.

    Cohorts of different sizes have the same first people, and all but one kind have the same
    people of the first group, which has no effect.
    """
    place = folder / f"{effect}-{per_group}"
    alike = [kind for kind in options.effects if "anisotropy_effect" not in EFFECTS[kind][1]]

    def known(spec: ParticipantSpec) -> Path | None:
        kinds = alike if spec.group == 0 and effect in alike else [effect]
        written = (folder / f"{kind}-{size}" for kind in kinds for size in options.sizes)
        name = f"scans/sub-{spec.label}"
        return next((o for o in written if o != place and (o / name).is_dir()), None)

    write_cohort(
        place,
        phantom_settings(options, effect, per_group),
        EFFECTS[effect][0],
        resolution_mm=options.resolution,
        nside=options.nside,
        known=known,
    )
    return place


def row(effect: str, per_group: int, task: dict[str, Any], seconds: float) -> str:
    """Write a cohort as a line of the table."""
    scores = {
        model["model"]: model["schemes"]["folds"]["pooled"]["balanced_accuracy"]
        for model in task["models"]
    }
    titles = {model["model"]: model["title"] for model in task["models"]}
    found = task["headline"]
    network, simple, gap = found["network"], found["simple"], found["difference"]
    cells = (
        effect,
        str(per_group),
        _interval(scores[network]),
        f"{titles[simple]}: {_interval(scores[simple])}",
        _interval(gap),
        {"adds": "yes", "worse": "does worse", "neither": "no"}[found["network_adds"]],
        f"{seconds / 60:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _interval(value: dict[str, Any]) -> str:
    if value["value"] is None:
        return "-"
    bounds = "" if value["low"] is None else f" ({value['low']:.2f} to {value['high']:.2f})"
    return f"{value['value']:.2f}{bounds}"


def describe(options: argparse.Namespace) -> str:
    """Say in a few lines what was measured and how to repeat it."""
    learning = learning_settings(options)
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/effects.py", *words])
    sizes = "; ".join(
        f"{effect} " + " and ".join(f"{options.strength * value:g}" for value in values.values())
        for effect, (_, values) in EFFECTS.items()
        if effect in options.effects and any(values.values())
    ).replace("0 and ", "")
    return (
        f"`{command}`, commit {current_commit()}, seed {options.seed}. Phantoms, not patients, at "
        f"two sites; effects in multiples of the phantom's standard size: {sizes}. Still heads, "
        "true registration. Cohorts of one kind of effect hold each other, "
        "and the people without effect are the same in all kinds but anisotropy, so rows are not "
        "independent. "
        f"{options.voxel_mm:g} mm scans with {options.directions} directions on a grid of "
        f"{options.resolution:g} mm, {6 * options.nside**2} distinct points of the sphere (nside "
        f"{options.nside}). Network {learning.network}, {learning.folds} folds, {learning.epochs} "
        f"epochs of {learning.samples_per_class} samples a class, learning rate "
        f"{learning.learning_rate:g}. "
        "Balanced accuracy of held-out people with 95 % intervals; the best simple model is the "
        "best after the fact of all that stand beside the network, which favours it. The network "
        "adds something where it is better by a test that allows for the choice."
    )


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--effects", nargs="+", choices=EFFECTS, default=list(EFFECTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[12, 24, 48], help="per group")
    parser.add_argument("--strength", type=float, default=1.0, help="of every effect")
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--directions", type=int, default=24, help="at the first site")
    parser.add_argument("--resolution", type=float, default=16.0)
    parser.add_argument("--nside", type=int, default=2)
    parser.add_argument("--folds", type=int, default=LearningSettings().folds)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--samples-per-class", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--strides", type=int, nargs=4)
    parser.add_argument("--seed", type=int, default=40)
    parser.add_argument("--folder", type=Path, help="keep the cohorts and the models here")
    parser.add_argument("--quick", action="store_true", help="show that it runs")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/effects.md")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    return options


def main() -> None:
    """Measure and print, cohort by cohort."""
    options = read_options()
    log.setLevel(logging.INFO)
    lines = [
        f"# Kinds of effects, sizes of cohorts\n\n{describe(options)}\n",
        f"| {' | '.join(HEADS)} |",
        "|---|---:|---|---|---|---|---:|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for found in measure(options, options.folder or Path(temporary)):
            lines.append(row(*found))
            print(lines[-1], flush=True)
            if options.write:
                write_page(RESULTS / "effects.md", "\n".join(lines))


if __name__ == "__main__":
    main()
