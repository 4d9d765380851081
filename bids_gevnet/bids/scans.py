"""Which runs of a session are one scan.

Runs are joined if they lie on one voxel grid and have the same shells, by eddy before it corrects
them and after the correction otherwise; other runs are scans of their own. An opposite
phase-encoding pair of full series joins like any other; a run of unknown phase encoding joins
none, because its distortions may differ. Another echo or another reconstruction is another image
of what was measured, not more of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bids_gevnet.bids.gradient_files import GradientTable, read_gradient_table
from bids_gevnet.bids.images import check_image, read_header, require_series
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.dwi.phase_encoding import Relation, relate
from bids_gevnet.dwi.shells import (
    Shells,
    choose_shells,
    find_shells,
    same_shells,
    shared_shells,
)
from bids_gevnet.settings import ALL_SHELLS

_GRID_TOLERANCE_MM = 0.1
"""Scanners write the same prescription with rounding errors of this size at most."""

_NEVER_JOINED = ("echo", "rec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One or more runs that give one set of derivatives."""

    entities: Mapping[str, str]
    runs: tuple[DiffusionRun, ...]

    @property
    def name(self) -> str:
        """Entities shared by all runs: sub-X[_ses-Y]..., the S of the derivatives' names."""
        return "_".join(f"{key}-{value}" for key, value in self.entities.items())

    @property
    def node_name(self) -> str:
        """The name as Nipype allows it: letters, digits and underscores."""
        return "".join(char if char.isalnum() else "_" for char in self.name)


def find_scans(participant: Participant, *, b0_threshold: float) -> tuple[Scan, ...]:
    """Join a participant's runs into scans, session by session."""
    scans = []
    for runs in participant.sessions().values():
        groups: list[list[DiffusionRun]] = []
        for run in runs:
            for group in groups:
                if _fit(group[0], run, b0_threshold=b0_threshold):
                    group.append(run)
                    break
            else:
                groups.append([run])
        scans += [_scan(group, alone=len(groups) == 1) for group in groups]
    return tuple(scans)


def _scan(runs: Sequence[DiffusionRun], *, alone: bool) -> Scan:
    """Name a scan by what its runs share; beside other scans it needs its first run's name."""
    first = runs[0]
    shared = {
        key: value
        for key, value in first.entities.items()
        if not alone or all(run.entities.get(key) == value for run in runs)
    }
    return Scan(entities=shared, runs=tuple(runs))


def run_gradients(run: DiffusionRun, *, b0_threshold: float) -> GradientTable:
    """Read the gradients of a run."""
    return read_gradient_table(
        run.image,
        run.bval,
        run.bvec,
        n_volumes=require_series(run.image, check_image(run.image)),
        b0_threshold=b0_threshold,
    )


def _fit(first: DiffusionRun, second: DiffusionRun, *, b0_threshold: float) -> bool:
    return (
        # What a pipeline has left apart stays apart.
        first.preprocessed is second.preprocessed is None
        and relate(first.encoding, second.encoding) is not Relation.UNKNOWN
        and all(first.entities.get(key) == second.entities.get(key) for key in _NEVER_JOINED)
        and _same_grid(first, second)
        and _same_shells(first, second, b0_threshold=b0_threshold)
    )


def _same_grid(first: DiffusionRun, second: DiffusionRun) -> bool:
    one, other = (read_header(run.image) for run in (first, second))
    if one.shape[:3] != other.shape[:3]:
        return False
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    corners = corners * np.array([*one.shape[:3], 1])
    apart = corners @ (one.affine - other.affine).T
    return bool(np.abs(apart[:, :3]).max() <= _GRID_TOLERANCE_MM)


def _same_shells(first: DiffusionRun, second: DiffusionRun, *, b0_threshold: float) -> bool:
    one, other = (
        [
            shell.b_value
            for shell in find_shells(
                run_gradients(run, b0_threshold=b0_threshold).bvals, b0_threshold=b0_threshold
            ).shells
        ]
        for run in (first, second)
    )
    return same_shells(one, other)


def scan_shells(scan: Scan, *, b0_threshold: float) -> Shells:
    """Sort the volumes of all runs of a scan into b0s and shells."""
    bvals, _ = scan_gradients(scan, b0_threshold=b0_threshold)
    return find_shells(bvals, b0_threshold=b0_threshold)


def scan_gradients(
    scan: Scan, *, b0_threshold: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Read b-values (n,) and vectors (n, 3) of all runs of a scan.

    Vectors have the axes of the files: runs of one scan are on one grid, so those are the same.
    """
    tables = [run_gradients(run, b0_threshold=b0_threshold) for run in scan.runs]
    return (
        np.concatenate([table.bvals for table in tables]),
        np.concatenate([table.bvecs for table in tables]),
    )


def require_same_shells(participants: Sequence[Participant], *, b0_threshold: float) -> None:
    """Refuse scans that differ in their shells: a network needs the same from everybody."""
    b_values = {
        scan.name: [
            shell.b_value
            for shell in choose_shells(scan_shells(scan, b0_threshold=b0_threshold), ALL_SHELLS)
        ]
        for participant in participants
        if participant.usable
        for scan in find_scans(participant, b0_threshold=b0_threshold)
    }
    if b_values:
        shared_shells(b_values)
