"""Can age be predicted where it shows, and is nothing claimed where it does not? Phantom cohorts.

    python benchmarks/brain_age.py --write

One group of simulated people at two sites. Ventricles widen and grey matter thins with age,
`--age-effect` times 0.2 % a year, beside differences between people that have nothing to do with
age; a second cohort has no effect of age. Heads lie still and are brought to the template by their
true pose; everything after that is `bids_gevnet ... group --target age` itself, with short
training. These are phantoms, not people.
"""

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import RESULTS, current_commit, write_page
from phantom_cohort import link_scans, still_settings, write_cohort

from bids_gevnet.cli.run import main as bids_gevnet
from bids_gevnet.phantom import PhantomSettings


def cohort_settings(options: argparse.Namespace, age_effect: float, seed: int) -> PhantomSettings:
    still = still_settings(
        per_group=options.people, voxel_mm=options.voxel_mm, micro_effect=0.0, seed=seed
    )
    fields = {name: getattr(still, name) for name in still.__dataclass_fields__}
    changes = {"groups": ("HC",), "directions": 16, "age_effect": age_effect}
    return PhantomSettings(**(fields | changes))


def measure(
    options: argparse.Namespace, folder: Path, age_effect: float, seed: int
) -> dict[str, Any]:
    """Write a cohort, run the group level, and return what it found."""
    settings = cohort_settings(options, age_effect, seed)
    write_cohort(folder, settings, ("HC",), resolution_mm=options.resolution, nside=options.nside)
    unit = '{"age": {"Units": "year"}}'
    (folder / "raw" / "participants.json").write_text(unit, "utf-8")
    output = link_scans(folder, "out")
    command = [str(folder / "raw"), str(output), "group", "--target", "age"]
    code = bids_gevnet([*command, *shlex.split(options.training), "-w", str(folder / "work")])
    if code:
        raise SystemExit(code)
    content: dict[str, Any] = json.loads((output / "group_metrics.json").read_text())
    (task,) = content["tasks"]
    return task


def show(task: dict[str, Any], age_effect: float, seed: int) -> str:
    """Write the headline and a table of all models."""
    lines = [
        f"## Age effect {age_effect:g}, seed {seed}",
        "",
        f"> {task['headline']['sentence']}",
        "",
        task["headline"]["numbers"],
        "",
        "| model | correlation | R² | mean absolute error (years) | p, alone |",
        "| --- | --- | --- | --- | --- |",
    ]
    for model in task["models"]:
        scores = model["schemes"]["folds"]
        cells = [_say(scores["pooled"][name]) for name in ("correlation", "r2", "mae")]
        p = scores["permutation"]["correlation"]["p"]
        lines.append(f"| {model['title']} | {' | '.join(cells)} | {p:.4f} |")
    return "\n".join(lines)


def _say(value: dict[str, float]) -> str:
    if value["value"] is None:
        return "n/a"
    return f"{value['value']:.2f} ({value['low']:.2f} to {value['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--age-effects", type=float, nargs="+", default=[5.0, 0.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 9], help="one per effect")
    parser.add_argument("--people", type=int, default=24)
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--resolution", type=float, default=16.0)
    parser.add_argument("--nside", type=int, default=2)
    parser.add_argument(
        "--training",
        default="--folds 4 --epochs 12 --samples-per-class 48 --batch-size 4 --learning-rate 3e-3 "
        "--strides 1 1 2 1 --no-leave-site-out --nprocs 1 --devices cpu:1",
        help="options of the group level",
    )
    parser.add_argument("--folder", type=Path, help="keep cohorts and models here")
    parser.add_argument("--write", action="store_true", help="write results/brain_age.md")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    parts = []
    for effect, seed in zip(options.age_effects, options.seeds, strict=True):
        task = measure(options, folder / f"effect-{effect:g}-seed-{seed}", effect, seed)
        parts.append(show(task, effect, seed))
        print(parts[-1], flush=True)
    head = (
        "# Brain age on phantoms\n\nPhantom results. "
        f"{options.people} simulated people of 50 to 89 years a cohort, voxels of "
        f"{options.voxel_mm:g} mm, {options.resolution:g} mm in template space, nside "
        f"{options.nside}; group level with `{options.training}`; commit {current_commit()}; "
        f"command `python benchmarks/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}`."
    )
    if options.write:
        write_page(RESULTS / "brain_age.md", "\n\n".join([head, *parts]))


if __name__ == "__main__":
    main()
