"""What a person has to know of a group run before anything else."""

from collections.abc import Iterator, Sequence

from bids_gevnet.report.alerts import LEVELS, Finding
from bids_gevnet.report.group.cohort import Measure, SiteTable
from bids_gevnet.report.group.leakage_audit import FAILED, Audit
from bids_gevnet.report.group.results import TaskResult, verdict
from bids_gevnet.report.group.study_files import GroupEvidence

_STRONG = 0.3
_NAMED = 6


def collect_group_findings(
    evidence: GroupEvidence,
    sites: SiteTable,
    measures: Sequence[Measure],
    results: Sequence[TaskResult],
    audits: Sequence[Audit],
) -> list[Finding]:
    """Gather all findings, the gravest first, each once."""
    sources = (
        _completeness(evidence),
        _audit(audits),
        _warnings(evidence),
        _confounded(sites),
        _verdicts(results),
        _scans(evidence, measures),
    )
    found = dict.fromkeys(finding for source in sources for finding in source)
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _completeness(evidence: GroupEvidence) -> Iterator[Finding]:
    for name, there in (
        ("group_cohort.tsv", bool(evidence.scans)),
        ("group_predictions.tsv", bool(evidence.predictions)),
        ("group_metrics.json", bool(evidence.metrics)),
        ("models", bool(evidence.models)),
    ):
        if not there:
            yield Finding("error", f"{name} is missing or cannot be read: run the group level.")


def _audit(audits: Sequence[Audit]) -> Iterator[Finding]:
    for audit in audits:
        for check in audit.checks:
            if check.status == FAILED:
                yield Finding(
                    "error",
                    f"Leakage audit, {audit.task}, {audit.network}: not true that "
                    f"{check.question[:1].lower()}{check.question[1:]}. {check.detail}",
                    "audit",
                )


def _warnings(evidence: GroupEvidence) -> Iterator[Finding]:
    texts = evidence.metrics.get("warnings")
    for text in texts if isinstance(texts, list) else []:
        if isinstance(text, str) and text.strip():
            yield Finding("warning", text)


def _confounded(sites: SiteTable) -> Iterator[Finding]:
    if sites.association is not None and sites.association >= _STRONG:
        yield Finding(
            "warning",
            f"Site and diagnosis go together (Cramér's V {sites.association:.2f}): what tells "
            "sites apart also tells diagnoses apart. Compare with what site alone reaches.",
            "cohort",
        )
    if sites.alone:
        yield Finding(
            "warning",
            f"Only one diagnosis at {_list(sites.alone)}: there, differences between scanners and "
            "between diagnoses cannot be separated.",
            "cohort",
        )


def _verdicts(results: Sequence[TaskResult]) -> Iterator[Finding]:
    for task in results:
        level, text = verdict(task)
        if level == "warning":
            yield Finding("warning", f"{task.title}. {text}", "results")


def _scans(evidence: GroupEvidence, measures: Sequence[Measure]) -> Iterator[Finding]:
    for level in ("error", "warning"):
        people = [s.scan for s in evidence.scans if any(f.level == level for f in s.findings)]
        if people:
            yield Finding(
                "warning" if level == "error" else "note",
                f"Scans with {level}s of their own: {_list(people)}.",
                "participants",
            )
    unread = [scan.scan for scan in evidence.scans if scan.evidence is None]
    if unread:
        yield Finding("warning", f"Derivatives are missing of {_list(unread)}.", "participants")
    for measure in measures:
        if measure.far:
            names = _list([evidence.scans[i].scan for i in measure.far])
            yield Finding(
                "note", f"{measure.name}: {names} far from the others of the site.", "quality"
            )


def _list(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
