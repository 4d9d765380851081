"""Draw all scans at a glance: the mean b0 of each in template space, on sheets of many.

The b0 is small in its own space and the transform to the template is known, so a slice in
template space is read straight from it; the series in template space is not touched. Pictures
stand on a few large sheets that the page cuts: five hundred people still make one small file. Of
more than that, the scans that stand out are shown and a part of the others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import MEAN_B0, transform_ending
from bids_gevnet.report.figures.brain import Box, Sampler, bounding_box, outline
from bids_gevnet.report.figures.drawing import to_bytes, to_png_uri
from bids_gevnet.report.group.cohort import spread_evenly
from bids_gevnet.report.group.limits import LIMITS
from bids_gevnet.report.group.study_files import CohortScan
from bids_gevnet.report.scan_files import ScanFiles, Volume, read_volume

TILE_MM = 2.5
AXIAL_MM, SAGITTAL_MM = 8.0, 4.0
_OUTLIERS = 0.6
"""Share of the tiles that scans which stand out may take."""
_PER_SHEET = 60
_COLUMNS = 10
_GREYS = 48  # steps of grey that an eye can tell in a small picture; fewer compress better
_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True)
class Tile:
    """Where the picture of a scan lies: sheet, left and top in pixels."""

    scan: CohortScan
    sheet: int
    x: int
    y: int


@dataclass(frozen=True)
class Mosaic:
    """Sheets and tiles.

    Attributes
    ----------
    sheets : list of (str, int, int)
        Data URI, width and height.
    width, height : int
        Of a tile: an axial and a sagittal slice beside each other.
    outline : str
        SVG path of the template's brain in a tile.
    missing : list of CohortScan
        Of those chosen, scans without a picture.
    of : int
        Scans of the cohort.
    outliers : int
        How many of those chosen stand out; they come first where not all are shown.
    """

    sheets: list[tuple[str, int, int]]
    tiles: list[Tile]
    width: int
    height: int
    outline: str
    missing: list[CohortScan]
    of: int = 0
    outliers: int = 0


def choose_tiles(
    scans: Sequence[CohortScan], outliers: Sequence[int], most: int
) -> tuple[list[CohortScan], int]:
    """Choose whom to show: outliers first, then others spread over the sites; give their number.

    Parameters
    ----------
    scans : sequence of CohortScan
    outliers : sequence of int
        Numbers of scans that stand out, those that do most first.
    most : int
        Up to so many scans are all shown, in their order.
    """
    if len(scans) <= most:
        return list(scans), 0
    first = list(outliers[: int(_OUTLIERS * most)])
    others = sorted(set(range(len(scans))) - set(outliers)) or sorted(
        set(range(len(scans))) - set(first)
    )
    even = spread_evenly([scans[number].site for number in others], most - len(first))
    return [scans[number] for number in [*first, *(others[place] for place in even)]], len(first)


def draw_mosaic(
    scans: Sequence[CohortScan],
    template_mask: Volume,
    *,
    outliers: Sequence[int] = (),
    most: int = LIMITS.tiles,
) -> Mosaic | None:
    """Draw a small axial and sagittal slice of every scan, or of some of very many.

    Parameters
    ----------
    scans : sequence of CohortScan
    template_mask : Volume
        Brain of the template; its outline is the same in every tile.
    outliers : sequence of int
        Numbers of scans that stand out, those that do most first (`rank_outliers`).
    most : int
        Scans shown, at most.
    """
    box = bounding_box(template_mask, margin_mm=6.0)
    if box is None:
        return None
    pictures: list[tuple[CohortScan, npt.NDArray[np.uint8]]] = []
    missing = []
    chosen, first = choose_tiles(scans, outliers, most)
    for scan in chosen:
        picture = None if scan.files is None else _picture(scan.files, box)
        if picture is None:
            missing.append(scan)
        else:
            pictures.append((scan, picture))
    if not pictures:
        return None
    height, width = pictures[0][1].shape
    sheets, tiles = [], []
    for number, start in enumerate(range(0, len(pictures), _PER_SHEET)):
        batch = pictures[start : start + _PER_SHEET]
        rows = -(-len(batch) // _COLUMNS)
        columns = min(len(batch), _COLUMNS)
        sheet = np.zeros((rows * height, columns * width), np.uint8)
        for place, (scan, picture) in enumerate(batch):
            y, x = place // _COLUMNS * height, place % _COLUMNS * width
            sheet[y : y + height, x : x + width] = picture
            tiles.append(Tile(scan, number, x, y))
        sheets.append((to_png_uri(sheet), sheet.shape[1], sheet.shape[0]))
    path = outline(_both(Sampler(template_mask, order=1), box).astype(np.float64))
    return Mosaic(sheets, tiles, width, height, path, missing, len(scans), first)


def _both(sampler: Sampler, box: Box) -> npt.NDArray[np.float32]:
    """Axial and sagittal slice beside each other, the lower one filled up above."""
    slices = [
        sampler.slice(box, axis, position, pixel_mm=TILE_MM)
        for axis, position in ((2, AXIAL_MM), (0, SAGITTAL_MM))
    ]
    height = max(len(values) for values in slices)
    padded = []
    for values in slices:
        above = (height - len(values)) // 2
        padded.append(np.pad(values, ((above, height - len(values) - above), (0, 0))))
    return np.concatenate(padded, axis=1)


def _picture(files: ScanFiles, box: Box) -> npt.NDArray[np.uint8] | None:
    image = read_volume(files.native(MEAN_B0))
    to_template = read_transform(files)
    if image is None or to_template is None:
        return None
    moved = Volume(image.data, to_template @ image.affine)
    values = _both(Sampler(moved, order=1), box)
    inside = values[values > 0]
    high = float(np.percentile(inside, 99)) if inside.size else 1.0
    shades = to_bytes(values, 0, high).astype(np.float64)
    return np.asarray(np.rint(np.rint(shades / 255 * _GREYS) / _GREYS * 255), np.uint8)


def read_transform(files: ScanFiles) -> npt.NDArray[np.float64] | None:
    """Read the affine from the scan to the template, (4, 4) in world RAS mm.

    ITK writes where a point of the output lies in the input, in LPS: the inverse.
    """
    return _read_itk(files.native(transform_ending(files.template)))


def _read_itk(path: Path) -> npt.NDArray[np.float64] | None:
    try:
        text = path.read_text(encoding="utf-8")
        numbers = [
            [float(value) for value in match.group(1).split()]
            for name in ("Parameters", "FixedParameters")
            if (match := re.search(rf"^{name}:([^\n]*)$", text, re.MULTILINE))
        ]
        parameters, centre = numbers[0], np.array(numbers[1])
        matrix = np.eye(4)
        matrix[:3, :3] = np.reshape(parameters[:9], (3, 3))
        matrix[:3, 3] = parameters[9:12] + centre - matrix[:3, :3] @ centre
        inverse = np.asarray(np.linalg.inv(_LPS @ matrix @ _LPS), dtype=np.float64)
    except (OSError, ValueError, IndexError, np.linalg.LinAlgError):
        return None
    return inverse if np.isfinite(inverse).all() else None
