"""From datasets of preprocessed scans to typed records, as `bids.query` does from raw data.

Each participant is taken from the first dataset that has it. What a scan lacks is that
participant's problem, said before anything runs; nobody is corrected from raw data instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bids_gevnet.bids.images import read_header
from bids_gevnet.bids.indexing import read_filter_file
from bids_gevnet.bids.masks import OwnMasks
from bids_gevnet.bids.preprocessed.record import DerivativeDataset, Finding, PreprocessedScan
from bids_gevnet.bids.preprocessed.sources import READERS
from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.bids.scans import run_gradients
from bids_gevnet.bids.selection import read_selection, require_labels
from bids_gevnet.bids.series_choice import check_label
from bids_gevnet.bids.transforms import check_transform
from bids_gevnet.dwi.phase_encoding import PhaseEncoding
from bids_gevnet.dwi.shells import choose_shells, find_shells
from bids_gevnet.errors import InputError, ParticipantError, printable
from bids_gevnet.settings import SelectionSettings, ShellChoice

_CORRECTED = PhaseEncoding("j", "not needed: the scan comes corrected", is_guess=True)
_SHORT = {
    "acquisition": "acq", "direction": "dir", "reconstruction": "rec", "run": "run",
    "session": "ses", "echo": "echo",
}  # fmt: skip
"""Entities of --bids-filter-file and what they are called in names of files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What a scan is checked against."""

    b0_threshold: float
    shell: ShellChoice
    masks: OwnMasks


def find_preprocessed(
    bids_dir: Path,
    datasets: Sequence[DerivativeDataset],
    selection: SelectionSettings,
    *,
    b0_threshold: float,
    shell: ShellChoice = None,
) -> tuple[Participant, ...]:
    """Return the participants of preprocessed datasets, sorted by label.

    Parameters
    ----------
    bids_dir : Path
        The raw dataset, whose participants are expected in the others; or one of the others.
    datasets : sequence of DerivativeDataset
        In the order in which they are looked at.
    selection : SelectionSettings
        Labels, sessions, filters and own masks.
    b0_threshold : float
        Largest b-value in s/mm² that counts as b0.
    shell : tuple of float, "all" or None
        b-values of the shells that every scan must have.
    """
    holders: dict[str, tuple[DerivativeDataset, Sequence[Finding]]] = {}
    for dataset in datasets:
        for label, findings in READERS[dataset.pipeline].find(dataset.folder).items():
            holders.setdefault(label, (dataset, findings))
    scanned = _scanned(bids_dir, datasets)
    chosen = read_selection(selection, sorted({*holders, *scanned}))
    sessions = {f.entities["ses"] for _, all_of in holders.values() for f in all_of
                if "ses" in f.entities}  # fmt: skip
    require_labels(chosen.sessions, sessions, option="--session-label", what="session")
    wanted = _wanted_entities(selection, chosen.sessions)
    candidates = chosen.participants or {*holders, *scanned}
    labels = sorted(label for label in candidates if chosen.reason_against(label) is None)
    if not any(label in holders for label in labels):
        where = " or ".join(str(dataset.folder) for dataset in datasets)
        raise InputError(
            expected=f"preprocessed scans of those asked for in {where}",
            found="none",
            remedy="check the folder, and the options that choose participants",
        )
    needs = _Needs(  # nosec B604  # a shell of b-values
        b0_threshold=b0_threshold,
        shell=shell,
        masks=OwnMasks(selection.mask_derivatives),
    )
    return tuple(
        _guarded_participant(label, holders.get(label), datasets, wanted, needs)
        for label in labels
    )


def _scanned(bids_dir: Path, datasets: Sequence[DerivativeDataset]) -> set[str]:
    """Labels of the raw dataset with a diffusion folder; none where the input is a derivative."""
    if bids_dir.resolve() in {dataset.folder for dataset in datasets}:
        return set()
    folders = (*bids_dir.glob("sub-*/dwi"), *bids_dir.glob("sub-*/ses-*/dwi"))
    return {f.relative_to(bids_dir).parts[0].removeprefix("sub-") for f in folders}


def _wanted_entities(
    selection: SelectionSettings, sessions: Sequence[str]
) -> dict[str, frozenset[str]]:
    """Read which entities are asked for; the queries of pybids that names alone can answer."""
    wanted = {"ses": frozenset(sessions)} if sessions else {}
    if selection.bids_filter_file is None:
        return wanted
    query = read_filter_file(selection.bids_filter_file)["dwi"]
    for key, value in query.items():
        if key in {"datatype", "suffix", "extension"}:
            continue
        values = value if isinstance(value, list) else [value]
        if key not in _SHORT or not all(isinstance(item, str | int) for item in values):
            raise InputError(
                expected=f"some of {', '.join(_SHORT)}, with words as values, in the dwi query of "
                f"--bids-filter-file for preprocessed scans",
                found=f"{key}: {value!r:.60}",
                remedy="choose by these entities",
            )
        wanted[_SHORT[key]] = frozenset(map(str, values))
    return wanted


def _guarded_participant(
    label: str,
    holder: tuple[DerivativeDataset, Sequence[Finding]] | None,
    datasets: Sequence[DerivativeDataset],
    wanted: Mapping[str, frozenset[str]],
    needs: _Needs,
) -> Participant:
    """Examine a participant; what nobody has foreseen is that participant's problem alone."""
    try:
        if holder is None:
            raise ParticipantError(  # noqa: TRY301
                expected=f"a preprocessed scan of participant {label}",
                found=f"none in {' or '.join(str(d.folder) for d in datasets)}",
                remedy="preprocess it, or leave the participant out; without --derivatives it is "
                "corrected here",
            )
        return _participant(label, *holder, wanted, needs)
    except ParticipantError as problem:
        return Participant(label=printable(label), problems=(problem,))
    except Exception as error:  # noqa: BLE001
        unforeseen = ParticipantError(
            expected=f"files of sub-{label} that can be read",
            found=f"{type(error).__name__}: {error}",
            remedy="check the files, or leave the participant out; please report this",
        )
        return Participant(label=printable(label), problems=(unforeseen,))


def _participant(
    label: str,
    dataset: DerivativeDataset,
    findings: Sequence[Finding],
    wanted: Mapping[str, frozenset[str]],
    needs: _Needs,
) -> Participant:
    check_label(label, dataset.folder / f"sub-{label}")
    chosen = [
        finding
        for finding in findings
        if all(finding.entities.get(key) in values for key, values in wanted.items())
    ]
    if not chosen:
        raise ParticipantError(
            expected=f"a preprocessed scan of participant {label}",
            found=f"none in {dataset.folder} that fits the selection",
            remedy="leave the participant out, or check --session-label and --bids-filter-file",
        )
    runs, problems = [], []
    for finding in chosen:
        try:
            scan = READERS[dataset.pipeline].read(dataset, finding)
            runs.append(_checked_run(scan, needs))
        except ParticipantError as problem:
            problems.append(problem)
    return Participant(label=label, runs=tuple(runs), problems=tuple(problems))


def _checked_run(scan: PreprocessedScan, needs: _Needs) -> DiffusionRun:
    """Turn a preprocessed scan into a run, or raise a `ParticipantError` that says why not."""
    notes, t1w = list(scan.notes), scan.t1w
    if t1w is not None and (reason := _why_unusable(t1w)):
        notes.append(f"{t1w.name} is not used: {reason}")
        t1w = None
    mask = needs.masks.find(scan.entities, scan.image)
    if mask is None and scan.mask is None:
        notes.append(f"{scan.dataset.title} left no brain mask: the brain is masked here")
    run = DiffusionRun(
        subject=scan.entities["sub"],
        session=scan.entities.get("ses"),
        entities=scan.entities,
        image=scan.image,
        bval=scan.bval,
        bvec=scan.bvec,
        metadata={} if scan.sidecar is None else read_json(scan.sidecar),
        encoding=_CORRECTED,
        t1w=t1w,
        notes=tuple(notes),
        mask=mask or scan.mask,
        preprocessed=scan,
    )
    if run.mask is not None:
        needs.masks.check(run.mask)
    if scan.transform is not None:
        check_transform(scan.transform)
    table = run_gradients(run, b0_threshold=needs.b0_threshold)
    choose_shells(find_shells(table.bvals, b0_threshold=needs.b0_threshold), needs.shell)
    return run


def _why_unusable(t1w: Path) -> str:
    """Say why a T1w cannot be used; a scan can do without it."""
    try:
        axes = len(read_header(t1w).shape)
    except ParticipantError as problem:
        return problem.found
    return "" if axes == 3 else f"it has {axes} axes instead of three"
