"""`make demo`: a phantom cohort through all levels, small enough for a laptop, with an answer.

Twelve simulated people in each of two groups differ in one thing: the angle at which fibres cross
in a known region, with the mean over directions the same. Scans go through the real
preprocessing; voxels and sphere are coarse so that training takes minutes. Strength of the effect
and length of training were chosen on cohorts of other seeds (11 and 12 of benchmarks/learning.py).
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bids_gevnet.cli import phantom, run
from bids_gevnet.phantom.anatomy import grid_points
from bids_gevnet.phantom.fibres import crossing_region

_COHORT = (
    *("--groups", "AD,DLB", "--per-group", "12", "--sites", "2", "--seed", "5"),
    *("--effects", "micro", "--micro-effect", "1.6", "--voxel-mm", "8", "--directions", "24"),
)
_PREPROCESSING = ("--output-resolution", "16", "--nside", "2", "--skip-bids-validation")
_TRAINING = (
    *("--folds", "3", "--epochs", "12", "--samples-per-class", "64", "--learning-rate", "0.003"),
    "--no-leave-site-out",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write a phantom cohort, run both levels on it and say what there is to see."""
    folder = Path((argv or sys.argv[1:] or ["demo"])[0])
    cohort, output = folder / "cohort", folder / "derivatives"
    started = time.monotonic()
    if not (cohort / "dataset_description.json").exists():
        print(f"1. A phantom cohort: 24 simulated people, 2 scanners, in {cohort}")
        code = phantom.main([str(cohort), *_COHORT])
        if code:
            return code
    else:
        print(f"1. The phantom cohort is there already: {cohort}")
    print("2. Participant level: every scan corrected, in MNI space, on the sphere")
    code = run.main([str(cohort), str(output), "participant", *_PREPROCESSING])
    if code:
        return code
    print("3. Group level: harmonise, train and test over folds, and report")
    code = run.main([str(cohort), str(output), "group", *_TRAINING])
    if code:
        return code
    print(f"\nDone in {(time.monotonic() - started) / 60:.1f} minutes.\n")
    return tell_results(output)


def tell_results(output: Path) -> int:
    """Print the answer, where the network looked, and what to open; 1 without a group report."""
    report = output / "group_report.html"
    subjects = sorted(output.glob("sub-*.html"))
    if not report.exists() or not subjects:
        print(f"There is no group report in {output}.")
        return 1
    metrics = json.loads((output / "group_metrics.json").read_text(encoding="utf-8"))
    for task in metrics["tasks"]:
        print(f"{task['headline']['sentence']}\n  {task['headline']['numbers']}")
    places = [(report, "the answer first, then what simpler models reach, and where it looks")]
    for path in sorted(output.glob("models/*/saliency.nii.gz")):
        print(f"  {compare_with_truth(path)}")
        picture = path.with_name("saliency_and_truth.png")
        draw_beside_truth(path, picture)
        places.append((picture, "where the network looked, beside where the groups truly differ"))
    places += [
        (
            subjects[0],
            "one scan: how well it was corrected, its place in the template, its spheres",
        ),
        (
            output / "group_predictions.tsv",
            "every held-out prediction, from which all figures follow",
        ),
    ]
    print("\nThree things worth looking at, in this order:")
    for path, about in places[:3]:
        print(f"  {path}\n      {about}")
    print("\nThese are results on simulated scans; they say nothing about patients.")
    return 0


def compare_with_truth(saliency: Path) -> str:
    """Say how much of a phantom study's saliency lies where its groups truly differ."""
    values, region = _read_with_truth(saliency)
    brain = values != 0
    inside, outside = values[region & brain], values[~region & brain]
    if inside.size == 0 or outside.size == 0:
        return "The network's saliency was not compared with the truth: no voxel lies in it."
    above = float(np.mean(inside[:, None] > outside[None]))
    strongest = np.sort(values[brain])[-inside.size]
    found = int(np.sum(inside >= strongest))
    return (
        f"Where the network looks: of the {inside.size} strongest voxels {found} lie in the "
        f"region that truly differs ({inside.size**2 / brain.sum():.0f} by chance); a voxel there "
        f"ranks above one elsewhere {above:.0%} of the time (50 % by chance)."
    )


def draw_beside_truth(saliency: Path, picture: Path) -> None:
    """Draw a phantom study's saliency above the region in which its groups truly differ."""
    from matplotlib.figure import Figure

    values, region = _read_with_truth(saliency)
    fullest = [int(np.bincount(places).argmax()) for places in np.nonzero(region)]
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    rows = zip(
        figure.subplots(2, 3),
        (np.clip(values, 0, None), (values != 0) * (0.25 + 0.75 * region)),
        ("where the network looks", "where the groups differ"),
        strict=True,
    )
    for axes, volume, title in rows:
        for plane, axis in enumerate(axes):
            axis.imshow(
                np.take(volume, fullest[plane], plane).T,
                origin="lower",
                cmap="magma",
                vmin=0,
                vmax=volume.max(),
            )
            axis.set(xticks=[], yticks=[])
        axes[0].set_ylabel(title)
    figure.savefig(picture, dpi=120)


def _read_with_truth(saliency: Path) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    image = nib.load(saliency)
    values = np.asarray(image.dataobj, float)
    return values, crossing_region(grid_points(values.shape, image.affine)) > 0.5


if __name__ == "__main__":
    sys.exit(main())
