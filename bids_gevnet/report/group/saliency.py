"""Draw the mean saliency of held-out predictions on the brain and on the sphere."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.reading import read_json
from bids_gevnet.report.figures.brain import AXES, Sampler, Slice, bounding_box, window
from bids_gevnet.report.figures.drawing import colour_table, to_bytes, to_png_uri
from bids_gevnet.report.figures.sphere import Mark, Scene
from bids_gevnet.report.scan_files import Volume, read_volume
from bids_gevnet.sphere.resampling import expand, healpix_points

_POSITIONS = (
    *((2, z) for z in (-28.0, -10.0, 8.0, 26.0, 44.0)),
    *((1, y) for y in (-40.0, -18.0, 10.0)),
    *((0, x) for x in (-30.0, 2.0, 30.0)),
)
_COLOURS = "inferno"
_OPACITY = 0.9


@dataclass(frozen=True)
class SaliencyView:
    """What the report shows of one task's saliency.

    Attributes
    ----------
    task, network, method : str
    scans, held_out : int
        How many were averaged, and of how many.
    agreement : float or None
        Mean correlation between the maps of two folds.
    slices : list of Slice
    low, high : float
        Values at the ends of the colours.
    bar : str
    glass : str
        Data URI: the highest values along each axis.
    sphere : Scene or None
    sphere_low, sphere_high : float
    peak_mm : tuple of int
        Where the map is highest.
    shells : list of (float, float)
        b-value and share in the squared gradients of each shell; empty where there is one.
    """

    task: str
    network: str
    method: str
    scans: int
    held_out: int
    agreement: float | None
    slices: list[Slice]
    low: float
    high: float
    bar: str
    glass: str
    sphere: Scene | None
    sphere_low: float
    sphere_high: float
    peak_mm: tuple[int, ...]
    shells: list[tuple[float, float]]


def read_saliency(path: Path, template: Volume, template_mask: Volume) -> SaliencyView | None:
    """Draw what `bids_gevnet.learn.evaluate.saliency_maps` wrote; nothing if it cannot be read.

    Parameters
    ----------
    path : Path
        A saliency.json.
    template, template_mask : Volume
        What the map is laid over.
    """
    facts = read_json(path)
    image = read_volume(path.with_name("saliency.nii.gz"))
    scans = facts.get("scans")
    if image is None or not isinstance(scans, list) or not scans or not (image.data > 0).any():
        return None
    inside = image.data[image.data > 0]
    low, high = float(np.median(inside)), float(np.percentile(inside, 99.5))
    directions = _directions(facts.get("directions"), facts.get("nside"))
    agreement = facts.get("fold_agreement")
    peak = np.array(np.unravel_index(int(image.data.argmax()), image.data.shape))
    where = image.affine[:3, :3] @ peak + image.affine[:3, 3]
    held_out = facts.get("held_out_scans")
    return SaliencyView(
        task=str(facts.get("task", "")),
        network=str(facts.get("network", "")),
        method=str(facts.get("method", "")),
        scans=len(scans),
        held_out=held_out if isinstance(held_out, int) else len(scans),
        agreement=float(agreement) if isinstance(agreement, int | float) else None,
        slices=overlay_slices(image, template, template_mask, low, high),
        low=low,
        high=high,
        bar=to_png_uri(np.arange(256, dtype=np.uint8)[None], colour_table(_COLOURS)),
        glass=draw_glass(image, low, high),
        sphere=None if directions is None else sphere_scene(directions),
        sphere_low=0.0 if directions is None else float(directions.min()),
        sphere_high=0.0 if directions is None else float(directions.max()),
        peak_mm=tuple(round(float(value)) for value in where),
        shells=_shells(facts.get("b_values"), facts.get("shell_shares")),
    )


def _directions(values: Any, nside: Any) -> npt.NDArray[np.float64] | None:
    try:
        directions = np.asarray(values, float)
    except (TypeError, ValueError):
        return None
    fits = (
        isinstance(nside, int)
        and directions.shape == (6 * nside**2,)
        and np.isfinite(directions).all()
    )
    return directions if fits else None


def _shells(b_values: Any, shares: Any) -> list[tuple[float, float]]:
    if not (isinstance(b_values, list) and isinstance(shares, list)) or len(b_values) < 2:
        return []
    try:
        return [(float(b), float(share)) for b, share in zip(b_values, shares, strict=True)]
    except (TypeError, ValueError):
        return []


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


def sphere_scene(directions: npt.NDArray[np.float64]) -> Scene:
    """Colour the sphere by direction, opposite ones alike.

    Parameters
    ----------
    directions : (6 nside^2,) array
    """
    from scipy.spatial import ConvexHull

    nside = round((len(directions) / 6) ** 0.5)
    points, values = healpix_points(nside), expand(directions, nside)
    low, high = float(values.min()), float(values.max())
    colours = colour_table(_COLOURS)
    marks = []
    for face in ConvexHull(points).simplices:
        share = (values[face].mean() - low) / max(high - low, 1e-12)
        red, green, blue = colours[int(np.clip(255 * share, 0, 255))]
        marks.append(Mark(tuple(int(i) for i in face), "face", f"#{red:02x}{green:02x}{blue:02x}"))
    axes = 1.17 * np.eye(3)
    count = len(points)
    marks += [Mark((count + i,), "axis", text=letter) for i, letter in enumerate("RAS")]
    return Scene(np.concatenate([points, axes]), marks)
