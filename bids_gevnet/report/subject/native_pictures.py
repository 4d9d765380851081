"""Compute the pictures of a scan in its own space: colours, before and after, carpet."""

from dataclasses import dataclass

import nibabel as nib
import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from bids_gevnet.bids.derivatives import (
    BRAIN_MASK,
    MEAN_B0,
    NOISE_MAP,
    RESIDUAL_MAP,
    SERIES,
    UNCORRECTED,
    tensor_ending,
)
from bids_gevnet.dwi.shells import find_shells
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.report.figures.before_after import draw_before_after
from bids_gevnet.report.figures.brain import (
    Box,
    ColourMap,
    Slice,
    bounding_box,
    draw_map,
    slice_positions,
)
from bids_gevnet.report.figures.carpet import draw_carpet, standardise
from bids_gevnet.report.figures.direction_colours import draw_direction_colours
from bids_gevnet.report.scan_files import (
    BROKEN,
    ScanFiles,
    Volume,
    read_gradients,
    read_volume,
    read_volumes,
)

CARPET_ROWS, VOXELS_PER_ROW = 160, 25
"""Rows of the carpet, and neighbouring voxels that each is the mean of: single ones are noise."""

COLOUR_SLICES = {2: 4, 1: 4, 0: 3}
FLICKER_SLICES = {2: 3, 1: 2, 0: 1}


@dataclass(frozen=True)
class NativeSpace:
    """What the pictures in the scan's own space share: read once.

    Attributes
    ----------
    mask, b0 : Volume
    box : (low, high)
        World coordinates of the brain, with a margin.
    weighted : Volume
        Mean diffusion-weighted volume.
    signals : (voxels, n) array
        Signal of some voxels of the brain, from the lowest to the highest.
    shell_of : (n,) array of int
        Number of the shell of each volume; -1 for a b0.
    """

    mask: Volume
    b0: Volume
    box: Box
    weighted: Volume
    signals: npt.NDArray[np.float32]
    shell_of: npt.NDArray[np.intp]


def read_native_space(scan: ScanFiles, b0_threshold: float) -> NativeSpace | None:
    """Read mask, mean b0 and, in one pass, the series; nothing if one of them is not there."""
    mask, b0 = read_volume(scan.native(BRAIN_MASK)), read_volume(scan.native(MEAN_B0))
    gradients = read_gradients(scan.native(SERIES))
    box = None if mask is None else bounding_box(mask)
    if mask is None or b0 is None or gradients is None or box is None:
        return None
    try:
        shells = find_shells(gradients.bvals, b0_threshold=b0_threshold)
    except BidsGevnetError:
        return None
    shell_of = np.full(len(gradients.bvals), -1, np.intp)
    for number, shell in enumerate(shells.shells):
        shell_of[shell.volumes] = number
    brain = np.argwhere(mask.data > 0.5)
    brain = brain[np.argsort(brain[:, 2], kind="stable")]
    most = CARPET_ROWS * VOXELS_PER_ROW
    rows = brain[np.linspace(0, len(brain) - 1, min(most, len(brain))).astype(int)]
    try:
        # An open file resumes where the last volume ended.
        image = nib.load(scan.native(SERIES), keep_file_open=True)
        if image.ndim != 4 or image.shape != (*mask.data.shape, len(shell_of)):
            return None
        total = np.zeros(image.shape[:3], np.float64)
        signals = np.zeros((len(rows), image.shape[3]), np.float32)
        for volume in range(image.shape[3]):
            data = np.nan_to_num(np.asarray(image.dataobj[..., volume], dtype=np.float32))
            signals[:, volume] = data[tuple(rows.T)]
            if shell_of[volume] >= 0:
                total += data
    except (*BROKEN, IndexError):
        return None
    mean = total / max(int(np.sum(shell_of >= 0)), 1)
    weighted = Volume(mean.astype(np.float32), b0.affine)
    return NativeSpace(mask, b0, box, weighted, signals, shell_of)


def direction_colours(scan: ScanFiles) -> list[Slice]:
    """Draw the colours of the main direction in three planes."""
    mask = read_volume(scan.native(BRAIN_MASK))
    channels = read_volumes(scan.native(tensor_ending("dec")))
    box = None if mask is None else bounding_box(mask, margin_mm=4.0)
    if mask is None or box is None or len(channels) != 3:
        return []
    if channels[0].data.shape != mask.data.shape:
        return []
    return draw_direction_colours(
        channels, mask, box, positions=_spread(box, COLOUR_SLICES, margin=0.3)
    )


@dataclass(frozen=True)
class Flicker:
    """A pair of pictures that should not move when they are swapped."""

    name: str
    slices: list[Slice]


def before_and_after(scan: ScanFiles, space: NativeSpace | None) -> list[Flicker]:
    """Draw the means before and after correction; none where nothing was corrected."""
    corrected = any(run.method not in (None, "none") for run in scan.facts.correction)
    means = read_volumes(scan.native(UNCORRECTED))
    if space is None or not corrected or len(means) != 2:
        return []
    if means[0].data.shape != space.b0.data.shape:
        return []
    positions = _spread(space.box, FLICKER_SLICES, margin=0.35)
    return [
        Flicker(name, draw_before_after(before, after, space.mask, space.box, positions=positions))
        for name, before, after in (
            ("Mean b0", means[0], space.b0),
            ("Mean diffusion-weighted volume", means[1], space.weighted),
        )
    ]


NOISE_SLICES = {2: 4, 1: 1, 0: 1}


def removed_noise(scan: ScanFiles) -> list[ColourMap]:
    """Draw the noise map and what denoising removed; none where there are no such files."""
    mask = read_volume(scan.native(BRAIN_MASK))
    box = None if mask is None else bounding_box(mask)
    if mask is None or box is None:
        return []
    maps = (
        ("Noise", read_volume(scan.native(NOISE_MAP))),
        ("Residual", read_volume(scan.native(RESIDUAL_MAP))),
    )
    positions = _spread(box, NOISE_SLICES, margin=0.3)
    return [
        draw_map(name, volume, mask, box, positions=positions, colours="magma")
        for name, volume in maps
        if volume is not None and volume.data.shape == mask.data.shape
    ]


def carpet(space: NativeSpace | None, confounds: pd.DataFrame | None, key: str) -> Markup | None:
    """Draw the carpet; nothing where series and confounds do not belong together."""
    if space is None or confounds is None or len(confounds) != len(space.shell_of):
        return None
    distance = standardise(space.signals, space.shell_of)
    bins = np.array_split(distance, max(1, min(CARPET_ROWS, len(distance) // VOXELS_PER_ROW)))
    distance = np.stack([rows.mean(axis=0) for rows in bins])
    b0 = np.flatnonzero(space.shell_of < 0)
    return draw_carpet(distance, confounds, b0, name=f"{key}-carpet")


def _spread(box: Box, counts: dict[int, int], *, margin: float) -> list[tuple[int, float]]:
    return [
        (axis, position)
        for axis, count in counts.items()
        for position in slice_positions(box, axis, count, margin=margin)
    ]
