"""What do several shells buy? Phantom groups that differ between shells and in no shell alone.

    python benchmarks/shells.py --write

Two groups of simulated people at two sites, scanned with two shells. Everybody has a smooth random
map of signal changes; where the low shell is brighter, the high shell is brighter too in one group
and darker in the other (`bids_gevnet.phantom.effects`). Each shell alone has the same distribution
in both groups, so that no method can learn anything from it but by chance. The same people, folds
and settings of training for the low shell alone, the high shell alone, and both as two channels of
the network's input, with the paired difference in accuracy between both and each alone.

The reference is a logistic regression on one number of a scan, the correlation over the brain of
the two shells' direction means, each less its mean over the training scans: that the effect is
there, and how well a measure that knows it by heart does. These are phantoms, not patients.

With --folder a run that was stopped goes on where it was.
"""

import argparse
import dataclasses
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from learning import cross_validate, group_settings, read_scan, regression, show
from pages import RESULTS, current_commit, write_page
from phantom_cohort import GROUPS, still_settings, write_cohort

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.interfaces.sphere import SAMPLE_STEP
from bids_gevnet.learn.evaluate.intervals import paired_difference
from bids_gevnet.learn.evaluate.scoring import evaluate_table, read_predictions
from bids_gevnet.learn.train.progress import log
from bids_gevnet.nn.registry import scan_networks
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.settings import ALL_SHELLS, LearningSettings

B_VALUES = (1000.0, 3000.0)
BOTH = "both shells"
REFERENCE = "correlation of the two shells, known effect"


def phantom_settings(options: argparse.Namespace) -> PhantomSettings:
    still = still_settings(
        per_group=options.per_group, voxel_mm=options.voxel_mm, micro_effect=0.0, seed=options.seed
    )
    return dataclasses.replace(
        still,
        b_values=B_VALUES,
        directions=options.directions,
        shell_effect=options.strength,
    )


def measure(options: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """Write the cohort, train and test with each choice of shells; return what was predicted."""
    write_cohort(
        folder,
        phantom_settings(options),
        GROUPS[:2],
        resolution_mm=options.resolution,
        nside=options.nside,
        shell=ALL_SHELLS,
    )
    choices = {f"b = {b:.0f} alone": (number,) for number, b in enumerate(B_VALUES)}
    choices[BOTH] = tuple(range(len(B_VALUES)))
    tables = []
    for name, numbers in choices.items():
        output = folder / name.replace(" ", "")
        take_shells(folder / "scans", output, numbers)
        layout = cross_validate(output, folder / "raw", *group_settings(options, options.network))
        table = read_predictions(layout.predictions_table)
        own = table[(table["kind"] == "network") | (table["model"] == "rish")]
        tables.append(own.assign(model=own["model"] + f", {name}"))
        print(show(json.loads(layout.metrics_file.read_text())), flush=True)
    tables.append(reference(folder / "bothshells", tables[-1]))
    return pd.concat(tables, ignore_index=True)


def differences(table: pd.DataFrame) -> str:
    """Compare the network with both shells and with one among the same held-out people."""
    networks = table[table["kind"] == "network"]
    (task,) = set(networks["task"])
    one, other = (f"prob_{label}" for label in task.split("-v-"))
    right = (networks[other] > networks[one]) == (networks["label"] == task.split("-v-")[1])
    by_scan = right.groupby([networks["model"], networks["scan"]]).first().unstack("model")
    (both,) = (name for name in by_scan if name.endswith(BOTH))
    lines = ["| accuracy with both shells, less that with | difference (95 %) |", "|---|---|"]
    for name in by_scan.columns.drop(both):
        found = paired_difference(
            by_scan[both].to_numpy(bool), by_scan[name].to_numpy(bool), len(by_scan)
        )
        limits = f"({found['low']:+.2f} to {found['high']:+.2f})"
        lines.append(f"| {name.split(', ')[1]} | {found['value']:+.2f} {limits} |")
    return "\n".join(lines)


def take_shells(scans: Path, output: Path, numbers: tuple[int, ...]) -> None:
    """Copy the scans of a cohort with some of their shells."""
    for image in sorted(scans.rglob("*_desc-healpix_dwi.nii.gz")):
        target = output / image.relative_to(scans)
        sidecar = image.with_name(image.name.replace(".nii.gz", ".json"))
        if target.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        mask = image.with_name(image.name.replace("desc-healpix_dwi", "desc-brain_mask"))
        for beside in (mask, *image.parent.glob("*.tsv")):
            shutil.copy(beside, target.with_name(beside.name))
        about = json.loads(sidecar.read_text())
        loaded = nib.load(image)
        shells = np.split(loaded.get_fdata(dtype=np.float32), len(about["BValue"]), axis=3)
        about["BValue"] = [about["BValue"][number] for number in numbers]
        write_json(target.with_name(sidecar.name), about)
        samples = np.concatenate([shells[number] for number in numbers], axis=3)
        write_image(target, samples, loaded.affine, scale=SAMPLE_STEP)


def reference(output: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Predict held-out scans from the correlation of their shells, on the network's folds."""
    own = table[table["kind"] == "network"].reset_index(drop=True)
    labels = own["task"][0].split("-v-")
    truth = own["label"].to_numpy() == labels[1]
    means = []
    for scan in own["scan"]:
        samples, mask = read_scan(output, scan)
        volume = np.full((len(B_VALUES), *mask.shape), np.nan)
        volume[:, mask] = [part.mean(axis=1) for part in np.split(samples, len(B_VALUES), axis=1)]
        means.append(volume)
    signals = np.log(np.maximum(means, 1e-3))  # (scans, shells, X, Y, Z)
    positive = np.zeros(len(own))
    for fold in sorted(set(own["fold"])):
        testing = own["fold"].to_numpy() == fold
        seen = np.isfinite(signals[~testing]).all(axis=(0, 1))
        centred = signals[..., seen] - signals[~testing][..., seen].mean(axis=0)
        values = np.array(
            [[np.corrcoef(np.nan_to_num(low), np.nan_to_num(high))[0, 1]] for low, high in centred]
        )
        model = regression(1)
        model.fit(values[~testing], truth[~testing])
        positive[testing] = model.predict_proba(values[testing])[:, 1]
    changed = {f"prob_{labels[0]}": 1 - positive, f"prob_{labels[1]}": positive}
    return own.assign(kind="baseline", model=REFERENCE, **changed)


def describe(options: argparse.Namespace, seconds: float) -> str:
    """Say in a few lines what was measured and how to repeat it."""
    batch = LearningSettings().batch_size
    steps = options.epochs * -(-2 * options.samples_per_class // batch)
    words = ["FOLDER" if word == str(options.folder) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "benchmarks/shells.py", *words])
    return (
        f"`{command}`, commit {current_commit()}, seed {options.seed}, {seconds / 60:.0f} minutes "
        f"of processor time. Phantoms, not patients: {options.per_group} people a group at two "
        f"sites, b = {B_VALUES[0]:.0f} and {B_VALUES[1]:.0f} s/mm² with {options.directions} "
        f"directions each; the effect between shells {options.strength:g} times its standard "
        "size (15 % of the signal), no other; still heads, true registration. "
        f"{options.voxel_mm:g} mm scans on a grid of {options.resolution:g} mm, "
        f"{6 * options.nside**2} distinct points of the sphere (nside {options.nside}), network "
        f"{options.network}, strides {' '.join(map(str, options.strides))}, {options.folds} "
        f"folds, {options.epochs} epochs of {options.samples_per_class} samples a class ({steps} "
        f"steps of {batch}), learning rate {options.learning_rate:g}."
    )


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--strength", type=float, default=1.0, help="of the effect")
    parser.add_argument("--network", choices=scan_networks(), default="ckn2+gevnet")
    parser.add_argument("--per-group", type=int, default=24)
    parser.add_argument("--directions", type=int, default=12)
    parser.add_argument("--voxel-mm", type=float, default=8.0)
    parser.add_argument("--resolution", type=float, default=16.0)
    parser.add_argument("--nside", type=int, default=1)
    parser.add_argument("--strides", type=int, nargs=4, default=[2, 1, 2, 1])
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples-per-class", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the cohort and the models here")
    parser.add_argument("--write", action="store_true", help="write a page in benchmarks/results")
    parser.add_argument("--page", default="shells", help="its name")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    log.setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as temporary:
        table = measure(options, options.folder or Path(temporary))
    seconds = sum(os.times()[:4])  # of this process and those that trained
    figures = show(evaluate_table(table, seed=options.seed))
    text = f"# Several shells\n\n{describe(options, seconds)}\n\n{figures}\n{differences(table)}\n"
    print(text)
    if options.write:
        write_page(RESULTS / f"{options.page}.md", text)


if __name__ == "__main__":
    main()
