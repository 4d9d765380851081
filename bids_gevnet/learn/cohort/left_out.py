"""Who is not in the cohort, and why: a study goes on with those who are there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bids_gevnet.bids.sidecars import split_name
from bids_gevnet.errors import name_people

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from bids_gevnet.bids.selection import Selection

NO_ROW = "no row in participants.tsv"
NO_SCAN = "no diffusion scan in the dataset"
NO_DERIVATIVES = "no derivatives (the participant level has not finished, or failed)"
UNREADABLE = "incomplete or unreadable derivatives (run the participant level again)"
GONE = "made from series that the dataset no longer has (renamed or removed)"
SESSION_NOT_ASKED_FOR = "session not asked for by --session-label"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A participant, a session or a scan that is not in the cohort.

    Parameters
    ----------
    participant : str
        BIDS label without "sub-".
    scan : str
        What its file names begin with, as far as it is known: "sub-01", "sub-01_ses-2".
    reason : str
    """

    participant: str
    scan: str
    reason: str


def no_label(column: str) -> str:
    """Say that a scan has no class."""
    return f"no {column} (an empty cell, n/a, NA, NaN or None)"


def name_left_out(left_out: Iterable[LeftOut]) -> list[str]:
    """Give a line for each reason, with how many there are and the first few by name."""
    return [
        f"{f'{len(scans)} ({name_people(scans)})' if len(scans) > 1 else scans[0]}: {reason}"
        for reason, scans in scans_by_reason((entry.reason, entry.scan) for entry in left_out)
    ]


def scans_by_reason(left_out: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Sort pairs of a reason and a scan into one entry for each reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for reason, scan in left_out:
        by_reason[reason].append(scan)
    return sorted(by_reason.items())


Scanned = dict[str, dict[str | None, set[str]]]
"""What the names of diffusion series begin with, by participant and session."""


def find_scanned(bids_dir: Path) -> Scanned:
    """List participants of the raw dataset who have diffusion images, with their sessions."""
    scanned: Scanned = defaultdict(lambda: defaultdict(set))
    for pattern in ("sub-*/dwi/*_dwi.nii*", "sub-*/ses-*/dwi/*_dwi.nii*"):
        for image in bids_dir.glob(pattern):
            subject, *session = (part.split("-", 1)[1] for part in _folders(image, bids_dir))
            series = scanned[subject][session[0] if session else None]
            series.add(image.name.rsplit("_dwi.nii", 1)[0])
    return scanned


def is_gone(
    scanned: Scanned, participant: str, session: str | None, series: Iterable[str]
) -> bool:
    """Whether a scan is what an earlier run made of series that are no longer there.

    Nothing is said about participants without any diffusion image, whose scans may have been
    moved to an archive.

    >>> scanned = {"01": {None: {"sub-01_run-1"}}}
    >>> is_gone(scanned, "01", None, ["sub-01"]), is_gone(scanned, "02", None, ["sub-02"])
    (True, False)
    """
    there = scanned.get(participant, {})
    return bool(there) and not there.get(session, set()).issuperset(series)


def _folders(image: Path, bids_dir: Path) -> Sequence[str]:
    """Names of the folders that hold an image, without the one of its modality."""
    return image.relative_to(bids_dir).parts[:-2]


def choose_images(
    images: Sequence[Path],
    *,
    scanned: Scanned,
    listed: Collection[str],
    selection: Selection,
) -> tuple[list[Path], list[LeftOut]]:
    """Divide those who could be in a cohort into images to use and those left out.

    Parameters
    ----------
    images : sequence of Path
        Spherical samples of everybody.
    scanned : Scanned
        Diffusion series of the raw dataset.
    listed : collection of str
        Participants with a row in participants.tsv.
    selection : Selection

    Returns
    -------
    chosen : list of Path
    left_out : list of LeftOut
    """
    finished: dict[str, dict[str | None, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for image in images:
        entities, _ = split_name(image)
        finished[entities["sub"]][entities.get("ses")].append(image)
    chosen: list[Path] = []
    left_out: list[LeftOut] = []
    for person in sorted({*listed, *scanned, *finished}):
        reason = selection.reason_against(person) or (NO_ROW if person not in listed else None)
        sessions = {*scanned.get(person, ()), *finished[person]}
        if reason is None and not sessions:
            reason = NO_SCAN
        if reason is not None:
            left_out.append(LeftOut(participant=person, scan=f"sub-{person}", reason=reason))
            continue
        for session in sorted(sessions, key=str):
            missing = _reason_against_session(session, finished[person], selection)
            if missing is None:
                chosen += finished[person][session]
            else:
                scan = f"sub-{person}" + (f"_ses-{session}" if session is not None else "")
                left_out.append(LeftOut(participant=person, scan=scan, reason=missing))
    return sorted(chosen), left_out


def _reason_against_session(
    session: str | None, finished: dict[str | None, list[Path]], selection: Selection
) -> str | None:
    if selection.sessions and session not in selection.sessions:
        return SESSION_NOT_ASKED_FOR
    return None if finished.get(session) else NO_DERIVATIVES
