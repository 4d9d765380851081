"""Collect what a person has to know first about a group run."""

from collections.abc import Iterator, Sequence

from bids_gevnet.report.alerts import LEAST_COVERAGE, LEVELS, Alert
from bids_gevnet.report.group.cohort import Measure, SiteTable
from bids_gevnet.report.group.leakage_audit import FAILED, Audit
from bids_gevnet.report.group.study_files import StudyFiles

_NAMED = 6


def collect_study_alerts(
    study: StudyFiles,
    sites: SiteTable,
    measures: Sequence[Measure],
    audits: Sequence[Audit],
) -> list[Alert]:
    """Gather all alerts, the gravest first, each once."""
    sources = (
        _completeness(study),
        _audit(audits),
        _warnings(study),
        _confounded(study, sites),
        _remarks(study),
        scan_alerts(study, measures),
    )
    alerts = dict.fromkeys(alert for source in sources for alert in source)
    return sorted(alerts, key=lambda alert: LEVELS.index(alert.level))


def _completeness(study: StudyFiles) -> Iterator[Alert]:
    for name, there in (
        ("group_cohort.tsv", bool(study.scans)),
        ("group_predictions.tsv", bool(study.predictions)),
        ("group_metrics.json", bool(study.metrics)),
        ("models", bool(study.models or study.external)),
    ):
        if not there:
            yield Alert("error", f"{name} is missing or cannot be read: run the group level.")


def _remarks(study: StudyFiles) -> Iterator[Alert]:
    texts = study.metrics.get("remarks")
    for text in texts if isinstance(texts, list) else []:
        if isinstance(text, str) and text.strip():
            yield Alert("note", text)


def _audit(audits: Sequence[Audit]) -> Iterator[Alert]:
    for audit in audits:
        for check in audit.checks:
            if check.status == FAILED:
                yield Alert(
                    "error",
                    f"Leakage audit, {audit.task}, {audit.network}: not true that "
                    f"{check.question[:1].lower()}{check.question[1:]}. {check.detail}",
                    "audit",
                )


def _warnings(study: StudyFiles) -> Iterator[Alert]:
    texts = study.metrics.get("warnings")
    for text in texts if isinstance(texts, list) else []:
        if isinstance(text, str) and text.strip():
            yield Alert("warning", text)


def _confounded(study: StudyFiles, sites: SiteTable) -> Iterator[Alert]:
    said = any("cannot be separated" in alert.text for alert in _warnings(study))
    if study.is_regression:  # thirds of a number are no groups
        return
    if sites.alone and not said:
        yield Alert(
            "warning",
            f"Only one diagnosis at {_list(sites.alone)}: there, differences between scanners and "
            "between diagnoses cannot be separated.",
            "cohort",
        )


def scan_alerts(study: StudyFiles, measures: Sequence[Measure]) -> Iterator[Alert]:
    """Say which scans stand out by their own reports or among the others of their site."""
    for level in ("error", "warning"):
        people = [s.scan for s in study.scans if any(alert.level == level for alert in s.alerts)]
        if people:
            yield Alert(
                "warning" if level == "error" else "note",
                f"Scans with {level}s of their own: {_list(people)}.",
                "participants",
            )
    unread = [scan.scan for scan in study.scans if scan.files is None]
    if unread:
        yield Alert("warning", f"Derivatives are missing of {_list(unread)}.", "participants")
    cut = [
        f"{scan.scan} ({scan.files.facts.registration.coverage:.0%})"
        for scan in study.scans
        if scan.files is not None
        and (scan.files.facts.registration.coverage or 1.0) < LEAST_COVERAGE
    ]
    if cut:
        yield Alert(
            "warning",
            f"Field of view: less than {LEAST_COVERAGE:.0%} of the template's brain is in that of "
            f"{_list(cut)}. A network may tell people apart by what is missing: consider to "
            "exclude them with --participants-file.",
            "participants",
        )
    for measure in measures:
        if measure.far:
            names = _list([study.scans[i].scan for i in measure.far])
            yield Alert(
                "note", f"{measure.name}: {names} far from the others of the site.", "quality"
            )


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
