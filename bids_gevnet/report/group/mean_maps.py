"""Average the tensor maps of the cohort in template space: mean FA, and its colours.

Where people's anatomy lies on each other the mean is sharp: a blurred picture says that the
registration was poor, wrong colours that gradient tables were wrong in many scans.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.derivatives import BRAIN_MASK, tensor_ending
from bids_gevnet.report.figures.brain import ColourMap, Slice, bounding_box, draw_map
from bids_gevnet.report.figures.direction_colours import draw_direction_colours
from bids_gevnet.report.group.cohort import spread_evenly
from bids_gevnet.report.group.limits import LIMITS
from bids_gevnet.report.group.study_files import CohortScan
from bids_gevnet.report.scan_files import ScanFiles, Volume, read_volume, read_volumes

POSITIONS = ((2, -10.0), (2, 8.0), (2, 26.0), (1, -18.0), (0, 2.0))
_HIGHEST_FA = 0.8
_ENOUGH = 0.5
"""Share of the scans that must have a voxel in their brain for it to be shown."""


@dataclass(frozen=True)
class MeanMaps:
    """Pictures of the means.

    Attributes
    ----------
    scans : int
        Scans that the means are over.
    missing : list of CohortScan
        Of those chosen, scans without maps, or on another grid.
    fa : ColourMap
    colours : list of Slice
    """

    scans: int
    missing: list[CohortScan]
    fa: ColourMap
    colours: list[Slice]
    of: int = 0
    """Scans of the cohort."""


class _Mean:
    """The mean of maps on one grid, one scan in memory at a time."""

    def __init__(self) -> None:
        self.total: npt.NDArray[np.float64] = np.zeros((0, 0, 0, 0))
        self.affine = np.eye(4)
        self.count = 0

    def add(self, parts: Sequence[Volume]) -> bool:
        """Add the maps of a scan; tell whether they are on the grid of the others."""
        data = np.stack([part.data for part in parts], axis=-1)
        if not self.count:
            self.total = np.zeros(data.shape)
            self.affine = parts[0].affine
        same = data.shape == self.total.shape and np.allclose(
            parts[0].affine, self.affine, atol=1e-3
        )
        if same:
            self.total += data
            self.count += 1
        return same

    def volumes(self) -> list[Volume]:
        """Return the mean of each map."""
        means = (self.total / self.count).astype(np.float32)
        return [Volume(means[..., number], self.affine) for number in range(means.shape[-1])]


def draw_mean_maps(scans: Sequence[CohortScan], *, most: int = LIMITS.averaged) -> MeanMaps | None:
    """Draw mean FA and mean colours of all scans that have them; nothing if none has.

    Of more than `most` scans, as many are taken, spread evenly over the sites.
    """
    mean, missing = _Mean(), []
    for number in spread_evenly([scan.site for scan in scans], most):
        scan = scans[number]
        parts = [] if scan.files is None else _read(scan.files)
        if not parts or not mean.add(parts):
            missing.append(scan)
    if not mean.count:
        return None
    brain, fa, *channels = mean.volumes()
    mask = Volume((brain.data >= _ENOUGH).astype(np.float32), brain.affine)
    box = bounding_box(mask, margin_mm=4.0)
    if box is None:
        return None
    positions = [(a, mm) for a, mm in POSITIONS if box[0][a] < mm < box[1][a]]
    return MeanMaps(
        mean.count,
        missing,
        draw_map(
            "Mean FA", fa, mask, box, positions=positions, colours="gray",
            limits=(0.0, _HIGHEST_FA),
        ),
        draw_direction_colours(channels, mask, box, positions=positions),
        len(scans),
    )  # fmt: skip


def _read(files: ScanFiles) -> list[Volume]:
    """Read brain, FA and the three colours of a scan; none if one is missing or does not fit."""
    paths = [files.standard(e) for e in (BRAIN_MASK, tensor_ending("fa"))]
    parts = [read_volume(path) for path in paths]
    colours = read_volumes(files.standard(tensor_ending("dec")))
    known = [part for part in parts if part is not None] + colours
    if len(known) != len(paths) + 3 or len({part.data.shape for part in known}) != 1:
        return []
    brain = Volume((known[0].data > 0.5).astype(np.float32), known[0].affine)
    return [brain, *known[1:]]
