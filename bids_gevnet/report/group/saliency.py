"""Say what held-out predictions rest on, and draw it where it is distinguishable from chance."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from markupsafe import Markup

from bids_gevnet.bids.reading import read_json
from bids_gevnet.facts.saliency import AngleSaliency, RegionSaliency, SaliencyFacts
from bids_gevnet.learn.evaluate.permutation import p_text
from bids_gevnet.learn.evaluate.saliency_evidence import LEVEL, mean_correlation
from bids_gevnet.report.figures.brain import AXES, Sampler, Slice, bounding_box, window
from bids_gevnet.report.figures.drawing import (
    PALETTE,
    SOFT,
    colour_table,
    figure,
    to_bytes,
    to_png_uri,
    to_svg,
)
from bids_gevnet.report.scan_files import Volume, read_volume

_POSITIONS = (
    *((2, z) for z in (-28.0, -10.0, 8.0, 26.0, 44.0)),
    *((1, y) for y in (-40.0, -18.0, 10.0)),
    *((0, x) for x in (-30.0, 2.0, 30.0)),
)
_COLOURS = "inferno"
_OPACITY = 0.9
_REGIONS_SHOWN = 8
MAP, P_MAP, GRADIENTS = "saliency.nii.gz", "saliency_p.nii.gz", "sensitivity.nii.gz"


@dataclass(frozen=True)
class SaliencyView:
    """What the report shows of one task's saliency.

    Attributes
    ----------
    title : str
        Of the task.
    facts : SaliencyFacts
    verdict : str
        What can be said, in a sentence or two.
    slices : list of Slice
        Empty where no voxel is distinguishable from chance.
    low, high : float
        z at the ends of the colours.
    bar : str
    glass : str
        Data URI: the highest values along each axis.
    angles : Markup or None
        Chart by angle to the local fibre.
    regions : list of RegionSaliency
        With the largest z, first.
    more_regions : list of RegionSaliency
    shells : list of (float, float)
        b-value and share in the squared gradients of each shell; empty where there is one.
    """

    title: str
    facts: SaliencyFacts
    verdict: str
    slices: list[Slice] = field(default_factory=list)
    low: float = 0.0
    high: float = 0.0
    bar: str = ""
    glass: str = ""
    angles: Markup | None = None
    regions: list[RegionSaliency] = field(default_factory=list)
    more_regions: list[RegionSaliency] = field(default_factory=list)
    shells: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Agreement:
    """How much two maps are alike: correlations of tested contributions and of gradients."""

    what: str
    contributions: float | None
    gradients: float | None


def read_saliency(
    path: Path, template: tuple[Volume, Volume] | None, *, title: str, p: float | None, name: str
) -> SaliencyView | None:
    """Describe what `bids_gevnet.learn.evaluate.saliency_maps` wrote; None if it is not there.

    Parameters
    ----------
    path : Path
        A saliency.json.
    template : (Volume, Volume) or None
        What the map is laid over, and its mask; without it there are no slices.
    title : str
        Of the task.
    p : float or None
        Of the permutation test of the network's predictions on the folds.
    name : str
        Prefix of identifiers in the page.
    """
    facts, _ = SaliencyFacts.from_json(read_json(path))
    if not facts.scans:
        return None
    verdict = _verdict(facts, p)
    if p is None or p >= LEVEL or facts.significant_voxels is None:
        return SaliencyView(title, facts, verdict)
    found = any((row.p or 1) < LEVEL for row in facts.regions)
    angles = any((row.p or 1) < LEVEL for row in facts.angles)
    shown = list(facts.regions) if found or facts.significant_voxels else []
    view = SaliencyView(
        title,
        facts,
        verdict,
        angles=draw_angles(facts.angles, name=name) if angles else None,
        regions=shown[:_REGIONS_SHOWN],
        more_regions=shown[_REGIONS_SHOWN:],
        shells=_shells(facts),
    )
    image, chances = (read_volume(path.with_name(n)) for n in (MAP, P_MAP))
    if image is None or chances is None or image.data.shape != chances.data.shape:
        return view
    significant = Volume(np.where(chances.data < LEVEL, image.data, 0.0), image.affine)
    if not (significant.data > 0).any():
        return view
    inside = significant.data[significant.data > 0]
    low, high = float(facts.needed_z or inside.min()), float(inside.max())
    return dataclasses.replace(
        view,
        slices=[] if template is None else overlay_slices(significant, *template, low, high),
        low=low,
        high=high,
        bar=to_png_uri(np.arange(256, dtype=np.uint8)[None], colour_table(_COLOURS)),
        glass=draw_glass(significant, low, high),
    )


def _verdict(facts: SaliencyFacts, p: float | None) -> str:
    """Say what can be said about where a network looks."""
    people = f"{facts.people} held-out people" if facts.people else "held-out people"
    if p is None:
        return (
            "The network's predictions could not be tested against chance, so what they rest on "
            "is not shown."
        )
    if p >= LEVEL:
        return (
            f"The network's predictions are not distinguishable from chance ({p_text(p)}). What "
            "they rest on would be noise and anatomy, and is not shown."
        )
    if facts.significant_voxels is None:
        return f"What the predictions rest on is not shown: {facts.reason or 'it was not tested'}."
    if facts.significant_voxels:
        share = 100 * facts.significant_voxels / max(facts.brain_voxels or 1, 1)
        where = ", ".join(f"{mm:.0f}" for mm in facts.peak_mm)
        number = "go with the true number"
        tell = number if facts.of_number else "tell the true class from the others"
        return (
            f"In {facts.significant_voxels} voxels ({share:.1f} % of the brain) contributions to "
            f"the score of {people} {tell}, corrected over all "
            f"voxels ({p_text(facts.p or 1)} at the highest, x, y, z = {where} mm)."
        )
    regions = [row.region for row in facts.regions if (row.p or 1) < LEVEL]
    found = (
        f" Summed over regions, they can in {'; '.join(regions)}."
        if regions
        else " Nor can those of any region. What the network uses is spread out or too weak to be "
        "located with so many people."
    )
    return (
        f"In no voxel can the contributions to the score of {people} be told from chance, "
        f"corrected over all voxels (largest z {facts.largest_z or 0:.1f}, needed "
        f"{facts.needed_z or 0:.1f}): no map is shown.{found}"
    )


def compare_maps(views: Sequence[tuple[SaliencyView, Path]]) -> list[Agreement]:
    """Correlate maps of folds, of networks before and after training, and of tasks.

    Parameters
    ----------
    views : sequence of (SaliencyView, Path)
        With the folder each was read from.
    """
    rows = []
    for view, _ in views:
        facts = view.facts
        rows += [
            Agreement(
                f"{view.title}: two folds", facts.fold_agreement, facts.sensitivity_fold_agreement
            ),
            Agreement(
                f"{view.title}: trained and untrained network",
                facts.untrained_agreement,
                facts.sensitivity_untrained_agreement,
            ),
        ]
    for number, (view, folder) in enumerate(views):
        for other, place in views[number + 1 :]:
            pairs = [_correlate(folder / name, place / name) for name in (MAP, GRADIENTS)]
            rows.append(Agreement(f"{view.title} and {other.title}", *pairs))
    return [row for row in rows if row.contributions is not None or row.gradients is not None]


def _correlate(first: Path, second: Path) -> float | None:
    images = [read_volume(path) for path in (first, second)]
    if any(image is None for image in images):
        return None
    one, other = (image.data for image in images if image is not None)
    if one.shape != other.shape:
        return None
    both = (one != 0) & (other != 0)
    return mean_correlation([one[both], other[both]])


def _shells(facts: SaliencyFacts) -> list[tuple[float, float]]:
    if len(facts.b_values) < 2 or len(facts.b_values) != len(facts.shell_shares):
        return []
    return list(zip(facts.b_values, facts.shell_shares, strict=True))


def draw_angles(angles: Sequence[AngleSaliency], *, name: str) -> Markup | None:
    """Draw contributions by angle to the local fibre; bins that stand out are filled."""
    rows = [row for row in angles if None not in (row.low, row.high, row.density)]
    if not rows:
        return None
    with figure(4.6, 2.5) as (drawing, ax):
        ax.axhline(1, ls=":", color=SOFT, lw=1)
        ax.axhline(0, color=SOFT, lw=0.8)
        for row in rows:
            low, high = row.low or 0.0, row.high or 0.0
            strong = (row.p if row.p is not None else 1) < LEVEL
            ax.bar(
                (low + high) / 2,
                row.density or 0.0,
                width=0.86 * (high - low),
                color=PALETTE[0] if strong else "none",
                edgecolor=PALETTE[0] if strong else SOFT,
                lw=1,
            )
        ax.set_xticks([row.low or 0.0 for row in rows] + [90])
        ax.set_xlabel("Angle between direction and local fibre (degrees)")
        ax.set_ylabel("Contribution")
        strongest = max(rows, key=lambda row: row.density or 0.0)
        return to_svg(
            drawing,
            name,
            "Contribution per direction by angle to the local fibre, 1 the mean over all; highest "
            f"from {strongest.low:.0f} to {strongest.high:.0f} degrees.",
        )


def overlay_slices(
    values: Volume, template: Volume, mask: Volume, low: float, high: float
) -> list[Slice]:
    """Lay a map over the template; below `low` the template shows alone."""
    box = bounding_box(mask)
    if box is None:
        return []
    below, above = Sampler(template, order=1), Sampler(values)
    top = window(template, mask)
    table = colour_table(_COLOURS)
    slices = []
    for axis, position in _POSITIONS:
        if not box[0][axis] < position < box[1][axis]:
            continue
        grey = 0.7 * to_bytes(below.slice(box, axis, position), 0, top)[..., None]
        shown = above.slice(box, axis, position)
        share = np.clip((shown - low) / max(high - low, 1e-12), 0, 1)[..., None]
        opacity = _OPACITY * np.sqrt(share)
        mixed = (1 - opacity) * grey + opacity * table[to_bytes(shown, low, high)]
        height, width = shown.shape
        picture = to_png_uri(np.rint(mixed).astype(np.uint8))
        name = f"{'xyz'[axis]} = {position:.0f} mm"
        slices.append(Slice(name, AXES[axis], width, height, {"saliency": picture}))
    return slices


def draw_glass(image: Volume, low: float, high: float) -> str:
    """Draw the highest values along each axis with Nilearn, as a data URI."""
    import nibabel as nib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from nilearn.plotting import plot_glass_brain

    # A figure of our own: pyplot would keep it, and reports may be built in threads.
    drawing = Figure(figsize=(9.0, 2.9), facecolor="black")
    FigureCanvasAgg(drawing)
    plot_glass_brain(
        nib.Nifti1Image(image.data.astype(np.float32), image.affine),
        display_mode="lyrz",
        figure=drawing,
        cmap=_COLOURS,
        threshold=low,
        vmin=0,
        vmax=high,
        colorbar=False,
        black_bg=True,
        plot_abs=False,
    )
    stream = io.BytesIO()
    drawing.savefig(stream, format="png", dpi=110, facecolor="black", metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
