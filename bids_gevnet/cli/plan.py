"""What a run would do, as text for a person."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.errors import printable
from bids_gevnet.settings import Settings, to_toml


def describe_participants(participants: Sequence[Participant], settings: Settings) -> str:
    """Describe the participants, their runs and the settings of a participant level run."""
    usable = sum(participant.usable for participant in participants)
    lines = [f"{usable} of {len(participants)} participants would be processed:"]
    for participant in participants:
        mark = "" if participant.usable else "  [cannot be processed]"
        lines.append(f"  sub-{participant.label}{mark}")
        for run in participant.runs:
            lines.append(f"    {_describe_run(run)}")
            lines += [f"      note: {printable(note)}" for note in run.notes]
        lines += [f"    problem: {problem}" for problem in participant.problems]
    lines += ["", "with these settings:", *_indented(to_toml(settings))]
    return "\n".join(lines)


def describe_labels(labels: Iterable[str | None], column: str) -> str:
    """Describe the classes that a group level run would tell apart."""
    counts = Counter("(missing)" if label is None else label for label in labels)
    rows = [f"  {label}: {count}" for label, count in sorted(counts.items())]
    return "\n".join([f"labels in column {column}:", *rows])


def _describe_run(run: DiffusionRun) -> str:
    parts = [run.image.name, f"phase encoding {_encoding(run)}"]
    if run.fieldmaps:
        parts.append(f"{len(run.fieldmaps)} fieldmap image(s)")
    if run.t1w is not None:
        parts.append(run.t1w.name)
    return ", ".join(parts)


def _encoding(run: DiffusionRun) -> str:
    return "unknown" if run.encoding.is_guess else run.encoding.direction


def _indented(text: str) -> list[str]:
    return [f"  {line}" if line else "" for line in text.rstrip().splitlines()]
