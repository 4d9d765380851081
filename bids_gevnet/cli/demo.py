"""`make demo`: a phantom cohort through all levels, small enough for a laptop, with an answer.

Twelve simulated people in each of two groups differ in one thing: the angle at which fibres cross
in a known region, with the mean over directions the same. Scans go through the real
preprocessing; voxels and sphere are coarse so that training takes minutes. Strength of the effect
and length of training were chosen on cohorts of other seeds.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bids_gevnet.cli import phantom, run

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
    for path in sorted(output.glob("models/*/saliency.nii.gz")):
        print(f"  {compare_with_truth(path)}")
    print(
        "\nThree things worth looking at, in this order:\n"
        f"  {report}\n"
        "      the answer first, what simpler models reach beside the network, where it looks\n"
        f"  {subjects[0]}\n"
        "      one scan: how well it was corrected, its place in the template, its spheres\n"
        f"  {output / 'group_predictions.tsv'}\n"
        "      every held-out prediction; all figures of the report follow from this table\n"
        "\nThese are results on simulated scans; they say nothing about patients."
    )
    return 0


def compare_with_truth(saliency: Path) -> str:
    """Say whether a phantom study's saliency, a map of z, is high where groups truly differ."""
    import nibabel as nib
    import numpy as np

    from bids_gevnet.phantom.anatomy import grid_points
    from bids_gevnet.phantom.fibres import crossing_region

    image = nib.load(saliency)
    values = np.asarray(image.dataobj, float)
    region = crossing_region(grid_points(values.shape, image.affine)) > 0.5
    inside, outside = values[region & (values != 0)], values[~region & (values != 0)]
    if inside.size == 0 or outside.size == 0:
        return "The network's saliency was not compared with the truth: no voxel lies in it."
    above = float(np.mean(inside[:, None] > outside[None]))
    return (
        f"Where the network looks: mean z {inside.mean():.1f} in the region that truly differs, "
        f"{outside.mean():.1f} elsewhere; a voxel there ranks above one elsewhere {above:.0%} of "
        "the time (50 % is chance)."
    )


if __name__ == "__main__":
    sys.exit(main())
