"""Compute what each section of the subject report shows, from the files of one scan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import BRAIN_MASK, MEAN_B0, SAMPLES, SERIES, rish_ending
from bids_gevnet.bids.samples import sample_volumes
from bids_gevnet.dwi.gradients import direction_angle_deg
from bids_gevnet.dwi.shells import PREFERRED_B, Shells, divide_by_b0, find_shells
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.report.figures.brain import (
    Box,
    ColourMap,
    Slice,
    bounding_box,
    draw_map,
    draw_outlines,
    draw_overlay,
    inner,
)
from bids_gevnet.report.figures.sphere import (
    Scene,
    VoxelSignal,
    common_radius,
    glyph_scene,
    gradient_scene,
    voxel_signal,
)
from bids_gevnet.report.scan_files import (
    Gradients,
    ScanFiles,
    SeriesSummary,
    Volume,
    read_gradients,
    read_template,
    read_volume,
    summarise_series,
)
from bids_gevnet.settings import PreprocessingSettings

DEFAULT_NSIDE = PreprocessingSettings().nside
DEGREES = (0, 2, 4, 6)
AXIAL_MM = (-28.0, -10.0, 8.0, 26.0, 44.0)
"""Template slices through cerebellum, pons, basal ganglia, corona radiata and vertex."""

OVERLAY_POSITIONS = (
    *((2, z) for z in (-30.0, 6.0, 36.0)),
    *((1, y) for y in (-60.0, -20.0, 20.0)),
    *((0, x) for x in (-46.0, -20.0, 2.0, 24.0, 48.0)),
)
MAP_POSITIONS = (*((2, z) for z in AXIAL_MM), (1, -18.0), (0, 2.0))


@dataclass(frozen=True)
class GradientView:
    """Gradient tables on a sphere, and how far they turned."""

    scene: Scene
    groups: list[tuple[str, str]]
    shells: list[tuple[float, int]]
    b0_volumes: int
    median_turn_deg: float | None
    largest_turn_deg: float | None


def gradient_view(scan: ScanFiles, b0_threshold: float) -> GradientView | None:
    """Compare the table of the dataset, the corrected one and the one in template space."""
    after = read_gradients(scan.native(SERIES))
    standard = read_gradients(scan.standard(SERIES))
    before = _table_before(scan)
    known = [table for table in (after, standard, before) if table is not None]
    if not known:
        return None
    count = len(known[0].bvals)
    shells = find_shells(known[0].bvals, b0_threshold=b0_threshold)
    number = np.full(count, -1, np.intp)
    for index, shell in enumerate(shells.shells):
        number[shell.volumes] = index
    moved = any(run.method != "none" for run in scan.facts.correction)
    after_label = "After correction" if moved or not scan.facts.correction else "Uncorrected"
    tables = [
        (group, label, table.bvecs_ras)
        for group, label, table in (
            ("before", "As in the dataset", before),
            ("after", after_label, after),
            ("standard", "In template space", standard),
        )
        if table is not None and len(table.bvals) == count
    ]
    turn = None
    if before is not None and after is not None and len(before.bvals) == len(after.bvals):
        weighted = number >= 0
        turn = direction_angle_deg(before.bvecs_ras[weighted], after.bvecs_ras[weighted])
        turn = turn[np.isfinite(turn)]
    return GradientView(
        gradient_scene([(group, table) for group, _, table in tables], number),
        [(group, label) for group, label, _ in tables],
        [(shell.b_value, shell.n_directions(known[0].bvecs_ras)) for shell in shells.shells],
        int(shells.b0.size),
        float(np.median(turn)) if turn is not None and turn.size else None,
        float(turn.max()) if turn is not None and turn.size else None,
    )


def _table_before(scan: ScanFiles) -> Gradients | None:
    """Return the table of the dataset, if the facts hold it for every run.

    A scan that came corrected has none: the table before is known to its pipeline alone.
    """
    runs = () if scan.facts.source.pipeline else scan.facts.conform
    bvals = np.array([b for run in runs for b in run.bvals], dtype=np.float64)
    rows = [row for run in runs for row in run.bvecs_ras]
    whole = all(len(run.bvals) == len(run.bvecs_ras) > 0 for run in runs)
    if not runs or not whole or any(len(row) != 3 for row in rows):
        return None
    return Gradients(bvals, np.array(rows, dtype=np.float64))


def mask_slices(scan: ScanFiles) -> list[Slice]:
    """Outline the brain mask on the mean b0."""
    b0 = read_volume(scan.native(MEAN_B0))
    mask = read_volume(scan.native(BRAIN_MASK))
    if b0 is None or mask is None:
        return []
    return draw_outlines(b0, mask, counts={2: 6, 1: 3, 0: 3})


@dataclass(frozen=True)
class TemplateSpace:
    """What the sections in template space share: read once."""

    mask: Volume | None
    box: Box | None
    rish: Mapping[int, Volume]
    gradients: Gradients | None
    shells: Shells | None
    voxels: list[tuple[str, tuple[int, int, int]]]
    series: SeriesSummary | None


def read_template_space(scan: ScanFiles, b0_threshold: float) -> TemplateSpace:
    """Read masks, maps and, in one pass, the series in template space."""
    mask = read_volume(scan.standard(BRAIN_MASK))
    rish = {
        degree: volume
        for degree in DEGREES
        if (volume := read_volume(scan.standard(rish_ending(degree)), 0)) is not None
    }
    image = scan.standard(SERIES)
    gradients = read_gradients(image)
    shells = None if gradients is None else find_shells(gradients.bvals, b0_threshold=b0_threshold)
    voxels = [] if mask is None else choose_voxels(mask, rish)
    series = None
    if shells is not None and shells.b0.size:
        series = summarise_series(image, shells.b0, [voxel for _, voxel in voxels])
    if series is not None and gradients is not None:
        # A table of another length belongs to another image.
        series = series if series.signals.shape[1] == len(gradients.bvals) else None
    box = None if mask is None else bounding_box(mask)
    return TemplateSpace(mask, box, rish, gradients, shells, voxels, series)


WHITE_MATTER_SHARE = 0.1
"""Share of the brain's inside, by energy of degree 2, that is white matter beyond doubt."""


def choose_voxels(
    mask: Volume, rish: Mapping[int, Volume]
) -> list[tuple[str, tuple[int, int, int]]]:
    """Pick a few voxels of white matter that show different signals, by their RISH features.

    Returns
    -------
    voxels : list of (str, (int, int, int))
        What the voxel is an example of, and its index.
    """
    if any(_differs(rish.get(degree), mask) for degree in (0, 2, 4)):
        return []
    inside = inner(mask).data > 0.5
    if inside.sum() < 10:
        return []
    white = white_matter(inside, rish[2].data, WHITE_MATTER_SHARE)
    index = np.argwhere(white)
    mean, second, fourth = (np.maximum(rish[degree].data[white], 1e-9) for degree in (0, 2, 4))
    anisotropy = second / mean
    typical = np.abs(anisotropy - np.median(anisotropy)) / max(float(anisotropy.std()), 1e-9)
    typical += np.abs(mean - np.median(mean)) / max(float(mean.std()), 1e-9)
    picks = {
        "Most anisotropic": int(np.argmax(anisotropy)),
        "Most structure of degree 4": int(np.argmax(fourth / second)),
        "Nearest to the median of white matter": int(np.argmin(typical)),
        "Strongest attenuation": int(np.argmin(mean)),
    }
    return [(why, _voxel(index[which])) for why, which in picks.items()]


def white_matter(
    inside: npt.NDArray[np.bool_], second: npt.NDArray[np.floating[Any]], share: float
) -> npt.NDArray[np.bool_]:
    """Return the inner voxels with most energy of degree 2, in a neighbourhood that has it too.

    Noise, and a rim where fluid or air shares the voxel, are anisotropic in single voxels only:
    the median of the neighbourhood is not.
    """
    from scipy.ndimage import median_filter

    energy = np.minimum(second, median_filter(second, size=3))
    limit = np.quantile(energy[inside], 1 - share)
    return np.asarray(inside & (energy >= limit))


def _differs(volume: Volume | None, mask: Volume) -> bool:
    return volume is None or volume.data.shape != mask.data.shape


def _voxel(index: npt.NDArray[Any]) -> tuple[int, int, int]:
    i, j, k = (int(value) for value in index)
    return i, j, k


@dataclass(frozen=True)
class Glyph:
    """A voxel with its signal, how to draw it, and the S/b0 at the rim of all drawings."""

    why: str
    position_mm: list[float]
    signal: VoxelSignal
    scene: Scene
    rim: float


def glyphs(scan: ScanFiles, space: TemplateSpace) -> list[Glyph]:
    """Compare samples and measurements in the chosen voxels."""
    nside = scan.facts.sphere.nside or DEFAULT_NSIDE
    if space.series is None or space.gradients is None or space.shells is None:
        return []
    if not space.shells.shells:
        return []
    samples = summarise_series(
        scan.standard(SAMPLES),
        np.array([], np.intp),
        [voxel for _, voxel in space.voxels],
    )
    targets = scan.facts.sphere.b_values or (PREFERRED_B,)
    if samples is None:
        return []
    on_sphere = samples.signals[:, _sample_volumes(scan, samples.signals.shape[1])]
    if on_sphere.shape[1] != len(targets) * 6 * nside**2:
        return []
    places, signals = [], []
    for (row, (why, voxel)), (number, target) in product(
        enumerate(space.voxels), enumerate(targets)
    ):
        shell = min(space.shells.shells, key=lambda shell: abs(shell.b_value - target))
        directions = space.gradients.bvecs_ras[shell.volumes]
        reference = np.array([space.series.b0.data[voxel]])
        measured = divide_by_b0(space.series.signals[row, shell.volumes][None], reference)[0]
        values = np.split(on_sphere[row], len(targets))[number]
        try:
            signal = voxel_signal(
                directions, measured.astype(np.float64), values.astype(float), nside
            )
        except BidsGevnetError:
            return []
        affine = space.series.b0.affine
        position = affine[:3, :3] @ np.array(voxel) + affine[:3, 3]
        title = f"{why}, b = {target:.0f}" if len(targets) > 1 else why
        places.append((title, position.round().tolist()))
        signals.append(signal)
    rim = common_radius(signals)
    return [
        Glyph(title, position, signal, glyph_scene(signal, rim), rim)
        for (title, position), signal in zip(places, signals, strict=True)
    ]


def _sample_volumes(scan: ScanFiles, count: int) -> npt.NDArray[np.intp]:
    """Return the volumes that are samples; none where the b-values beside them are broken."""
    try:
        volumes = sample_volumes(scan.standard(SAMPLES), count)
    except (OSError, BidsGevnetError):
        return np.array([], np.intp)
    return volumes[volumes < count]


def overlay_slices(
    scan: ScanFiles, space: TemplateSpace, settings: Mapping[str, Any]
) -> list[Slice]:
    """Draw scan and template on the same slices."""
    loaded = read_template(scan, settings)
    if space.series is None or loaded is None:
        return []
    template, mask = loaded
    box = bounding_box(mask)
    if box is None:
        return []
    return draw_overlay(
        space.series.b0, template, mask, box, positions=_within(OVERLAY_POSITIONS, box)
    )


def _within(positions: Sequence[tuple[int, float]], box: Box) -> list[tuple[int, float]]:
    return [(a, mm) for a, mm in positions if box[0][a] < mm < box[1][a]]


def rish_maps(scan: ScanFiles, space: TemplateSpace) -> list[ColourMap]:
    """Draw the energy of each degree, shell after shell."""
    if space.mask is None or space.box is None:
        return []
    positions = _within(MAP_POSITIONS, space.box)
    maps = [(f"Degree {degree}", volume) for degree, volume in space.rish.items()]
    b_values = scan.facts.sphere.b_values
    if len(b_values) > 1:
        maps = [
            (f"b = {b:.0f}, degree {degree}", volume)
            for number, b in enumerate(b_values)
            for degree in space.rish
            if (volume := read_volume(scan.standard(rish_ending(degree)), number)) is not None
        ]
    return [
        draw_map(name, volume, space.mask, space.box, positions=positions)
        for name, volume in maps
        if volume.data.shape == space.mask.data.shape
    ]
