"""Show orientation functions where fibres cross: one coronal slice, chosen by the data."""

from dataclasses import dataclass

import nibabel as nib
import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import SAMPLES
from bids_gevnet.bids.samples import sample_volumes
from bids_gevnet.dwi.orientation import count_fibres, orientation_functions
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.report.figures.brain import (
    AXES,
    PIXEL_MM,
    Box,
    Sampler,
    Slice,
    inner,
    position_label,
    window,
)
from bids_gevnet.report.figures.drawing import colour_bar, to_bytes, to_png_uri
from bids_gevnet.report.figures.glyph_field import (
    AMPLITUDE_COLOURS,
    GlyphField,
    draw_glyph_field,
    facing_directions,
)
from bids_gevnet.report.scan_files import BROKEN, ScanFiles, Volume
from bids_gevnet.report.subject.sections import DEFAULT_NSIDE, TemplateSpace, white_matter
from bids_gevnet.sphere.resampling import distinct_directions

WINDOW = (34, 26)
"""Voxels of the picture, across and up."""

PIXELS_PER_VOXEL = 20
_PLANES_MM = 4.0
"""Coronal slices are compared at this distance: crossings reach further than that."""

_WHITE_SHARE = 0.3
"""Share of the brain's inside, by energy of degree 2, that is looked at for crossings."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """The glyphs, where they are, and how many voxels hold two fibres.

    Attributes
    ----------
    field : GlyphField
    locator : Slice
        The whole slice with the window as an outline.
    position : str
        Of the slice.
    crossing, voxels : int
        White-matter voxels of the window with two or more fibres, and all of them.
    bar : str
        Colour bar as a data URI.
    """

    field: GlyphField
    locator: Slice
    position: str
    crossing: int
    voxels: int
    bar: str


def show_crossings(scan: ScanFiles, space: TemplateSpace) -> Crossings | None:
    """Draw glyphs on the coronal slice with most crossing fibres; nothing without samples.

    Where no fibres cross it is the slice with most white matter.
    """
    nside, b_values = scan.facts.sphere.nside or DEFAULT_NSIDE, scan.facts.sphere.b_values
    if space.mask is None or space.series is None or space.box is None or not b_values:
        return None
    b_value = max(b_values)  # of several shells the one that tells angles best
    second = space.rish.get(2)
    if second is None or second.data.shape != space.mask.data.shape:
        return None
    inside = space.mask.data > 0.5
    white = white_matter(inner(space.mask).data > 0.5, second.data, _WHITE_SHARE)
    step = max(1, round(_PLANES_MM / float(np.linalg.norm(space.mask.affine[:3, 1]))))
    looked_at = inside & (np.arange(inside.shape[1]) % step == 0)[:, None]
    samples = read_samples(scan, looked_at, nside, b_values.index(b_value))
    if samples is None or not (white & looked_at).any():
        return None
    try:
        two = _two_fibres(samples, looked_at, white, nside=nside, b_value=b_value)
        # Coarse voxels may show no crossing at all; then the most white matter is worth a look.
        sought = two if two.any() else white & looked_at
        plane = int(np.argmax(sought.sum(axis=(0, 2))))
        across, up = _densest_window(sought[:, plane])
        shown = np.zeros(inside.shape, bool)
        shown[across, plane, up] = inside[across, plane, up]
        odf = orientation_functions(
            samples[shown[looked_at]], facing_directions(), nside=nside, b_value=b_value
        )
    except (BidsGevnetError, ValueError, np.linalg.LinAlgError):
        return None
    values = np.zeros((*shown[:, plane].shape, odf.shape[1]), np.float32)
    values[shown[:, plane]] = odf - odf.min(axis=1, keepdims=True)
    part = np.s_[across, plane, up]
    return Crossings(
        draw_glyph_field(
            values[across, up], shown[part], white[part], pixels_per_voxel=PIXELS_PER_VOXEL
        ),
        _locate(space.series.b0, space.mask, space.box, plane, (across, up)),
        position_label(1, float((space.mask.affine @ [0, plane, 0, 1])[1])),
        int(two[part].sum()),
        int(white[part].sum()),
        colour_bar(AMPLITUDE_COLOURS),
    )


def _two_fibres(
    samples: npt.NDArray[np.float32],
    looked_at: npt.NDArray[np.bool_],
    white: npt.NDArray[np.bool_],
    *,
    nside: int,
    b_value: float,
) -> npt.NDArray[np.bool_]:
    """Find the white-matter voxels of two or more fibres, like most of their neighbours.

    Noise makes a second maximum in single voxels; where fibres cross, a whole region has one.
    """
    from scipy.ndimage import uniform_filter

    candidates = white & looked_at
    odf = orientation_functions(
        samples[candidates[looked_at]], distinct_directions(nside), nside=nside, b_value=b_value
    )
    two = np.zeros(white.shape, np.float32)
    two[candidates] = count_fibres(odf, nside) >= 2
    around = uniform_filter(two, size=(3, 1, 3))
    return np.asarray((two > 0) & (around > 0.5))


def read_samples(
    scan: ScanFiles, wanted: npt.NDArray[np.bool_], nside: int, shell: int
) -> npt.NDArray[np.float32] | None:
    """Read the samples (voxels, 6 nside^2) of some voxels on one shell; or nothing."""
    path, points = scan.standard(SAMPLES), 6 * nside**2
    try:
        image = nib.load(path, keep_file_open=True)
        if image.ndim != 4 or image.shape[:3] != wanted.shape:
            return None
        volumes = sample_volumes(path, image.shape[3])[shell * points : (shell + 1) * points]
        if len(volumes) != points:
            return None
        samples = np.empty((int(wanted.sum()), len(volumes)), np.float32)
        for column, volume in enumerate(volumes):
            samples[:, column] = np.asarray(image.dataobj[..., volume], np.float32)[wanted]
    except (*BROKEN, IndexError):
        return None
    return np.nan_to_num(samples)


def _densest_window(sought: npt.NDArray[np.bool_]) -> tuple[slice, slice]:
    """Find the window of a plane (columns, rows) that holds most of what is sought."""
    columns, rows = (min(size, most) for size, most in zip(sought.shape, WINDOW, strict=True))
    sums = np.pad(sought.astype(np.int64), ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    inside = (
        sums[columns:, rows:] - sums[:-columns, rows:] - sums[columns:, :-rows]
        + sums[:-columns, :-rows]
    )  # fmt: skip
    left, low = np.unravel_index(int(np.argmax(inside)), inside.shape)
    return slice(int(left), int(left) + columns), slice(int(low), int(low) + rows)


def _locate(b0: Volume, mask: Volume, box: Box, plane: int, part: tuple[slice, slice]) -> Slice:
    """Draw the whole coronal slice, with the window as an outline."""
    across, up = part
    ends = np.array([[across.start, plane, up.start], [across.stop, plane, up.stop]]) - 0.5
    world = ends @ b0.affine[:3, :3].T + b0.affine[:3, 3]
    position = float((b0.affine @ [0, plane, 0, 1])[1])
    grey = to_bytes(Sampler(b0, order=1).slice(box, 1, position), 0, window(b0, mask))
    height, width = grey.shape
    left, right = sorted((world[:, 0] - box[0][0]) / PIXEL_MM)
    top, bottom = sorted((box[1][2] - world[:, 2]) / PIXEL_MM)
    path = f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"
    images = {"scan": to_png_uri(grey)}
    whole = (across.stop - across.start, up.stop - up.start) == b0.data.shape[::2]
    outline = {} if whole else {"window": path}  # an outline around everything says nothing
    return Slice(position_label(1, position), AXES[1], width, height, images, outline)
