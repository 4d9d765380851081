"""`make demo`: a phantom cohort through all levels, small enough for a laptop, with an answer.

Sixteen simulated people in each of two groups differ in one thing: the angle at which fibres cross
in a known region, with the mean over directions the same. Scans go through the real
preprocessing; voxels and sphere are coarse so that training takes minutes. Number of people,
strength of the effect and folds were chosen on cohorts of other seeds (11 to 14, still heads): a
stronger effect is seen by FA as well, and with fewer people the network misses it now and then.
"""

import dataclasses
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bids_gevnet.bids.reading import read_json
from bids_gevnet.cli import phantom, run
from bids_gevnet.facts.saliency import SaliencyFacts
from bids_gevnet.interfaces.template_grid import load_template
from bids_gevnet.phantom import PhantomSettings
from bids_gevnet.phantom.anatomy import grid_points
from bids_gevnet.phantom.effects import group_state
from bids_gevnet.phantom.fibres import CROSSING_CENTRE_MM, REGION_RADIUS_MM, crossing_region

_PER_GROUP, _VOXEL_MM = "16", "8"
_COHORT = (
    *("--groups", "AD,DLB", "--per-group", _PER_GROUP, "--sites", "2", "--seed", "5"),
    *("--effects", "micro", "--micro-effect", "1.2"),
    *("--voxel-mm", _VOXEL_MM, "--directions", "24"),
)
_PREPROCESSING = ("--output-resolution", "16", "--nside", "2", "--skip-bids-validation")
_TRAINING = ("--no-leave-site-out",)
_WIDTH = 79
_VIEWS = ("from the right", "from behind", "from above")


def main(argv: Sequence[str] | None = None) -> int:
    """Write a phantom cohort, run both levels on it and say what there is to see."""
    folder = Path((argv or sys.argv[1:] or ["demo"])[0])
    cohort, output = folder / "cohort", folder / "derivatives"
    started = time.monotonic()
    if not (cohort / "dataset_description.json").exists():
        print(
            f"1. A phantom cohort: {2 * int(_PER_GROUP)} simulated people, 2 scanners, in {cohort}"
        )
        code = phantom.main([str(cohort), *_COHORT])
        if code:
            return code
    elif _is_another(cohort):
        print(
            f"Expected the demo's cohort in {cohort}; found another one, perhaps of an earlier "
            f"version. What to do: remove {folder}, or choose another folder: make demo DEMO=DIR."
        )
        return 2
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


def _is_another(cohort: Path) -> bool:
    """Whether a cohort was made with other settings than the demo's."""
    wanted = json.loads(json.dumps(dataclasses.asdict(_settings())))
    return bool(read_json(cohort / "sourcedata" / "truth" / "settings.json") != wanted)


def _settings() -> PhantomSettings:
    return phantom.settings_from_options(phantom.build_parser().parse_args(["cohort", *_COHORT]))


def tell_results(output: Path) -> int:
    """Print the answer, where the network looked, and what to open; 1 without a group report."""
    report = output / "group_report.html"
    subjects = sorted(output.glob("sub-*.html"))
    if not report.exists() or not subjects:
        print(f"There is no group report in {output}.")
        return 1
    metrics = json.loads((output / "group_metrics.json").read_text(encoding="utf-8"))
    _say("Planted", _planted())
    for task in metrics["tasks"]:
        _say("Found", task["headline"]["sentence"])
    places = [(report, "the answer first, then what simpler models reach, and what it rests on")]
    for path in sorted(output.glob("models/*/saliency.nii.gz")):
        _say("Where", compare_with_truth(path))
        picture = path.with_name("saliency_and_truth.png")
        draw_beside_truth(path, picture)
        places.append((picture, "where the network looked, beside where the groups truly differ"))
    one_scan = (
        "one scan: its fibres in colour, its motion, its place in the template, its spheres; it "
        f"warns of the gradient table, which voxels of {_VOXEL_MM} mm cannot confirm"
    )
    places += [
        (subjects[0], one_scan),
        (
            output / "group_predictions.tsv",
            "every held-out prediction, from which all figures follow",
        ),
    ]
    print("\nThree things worth looking at, in this order:")
    for path, about in places[:3]:
        print(f"  {path}\n{textwrap.indent(textwrap.fill(about, _WIDTH - 6), ' ' * 6)}")
    print("\nThese are results on simulated scans; they say nothing about patients.")
    return 0


def _planted() -> str:
    """Say how the groups of the cohort were made to differ."""
    settings = _settings()
    usual, changed = (group_state(settings, group).crossing_angle_deg for group in (0, 1))
    return (
        f"In one group fibres cross at {changed:.0f} instead of {usual:.0f} degrees, in a region "
        f"of {REGION_RADIUS_MM:.0f} mm radius on either side of the brain. Nothing else differs "
        "between the groups; the mean over directions is the same in both."
    )


def _say(head: str, text: str) -> None:
    """Print a paragraph beside its heading."""
    print(textwrap.fill(text, _WIDTH, initial_indent=f"{head:9}", subsequent_indent=" " * 9))


def compare_with_truth(saliency: Path) -> str:
    """Say how much of a phantom study's saliency lies where its groups truly differ."""
    values, region, affine = _read_with_truth(saliency)
    brain = values != 0
    inside, outside = values[region & brain], values[~region & brain]
    if inside.size == 0 or outside.size == 0:
        return "The network's saliency was not compared with the truth: no voxel lies in it."
    peak = affine[:3, :3] @ np.unravel_index(int(values.argmax()), values.shape) + affine[:3, 3]
    mirrored = np.array([abs(peak[0]), *peak[1:]])
    distance = float(np.linalg.norm(mirrored - CROSSING_CENTRE_MM))
    above = float(np.mean(inside[:, None] > outside[None]))
    found = int(np.sum(inside >= np.sort(values[brain])[-inside.size]))
    return (
        f"The voxel that the network's answers rest on most is {distance:.0f} mm from the centre "
        f"of the region that truly differs. Of the {inside.size} strongest voxels {found} lie in "
        f"that region ({inside.size**2 / brain.sum():.1f} by chance); a voxel there ranks above "
        f"one elsewhere {above:.0%} of the time (50% by chance). "
        f"{_tested(saliency.with_name('saliency.json'))}"
    ).rstrip()


def _tested(path: Path) -> str:
    """Say what the study itself could tell without knowing the truth."""
    facts, _ = SaliencyFacts.from_json(read_json(path))
    if facts.significant_voxels is None:
        return ""
    return (
        f"Without knowing the truth, the report marks {facts.significant_voxels} of "
        f"{facts.brain_voxels} voxels as beyond chance."
    )


def draw_beside_truth(saliency: Path, picture: Path) -> None:
    """Draw a phantom study's saliency above the region in which its groups truly differ."""
    from matplotlib.figure import Figure

    values, region, affine = _read_with_truth(saliency)
    fullest = [int(np.bincount(places).argmax()) for places in np.nonzero(region)]
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    grid = figure.subplots(2, 3)
    top = max(float(values.max()), 1e-6)
    for axes, volume in zip(grid, (np.clip(values, 0, None), region * top), strict=True):
        for plane, axis in enumerate(axes):
            at_mm = affine[plane, plane] * fullest[plane] + affine[plane, 3]
            _draw_template(axis, plane, at_mm)
            shown, truth = (np.take(each, fullest[plane], plane).T for each in (volume, region))
            place = _edges(values.shape, affine, plane)
            drawn = axis.imshow(
                shown,
                origin="lower",
                cmap="inferno",
                vmin=0,
                vmax=top,
                alpha=np.clip(2 * shown / top, 0, 0.9),  # through weak voxels the brain is seen
                extent=place,
            )
            # Blown up, so that the line follows the edges of voxels.
            truth = np.kron(truth, np.ones((8, 8)))
            axis.contour(truth, [0.5], extent=place, colors="cyan", linewidths=1.5)
            axis.set_title(f"{_VIEWS[plane]}, {'xyz'[plane]} = {at_mm:.0f} mm", fontsize=9)
    grid[0, 0].set_ylabel("where the network looks")
    grid[1, 0].set_ylabel("where the groups differ")
    meaning = "how surely a voxel speaks for the right group (z)"
    figure.colorbar(drawn, ax=grid, shrink=0.6, label=meaning)
    figure.supxlabel(
        "The line is the region in which the groups were made to differ. The brain is the "
        "template's, for orientation.",
        fontsize=9,
    )
    figure.savefig(picture, dpi=120)


def _draw_template(axis: Any, plane: int, at_mm: float) -> None:
    """Draw the template's brain across an axis, mm, and nothing around it."""
    template = load_template(None)
    index = round((at_mm - template.affine[plane, 3]) / template.affine[plane, plane])
    axis.imshow(
        np.take(np.where(template.mask, template.image, 0), index, plane).T,
        origin="lower",
        cmap="gray",
        extent=_edges(template.mask.shape, template.affine, plane),
    )
    left, right, low, high = _edges(template.mask.shape, template.affine, plane)
    axis.set(xticks=[], yticks=[], facecolor="black", xlim=(left, right), ylim=(low, high))


def _edges(
    shape: tuple[int, ...], affine: NDArray[np.float64], plane: int
) -> tuple[float, float, float, float]:
    """Left, right, lower and upper edge of a grid seen along an axis, mm."""
    across, up = (axis for axis in range(3) if axis != plane)
    left, low = (float(affine[a, 3] - affine[a, a] / 2) for a in (across, up))
    width, height = (float(affine[a, a] * shape[a]) for a in (across, up))
    return left, left + width, low, low + height


def _read_with_truth(
    saliency: Path,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    image = nib.load(saliency)
    values = np.asarray(image.dataobj, float)
    region = crossing_region(grid_points(values.shape, image.affine)) > 0.5
    return values, region, image.affine


if __name__ == "__main__":
    sys.exit(main())
