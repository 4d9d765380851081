"""What a run would do, as text for a person."""

from collections import Counter
from collections.abc import Collection, Sequence
from statistics import median
from typing import TYPE_CHECKING

from bids_gevnet.bids.preprocessed.record import PreprocessedScan
from bids_gevnet.bids.records import DiffusionRun, Participant
from bids_gevnet.dwi.shells import name_shells
from bids_gevnet.errors import printable
from bids_gevnet.learn.cohort.left_out import name_left_out
from bids_gevnet.settings import Settings, to_toml

if TYPE_CHECKING:
    from bids_gevnet.learn.cohort.members import Cohort
    from bids_gevnet.learn.models.files import ModelCard
    from bids_gevnet.learn.train.planning import StudyPlan
    from bids_gevnet.learn.train.torchrun import Devices

_PREPROCESSING, _TRAINING = ("preprocessing",), ("learning",)


def describe_participants(
    participants: Sequence[Participant], settings: Settings, finished: Collection[str] = ()
) -> str:
    """Describe the participants, their runs and the settings of a participant level run.

    Parameters
    ----------
    participants : sequence of Participant
    settings : Settings
    finished : collection of str
        Labels of those for whom nothing is left to do.
    """
    left = sum(person.usable and person.label not in finished for person in participants)
    done = f", {len(finished)} finished before" if finished else ""
    lines = [f"{left} of {len(participants)} participants would be processed{done}:"]
    for participant in participants:
        mark = "" if participant.usable else "  [cannot be processed]"
        if participant.label in finished:
            mark = "  [finished before]"
        lines.append(f"  sub-{participant.label}{mark}")
        for run in participant.runs:
            lines.append(f"    {_describe_run(run)}")
            lines += [f"      note: {printable(note)}" for note in run.notes]
        lines += [f"    problem: {problem}" for problem in participant.problems]
    without = _TRAINING if settings.learning.model is None else ()
    lines += ["", "with these settings:", *_indented(to_toml(settings, without=without))]
    return "\n".join(lines)


def describe_study(
    cohort: "Cohort", plan: "StudyPlan", settings: Settings, devices: "Devices"
) -> str:
    """Describe whom a group level run would study, what it would train, and how long for."""
    lines = [
        *_describe_cohort(cohort),
        *_describe_tasks(cohort, plan),
        *_describe_effort(cohort, plan, settings),
        *(f"  {line}" for line in describe_time(cohort, plan, settings, devices)),
        "with these settings:",
        *_indented(to_toml(settings, without=_unused_by_groups(settings))),
    ]
    return "\n".join(lines)


def describe_validation(cohort: "Cohort", card: "ModelCard", settings: Settings) -> str:
    """Describe whom a finished model would be validated on."""
    unknown = sorted({row.site for row in cohort.rows} - set(card.sites))
    lines = [
        *_describe_cohort(cohort, verb="scored"),
        f"model: {card.network}, {' v. '.join(card.labels)}"
        + (" (a number)" if card.is_regression else ""),
        f"  trained on: {len(card.participants)} participants of "
        + (card.dataset or "a dataset without a name"),
    ]
    if card.harmonised and unknown:
        lines.append(f"  not harmonised, because the model does not know: {', '.join(unknown)}")
    without = _unused_by_groups(settings)
    lines += ["with these settings:", *_indented(to_toml(settings, without=without))]
    return "\n".join(printable(line) for line in lines)


def _unused_by_groups(settings: Settings) -> tuple[str, ...]:
    """Tables that the group level does not read: scans are on the grid that they were made on."""
    return _PREPROCESSING if settings.preprocessing.shell is None else ()


def _describe_cohort(cohort: "Cohort", verb: str = "studied") -> list[str]:
    people = {row.participant: row for row in cohort.rows}
    sites = Counter(row.site for row in people.values())
    lines = [f"{len(people)} participants with {len(cohort.rows)} scans would be {verb}:"]
    if cohort.is_regression:
        values = sorted(row.number for row in cohort.rows)
        unit = f" ({cohort.unit})" if cohort.unit else ""
        middle = f"median {median(values):g}"
        lines.append(f"  {cohort.target}{unit}: {values[0]:g} to {values[-1]:g}, {middle}")
    else:
        lines += [f"  {label}: {len(cohort.people(label))}" for label in cohort.labels]
    if cohort.b_values:
        lines.append(f"shells: {name_shells(cohort.b_values)}")
    lines += ["sites:", *(f"  {site}: {count}" for site, count in sorted(sites.items()))]
    lines.append(f"left out: {len(cohort.left_out)}")
    lines += [f"  {line}" for line in name_left_out(cohort.left_out)]
    lines += [f"note: {text}" for text in cohort.remarks]
    lines += [f"warning: {text}" for text in cohort.warnings]
    return [printable(line) for line in lines]


def _describe_tasks(cohort: "Cohort", plan: "StudyPlan") -> list[str]:
    lines = ["tasks:"]
    for task in plan.tasks:
        folds = plan.folds[task.slug]
        people = {
            number: {cohort.rows[i].participant for i in (folds == number).nonzero()[0]}
            for number in range(int(folds.max()) + 1)
        }
        sizes = ", ".join(str(len(members)) for members in people.values())
        kind = "predict the number, " if task.is_regression else ""
        lines.append(f"  {task.title}: {kind}{len(people)} folds, of {sizes} participants")
        lines += [
            f"    site {split.site}: "
            + ("left out in turn" if split.reason is None else f"not left out: {split.reason}")
            for split in plan.sites[task.slug]
        ]
    lines += [f"warning: {text}" for text in plan.warnings]
    return [printable(line) for line in lines]


def _describe_effort(cohort: "Cohort", plan: "StudyPlan", settings: Settings) -> list[str]:
    from bids_gevnet.learn.train.effort import plan_effort

    effort = plan_effort(cohort, plan, settings.learning)
    least, most = min(effort.steps), max(effort.steps)
    steps = str(least) if least == most else f"{least} to {most}"
    kinds = Counter(
        "folds" if model.split.fold is not None and model.split.site is None
        else "left-out sites" if model.split.site is not None
        else "final models"
        for model in plan.models
    )  # fmt: skip
    return [
        f"models to train: {len(plan.models)} of {', '.join(plan.networks)}",
        *(f"  {kind}: {count}" for kind, count in kinds.items()),
        "effort:",
        f"  steps per model: {steps}",
        f"  scans through a network, over all models: {effort.scan_passes}",
        f"  disk in the work directory, about: {_size(effort.store_bytes)} for scans",
        f"  disk in OUTPUT_DIR, at most: {_size(effort.model_bytes)} for models",
    ]


def describe_time(
    cohort: "Cohort", plan: "StudyPlan", settings: Settings, devices: "Devices"
) -> list[str]:
    """Time a step on this machine, and say how long the models of a plan will train."""
    from bids_gevnet.learn.evaluate.saliency_maps import MAX_SCANS
    from bids_gevnet.learn.train.effort import plan_effort
    from bids_gevnet.learn.train.pace import DAY_H, forecast

    effort = plan_effort(cohort, plan, settings.learning)
    expected = forecast(cohort, plan, effort, settings.learning, devices, explained=MAX_SCANS)
    kind = "GPU" if devices.gpu else "CPU process"
    count = f"{devices.processes} {kind}" + ("es" if not devices.gpu else "s") * (
        devices.processes > 1
    )
    first = (
        f"training takes {_about(expected.hours)} on this machine with these settings "
        f"({count}, by a timed step)"
    )
    others = [f"{option} would make it {_duration(hours)}" for option, hours in expected.others]
    lines = [first, *others]
    if expected.hours > DAY_H:
        lines.append(
            "more than a day: change one of these, or train on a GPU or on several machines "
            "(containers/slurm); --resume continues a training that was stopped"
        )
    return lines


def _about(hours: float) -> str:
    duration = _duration(hours)
    return duration if duration.startswith("less") else f"about {duration}"


def _duration(hours: float) -> str:
    """Write hours so that no more digits are given than are known.

    >>> _duration(0.004), _duration(0.7), _duration(30.2), _duration(5200)
    ('less than a minute', '42 minutes', '30 hours', '217 days')
    """
    minutes = round(60 * hours)
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return "1 minute" if minutes == 1 else f"{minutes} minutes"
    return f"{hours:.2g} hours" if hours < 100 else f"{hours / 24:.0f} days"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _describe_run(run: DiffusionRun) -> str:
    if run.preprocessed is not None:
        return _describe_preprocessed(run, run.preprocessed)
    parts = [run.image.name, f"phase encoding {_encoding(run)}"]
    if run.mask is not None:
        parts.append(f"brain mask {run.mask}")
    if run.fieldmaps:
        parts.append(f"{len(run.fieldmaps)} fieldmap image(s)")
    if run.t1w is not None:
        parts.append(run.t1w.name)
    return ", ".join(parts)


def _describe_preprocessed(run: DiffusionRun, scan: PreprocessedScan) -> str:
    parts = [scan.relative_image, f"preprocessed by {scan.dataset}"]
    parts.append("no brain mask" if run.mask is None else f"brain mask {run.mask.name}")
    if scan.transform is not None:
        parts.append(f"transform to {scan.template}")
    if run.t1w is not None:
        parts.append(run.t1w.name)
    return ", ".join(parts)


def _encoding(run: DiffusionRun) -> str:
    return "unknown" if run.encoding.is_guess else run.encoding.direction


def _indented(text: str) -> list[str]:
    return [f"  {line}" if line else "" for line in text.rstrip().splitlines()]
