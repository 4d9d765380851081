"""From a BIDS dataset to typed records of its diffusion runs.

All that a run will need is checked here, when participants are listed. Whatever is wrong with
one participant is kept with that participant, so that the others can go on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bids_gevnet.bids.gradient_files import holds_only_b0
from bids_gevnet.bids.images import read_header
from bids_gevnet.bids.indexing import (
    images_by_participant,
    index_dataset,
    read_filter_file,
    unreadable_folder,
)
from bids_gevnet.bids.masks import OwnMasks
from bids_gevnet.bids.reading import parse_json
from bids_gevnet.bids.records import DiffusionRun, FieldmapRun, Participant
from bids_gevnet.bids.scans import find_scans, run_gradients, scan_shells
from bids_gevnet.bids.selection import read_selection, require_labels
from bids_gevnet.bids.series_choice import check_label, check_name, choose_series
from bids_gevnet.bids.sidecars import Sidecars, split_name
from bids_gevnet.dwi.phase_encoding import (
    PhaseEncoding,
    disbelieved_readouts,
    is_direction,
    phase_encoding,
)
from bids_gevnet.dwi.shells import choose_shells
from bids_gevnet.errors import InputError, ParticipantError, printable
from bids_gevnet.settings import SelectionSettings, ShellChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What the dataset holds of one participant."""

    dwi: Sequence[Path]
    t1w: Sequence[Path]
    fieldmaps: Sequence[Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What a participant's files are checked against."""

    sidecars: Sidecars
    masks: OwnMasks
    b0_threshold: float
    shell: ShellChoice

    @property
    def dataset_dir(self) -> Path:
        return self.sidecars.dataset_dir


def find_participants(
    dataset_dir: Path,
    selection: SelectionSettings,
    *,
    b0_threshold: float,
    shell: ShellChoice = None,
) -> tuple[Participant, ...]:
    """Return the participants of a dataset with their diffusion runs, sorted by label.

    Parameters
    ----------
    dataset_dir : Path
        Top folder of a BIDS dataset.
    selection : SelectionSettings
        Labels, filters and where to keep pybids' database.
    b0_threshold : float
        Largest b-value in s/mm² that counts as b0.
    shell : tuple of float, "all" or None
        b-values of the shells that every scan must have; all that it has; or any one shell
        that can be put on the sphere.

    Raises
    ------
    InputError
        If the dataset as a whole cannot be used.
    """
    dataset_dir = dataset_dir.resolve()
    check_description(dataset_dir)
    filters = read_filter_file(selection.bids_filter_file)
    present = sorted(
        path.name.removeprefix("sub-") for path in dataset_dir.glob("sub-*") if path.is_dir()
    )
    chosen = read_selection(selection, present)
    layout = index_dataset(
        dataset_dir, sorted(chosen.participants or ()), selection.bids_database_dir
    )
    sessions = chosen.sessions
    if sessions:
        require_labels(sessions, layout.get_sessions(), option="--session-label", what="session")
    series = images_by_participant(layout, filters["dwi"], dataset_dir, sessions=sessions)
    # Without a request by name, participants who were never scanned are none of ours.
    hidden = {label for label in present if unreadable_folder(dataset_dir / f"sub-{label}")}
    candidates = sorted(
        series.keys() | hidden if chosen.participants is None else chosen.participants
    )
    labels = [label for label in candidates if chosen.reason_against(label) is None]
    if not any(label in series or label in hidden for label in labels):
        raise InputError(
            expected="diffusion series (sub-*/[ses-*/]dwi/*_dwi.nii.gz)",
            found=f"none in {dataset_dir} that fit the selection",
            remedy="check BIDS_DIR, the options that choose participants and sessions, and "
            "--bids-filter-file",
        )
    t1w, fieldmaps = (
        images_by_participant(layout, filters[kind], dataset_dir, sessions=())
        for kind in ("t1w", "fmap")
    )
    needs = _Needs(  # nosec B604  # a shell of b-values
        sidecars=Sidecars(dataset_dir),
        masks=OwnMasks(selection.mask_derivatives),
        b0_threshold=b0_threshold,
        shell=shell,
    )
    return tuple(
        _guarded_participant(
            label,
            _Files(
                dwi=series.get(label, ()),
                t1w=t1w.get(label, ()),
                fieldmaps=fieldmaps.get(label, ()),
            ),
            needs,
        )
        for label in labels
    )


def check_description(dataset_dir: Path) -> None:
    """Raise an `InputError` unless the folder is the top of a BIDS dataset."""
    path = dataset_dir / "dataset_description.json"
    if not dataset_dir.is_dir():
        raise InputError(
            expected="the folder of a BIDS dataset",
            found=f"no folder {dataset_dir}",
            remedy="check BIDS_DIR; in a container, check that it is mounted",
        )
    if not path.is_file():
        raise InputError(
            expected="dataset_description.json at the top of the dataset",
            found=f"none in {dataset_dir}",
            remedy="point BIDS_DIR at the folder that holds the sub-* folders, and add the file "
            "if the dataset has none",
        )
    try:
        description = parse_json(path)
        missing = [key for key in ("Name", "BIDSVersion") if key not in description]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            expected=f"a JSON object in {path}", found=str(error), remedy="correct the file"
        ) from None
    if missing:
        raise InputError(
            expected=f"Name and BIDSVersion in {path}",
            found=f"no {' and no '.join(missing)}",
            remedy="add them, for instance {'Name': 'My study', 'BIDSVersion': '1.10.0'}",
        )


def _guarded_participant(label: str, files: _Files, needs: _Needs) -> Participant:
    """Examine a participant; what nobody has foreseen is that participant's problem alone."""
    try:
        return _participant(label, files, needs)
    except ParticipantError as problem:
        return Participant(label=printable(label), problems=(problem,))
    except Exception as error:  # noqa: BLE001
        unforeseen = ParticipantError(
            expected=f"files of sub-{label} that can be read",
            found=f"{type(error).__name__}: {error}",
            remedy="check the files, or leave the participant out; please report this",
        )
        return Participant(label=printable(label), problems=(unforeseen,))


def _participant(label: str, files: _Files, needs: _Needs) -> Participant:
    folder = needs.dataset_dir / f"sub-{label}"
    check_label(label, folder)
    hidden = unreadable_folder(folder)
    if hidden is not None:
        raise ParticipantError(
            expected=f"permission to read {hidden}",
            found="none",
            remedy="ask its owner for it, or leave the participant out",
        )
    if not files.dwi:
        raise ParticipantError(
            expected=f"diffusion series of participant {label}",
            found=f"none in {folder} that fit the selection",
            remedy="leave the participant out, or check --session-label and --bids-filter-file",
        )
    choice = choose_series(files.dwi, needs.dataset_dir)
    problems = list(choice.problems)
    readable: list[DiffusionRun] = []
    for image in choice.images:
        try:
            run = _run(image, files, needs)
        except ParticipantError as problem:
            problems.append(problem)
        else:
            notes = (choice.notes[image],) if image in choice.notes else ()
            readable.append(replace(run, notes=notes + run.notes))
    runs = []
    for run in _attach_b0_series(readable, b0_threshold=needs.b0_threshold):
        try:
            runs.append(check_run(run, b0_threshold=needs.b0_threshold))
        except ParticipantError as problem:
            problems.append(problem)
    participant = Participant(label=label, runs=tuple(runs), problems=tuple(problems))
    return _check_scans(participant, needs) if participant.usable else participant


def _check_scans(participant: Participant, needs: _Needs) -> Participant:
    """Check that every scan has the shells to put on the sphere, and say what stays apart."""
    problems = []
    for scan in find_scans(participant, b0_threshold=needs.b0_threshold):
        try:
            choose_shells(scan_shells(scan, b0_threshold=needs.b0_threshold), needs.shell)
        except ParticipantError as problem:
            problems.append(problem)
    siblings = participant.sessions()
    note = "not joined with the other runs of the session, because its phase encoding is unknown"
    return replace(
        participant,
        runs=tuple(
            replace(run, notes=(*run.notes, note))
            if run.encoding.is_guess and len(siblings[run.session]) > 1
            else run
            for run in participant.runs
        ),
        problems=tuple(problems),
    )


def _attach_b0_series(runs: Sequence[DiffusionRun], *, b0_threshold: float) -> list[DiffusionRun]:
    """Turn series of b0s alone into fieldmaps of the other series of their session.

    Scanners often store the b0s with opposite phase encoding as a diffusion series of their
    own; there is no diffusion to see in it, but it tells the distortion of its neighbours.
    """

    def only_b0(run: DiffusionRun) -> bool:
        try:
            return holds_only_b0(run.bval, run.bvec, b0_threshold=b0_threshold)
        except ParticipantError:
            return False  # stays in line and is reported when it is checked

    weighted = [run for run in runs if not only_b0(run)]
    sessions = {run.session for run in weighted}
    references = [run for run in runs if run not in weighted and run.session in sessions]
    return [
        replace(
            run,
            fieldmaps=run.fieldmaps
            + tuple(
                FieldmapRun(
                    image=reference.image,
                    metadata=reference.metadata,
                    encoding=reference.encoding,
                )
                for reference in references
                if reference.session == run.session
            ),
        )
        for run in runs
        if run not in references
    ]


def _run(image: Path, files: _Files, needs: _Needs) -> DiffusionRun:
    entities, _ = split_name(image)
    header = read_header(image)
    gradients = {}
    for kind in (".bval", ".bvec"):
        nearest = next(needs.sidecars.applicable(image, kind), None)
        if nearest is None:
            raise ParticipantError(
                expected=f"a {kind} file for {image}",
                found="none beside it or above it",
                remedy="convert the DICOM files with dcm2niix, which writes it",
            )
        gradients[kind] = nearest
    metadata = needs.sidecars.metadata(image)
    t1w, notes = _t1w_for(entities.get("ses"), files.t1w, needs.dataset_dir)
    encoding = _encoding(image, metadata)
    if encoding.is_inferred:
        notes.append(f"phase encoding {encoding.source}")
    notes += disbelieved_readouts(metadata)
    notes += _unassigned_fieldmaps(entities.get("ses"), files.fieldmaps, needs)
    if header.stored_shape != header.shape:
        shape = "x".join(map(str, header.stored_shape))
        notes.append(f"{image.name} has shape {shape}; axes of length 1 at its end were dropped")
    return DiffusionRun(
        subject=entities["sub"],
        session=entities.get("ses"),
        entities=entities,
        image=image,
        bval=gradients[".bval"],
        bvec=gradients[".bvec"],
        metadata=metadata,
        encoding=encoding,
        fieldmaps=_fieldmaps_for(image, metadata, files.fieldmaps, needs),
        t1w=t1w,
        notes=tuple(notes),
        mask=needs.masks.find(entities, image),
    )


def _encoding(image: Path, metadata: Mapping[str, Any]) -> PhaseEncoding:
    label = split_name(image)[0].get("dir", "")
    affine = read_header(image).affine
    try:
        return phase_encoding(metadata, label=label, affine=affine)
    except ParticipantError as problem:
        raise ParticipantError(
            expected=problem.expected,
            found=f"{problem.found} for {image}",
            remedy=problem.remedy,
        ) from None


def check_run(run: DiffusionRun, *, b0_threshold: float) -> DiffusionRun:
    """Return a run with what there is to note, or raise a `ParticipantError`.

    Image, gradients and metadata must be whole and fit each other.
    """
    along = run.metadata.get("SliceEncodingDirection")
    if along is not None and not is_direction(along):
        raise ParticipantError(
            expected="a SliceEncodingDirection of i, i-, j, j-, k or k-",
            found=f"{along!r:.60} for {run.image}",
            remedy="correct the sidecar of the scan, or remove the entry",
        )
    if run.mask is not None:
        OwnMasks.check(run.mask)
    table = run_gradients(run, b0_threshold=b0_threshold)
    return replace(run, notes=run.notes + table.notes)


def _t1w_for(
    session: str | None, candidates: Sequence[Path], dataset_dir: Path
) -> tuple[Path | None, list[str]]:
    """Take the T1w of the same session, else the participant's first: anatomy changes slowly.

    A scan can do without; what is wrong with a T1w is a note.
    """
    same = [path for path in candidates if split_name(path)[0].get("ses") == session]
    notes = []
    for path in dict.fromkeys([*same, *candidates]):
        try:
            check_name(path, dataset_dir)
            shape = read_header(path).shape
        except ParticipantError as problem:
            notes.append(f"{path.name} is not used: expected {problem.expected}; found "
                         f"{problem.found}")  # fmt: skip
            continue
        if len(shape) == 3:
            return path, notes
        notes.append(f"{path.name} is not used: it has {len(shape)} axes instead of three")
    return None, notes


def _fieldmaps_for(
    image: Path, metadata: Mapping[str, Any], candidates: Sequence[Path], needs: _Needs
) -> tuple[FieldmapRun, ...]:
    """Find the fieldmaps whose IntendedFor or B0FieldIdentifier points at an image."""
    sources = set(_as_list(metadata.get("B0FieldSource")))
    subject_dir = needs.dataset_dir / f"sub-{split_name(image)[0]['sub']}"
    chosen = []
    for candidate in candidates:
        about = needs.sidecars.metadata(candidate)
        intended = {
            needs.dataset_dir / target.removeprefix("bids::")
            if target.startswith("bids::")
            else subject_dir / target
            for target in _as_list(about.get("IntendedFor"))
        }
        if image in intended or sources & set(_as_list(about.get("B0FieldIdentifier"))):
            encoding = _encoding(candidate, about)
            chosen.append(FieldmapRun(image=candidate, metadata=about, encoding=encoding))
    return tuple(chosen)


def _unassigned_fieldmaps(
    session: str | None, candidates: Sequence[Path], needs: _Needs
) -> list[str]:
    """Name fieldmaps of a session that do not say which scans they are for."""
    unassigned = [
        path.name
        for path in candidates
        if split_name(path)[0].get("ses") == session
        and not {"IntendedFor", "B0FieldIdentifier"} & needs.sidecars.metadata(path).keys()
    ]
    return [
        f"{name} is not used: its sidecar has neither IntendedFor nor B0FieldIdentifier"
        for name in unassigned
    ]


def _as_list(value: object) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
