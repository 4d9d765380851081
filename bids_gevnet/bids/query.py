"""From a BIDS dataset to typed records of its diffusion runs.

pybids indexes the dataset (only anatomical, diffusion and fieldmap files, without their
metadata); sidecars are read for the runs that are really wanted. Whatever is wrong with one
participant is kept with that participant, so that the others can go on.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.gradient_files import check_gradients, read_bval, read_bvec
from bids_gevnet.bids.images import check_image, require_series
from bids_gevnet.bids.records import DiffusionRun, FieldmapRun, Participant
from bids_gevnet.bids.sidecars import applicable_files, read_metadata, split_name
from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.settings import SelectionSettings

if TYPE_CHECKING:
    from bids import BIDSLayout

_IMAGE = [".nii", ".nii.gz"]
_UNUSED_DATATYPES = "func|perf|eeg|ieeg|emg|meg|pet|beh|micr|motion|nirs|mrs"
_DEFAULT_FILTERS: dict[str, dict[str, Any]] = {
    "dwi": {"datatype": "dwi", "suffix": "dwi", "extension": _IMAGE},
    "t1w": {"datatype": "anat", "suffix": "T1w", "extension": _IMAGE},
    "fmap": {"datatype": "fmap", "suffix": "epi", "extension": _IMAGE},
}


def find_participants(
    dataset_dir: Path, selection: SelectionSettings, *, b0_threshold: float
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

    Raises
    ------
    InputError
        If the dataset as a whole cannot be used.
    """
    dataset_dir = dataset_dir.resolve()
    check_description(dataset_dir)
    filters = read_filter_file(selection.bids_filter_file)
    wanted = tuple(label.removeprefix("sub-") for label in selection.participant_label)
    present = sorted(
        path.name.removeprefix("sub-") for path in dataset_dir.glob("sub-*") if path.is_dir()
    )
    _require_labels(wanted, present, option="--participant-label", what="participant")
    layout = index_dataset(dataset_dir, wanted, selection.bids_database_dir)
    sessions = tuple(label.removeprefix("ses-") for label in selection.session_label)
    _require_labels(sessions, layout.get_sessions(), option="--session-label", what="session")
    images = _images(layout, filters["dwi"], subjects=wanted, sessions=sessions)
    if not images:
        raise InputError(
            expected="diffusion series (sub-*/[ses-*/]dwi/*_dwi.nii.gz)",
            found=f"none in {dataset_dir} that fit the selection",
            remedy="check BIDS_DIR, --session-label and --bids-filter-file",
        )
    t1w = _by_subject(_images(layout, filters["t1w"], subjects=wanted))
    fieldmaps = _by_subject(_images(layout, filters["fmap"], subjects=wanted))
    by_subject = _by_subject(images)
    return tuple(
        _participant(
            label,
            by_subject.get(label, []),
            t1w=t1w.get(label, []),
            fieldmaps=fieldmaps.get(label, []),
            dataset_dir=dataset_dir,
            b0_threshold=b0_threshold,
        )
        # Without a request by name, participants who were never scanned are none of ours.
        for label in (sorted(set(wanted)) if wanted else sorted(by_subject))
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
        description = json.loads(path.read_text(encoding="utf-8-sig"))
        missing = [key for key in ("Name", "BIDSVersion") if key not in description]
    except (ValueError, TypeError) as error:
        raise InputError(
            expected=f"a JSON object in {path}", found=str(error), remedy="mend the file"
        ) from None
    if missing:
        raise InputError(
            expected=f"Name and BIDSVersion in {path}",
            found=f"no {' and no '.join(missing)}",
            remedy="add them, for instance {'Name': 'My study', 'BIDSVersion': '1.10.0'}",
        )


def read_filter_file(path: Path | None) -> dict[str, dict[str, Any]]:
    """Merge a filter file, written as for fMRIPrep, into the default pybids queries."""
    if path is None:
        return _DEFAULT_FILTERS
    try:
        custom = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a JSON file for --bids-filter-file",
            found=f"{path} ({error})",
            remedy="check the path and the file's syntax",
        ) from None
    known = isinstance(custom, dict) and set(custom) <= set(_DEFAULT_FILTERS)
    if not known or not all(isinstance(value, dict) for value in custom.values()):
        raise InputError(
            expected=f"an object with some of the keys {', '.join(_DEFAULT_FILTERS)}, each an "
            f"object of entities, in {path}",
            found=json.dumps(custom)[:200],
            remedy='write for instance {"dwi": {"acquisition": "b1000"}}',
        )
    return {name: query | custom.get(name, {}) for name, query in _DEFAULT_FILTERS.items()}


def index_dataset(
    dataset_dir: Path, subjects: Sequence[str], database_dir: Path | None
) -> "BIDSLayout":
    """Index what the app may use and nothing else.

    With a database directory all participants are indexed whatever was asked for, because
    the next run will read the same database and may ask for others.
    """
    from bids import BIDSLayout, BIDSLayoutIndexer

    ignore = [
        re.compile(r"^/(code|derivatives|models|sourcedata|stimuli)(/|$)"),
        re.compile(rf"/({_UNUSED_DATATYPES})(/|$)"),
        re.compile(r"/\."),
    ]
    if subjects and database_dir is None:
        labels = "|".join(re.escape(label) for label in subjects)
        ignore.append(re.compile(rf"^/sub-(?!({labels})(/|$))"))
    return BIDSLayout(
        dataset_dir,
        indexer=BIDSLayoutIndexer(validate=False, index_metadata=False, ignore=ignore),
        database_path=database_dir,
    )


def _require_labels(
    wanted: Sequence[str], present: Sequence[str], *, option: str, what: str
) -> None:
    unknown = [label for label in wanted if label not in present]
    if unknown:
        shown = ", ".join(present[:10]) + (", ..." if len(present) > 10 else "")
        raise InputError(
            expected=f"labels of {what}s in the dataset for {option}",
            found=f"{', '.join(unknown)}, which the dataset does not have",
            remedy=f"choose among its {len(present)}: {shown}"
            if present
            else f"leave {option} out: the dataset has no {what}s",
        )


def _images(
    layout: "BIDSLayout",
    query: Mapping[str, Any],
    *,
    subjects: Sequence[str],
    sessions: Sequence[str] = (),
) -> list[Path]:
    query = dict(query)
    if subjects:
        query.setdefault("subject", list(subjects))
    if sessions:
        query.setdefault("session", list(sessions))
    return sorted(Path(name) for name in layout.get(return_type="filename", **query))


def _by_subject(images: Sequence[Path]) -> dict[str, list[Path]]:
    grouped: dict[str, list[Path]] = {}
    for image in images:
        grouped.setdefault(split_name(image)[0].get("sub", ""), []).append(image)
    return grouped


def _participant(
    label: str,
    images: Sequence[Path],
    *,
    t1w: Sequence[Path],
    fieldmaps: Sequence[Path],
    dataset_dir: Path,
    b0_threshold: float,
) -> Participant:
    if not images:
        problem = ParticipantError(
            expected=f"diffusion series of participant {label}",
            found=f"none in {dataset_dir / f'sub-{label}'} that fit the selection",
            remedy="leave the participant out, or check --session-label and --bids-filter-file",
        )
        return Participant(label=label, problems=(problem,))
    found: list[DiffusionRun] = []
    problems: list[ParticipantError] = []
    for image in images:
        try:
            found.append(_run(image, t1w=t1w, fieldmaps=fieldmaps, dataset_dir=dataset_dir))
        except ParticipantError as problem:
            problems.append(problem)
    runs = []
    for run in _attach_b0_series(found, b0_threshold=b0_threshold):
        try:
            check_run(run, b0_threshold=b0_threshold)
        except ParticipantError as problem:
            problems.append(problem)
        else:
            runs.append(run)
    return Participant(label=label, runs=tuple(runs), problems=tuple(problems))


def _attach_b0_series(runs: Sequence[DiffusionRun], *, b0_threshold: float) -> list[DiffusionRun]:
    """Turn series of b0s alone into fieldmaps of the other series of their session.

    Scanners often store the b0s with opposite phase encoding as a diffusion series of their
    own; there is no diffusion to see in it, but it tells the distortion of its neighbours.
    """

    def only_b0(run: DiffusionRun) -> bool:
        try:
            return bool((read_bval(run.bval) <= b0_threshold).all())
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
                FieldmapRun(image=reference.image, metadata=reference.metadata)
                for reference in references
                if reference.session == run.session
            ),
        )
        for run in runs
        if run not in references
    ]


def _run(
    image: Path, *, t1w: Sequence[Path], fieldmaps: Sequence[Path], dataset_dir: Path
) -> DiffusionRun:
    entities, _ = split_name(image)
    if not image.exists():
        raise ParticipantError(
            expected=f"the file {image}",
            found="it in the index but not on disk",
            remedy="fetch the file (git-annex, DataLad), or delete the --bids-database-dir if "
            "the dataset has changed",
        )
    gradients = {}
    for kind in (".bval", ".bvec"):
        found = next(applicable_files(image, kind, dataset_dir), None)
        if found is None:
            raise ParticipantError(
                expected=f"a {kind} file for {image}",
                found="none beside it or above it",
                remedy="convert the DICOM files with dcm2niix, which writes it",
            )
        gradients[kind] = found
    metadata = read_metadata(image, dataset_dir)
    return DiffusionRun(
        subject=entities["sub"],
        session=entities.get("ses"),
        entities=entities,
        image=image,
        bval=gradients[".bval"],
        bvec=gradients[".bvec"],
        metadata=metadata,
        fieldmaps=_fieldmaps_for(image, metadata, fieldmaps, dataset_dir),
        t1w=_t1w_for(entities.get("ses"), t1w),
    )


def check_run(run: DiffusionRun, *, b0_threshold: float) -> None:
    """Raise a `ParticipantError` unless image and gradients are whole and fit each other."""
    shape = check_image(run.image)
    for fieldmap in run.fieldmaps:
        check_image(fieldmap.image)
    check_gradients(
        read_bval(run.bval),
        read_bvec(run.bvec),
        n_volumes=require_series(run.image, shape),
        b0_threshold=b0_threshold,
        image=run.image,
        bval=run.bval,
        bvec=run.bvec,
    )


def _t1w_for(session: str | None, candidates: Sequence[Path]) -> Path | None:
    """Take the T1w of the same session, else the participant's first: anatomy changes slowly."""
    same = [path for path in candidates if split_name(path)[0].get("ses") == session]
    return next(iter([*same, *candidates]), None)


def _fieldmaps_for(
    image: Path, metadata: Mapping[str, Any], candidates: Sequence[Path], dataset_dir: Path
) -> tuple[FieldmapRun, ...]:
    """Find the fieldmaps whose IntendedFor or B0FieldIdentifier points at an image."""
    sources = set(_as_list(metadata.get("B0FieldSource")))
    subject_dir = dataset_dir / f"sub-{split_name(image)[0]['sub']}"
    chosen = []
    for candidate in candidates:
        about = read_metadata(candidate, dataset_dir)
        intended = {
            dataset_dir / target.removeprefix("bids::")
            if target.startswith("bids::")
            else subject_dir / target
            for target in _as_list(about.get("IntendedFor"))
        }
        if image in intended or sources & set(_as_list(about.get("B0FieldIdentifier"))):
            chosen.append(FieldmapRun(image=candidate, metadata=about))
    return tuple(chosen)


def _as_list(value: object) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
