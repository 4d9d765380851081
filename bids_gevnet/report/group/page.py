"""Build group_report.html: cohort, quality, results, models and audit, from the files on disk."""

import subprocess  # nosec B404
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bids_gevnet.bids.reading import read_json
from bids_gevnet.bids.writing import write_text
from bids_gevnet.report.alerts import LEVELS
from bids_gevnet.report.group.alerts import collect_study_alerts
from bids_gevnet.report.group.charts import (
    draw_calibration,
    draw_learning,
    draw_pr,
    draw_roc,
    draw_scatter,
)
from bids_gevnet.report.group.cohort import (
    Measure,
    count_sites,
    describe_classes,
    describe_left_out,
    measure_scans,
    rank_outliers,
)
from bids_gevnet.report.group.harmonisation import (
    GainMap,
    RishReader,
    SiteEffect,
    draw_gains,
    draw_site_effect,
    group_mask,
    harmonisation_warnings,
    measure_site_effect,
    why_unchanged,
)
from bids_gevnet.report.group.leakage_audit import audit_group
from bids_gevnet.report.group.limits import LIMITS, Limits
from bids_gevnet.report.group.mean_maps import draw_mean_maps
from bids_gevnet.report.group.methods import describe_group, facts_of_run
from bids_gevnet.report.group.mosaic import draw_mosaic
from bids_gevnet.report.group.networks_compared import read_ablation
from bids_gevnet.report.group.participants import describe_people
from bids_gevnet.report.group.quality_strips import (
    class_style,
    draw_strips,
    key_mark,
    numbered_sites,
)
from bids_gevnet.report.group.results import (
    ENOUGH_TO_CALIBRATE,
    TaskResult,
    read_results,
)
from bids_gevnet.report.group.saliency import (
    Agreement,
    SaliencyView,
    compare_maps,
    read_saliency,
)
from bids_gevnet.report.group.study_files import StudyFiles, read_study
from bids_gevnet.report.methods_text import Methods, to_markdown
from bids_gevnet.report.page import render_page
from bids_gevnet.report.scan_files import Volume, read_template
from bids_gevnet.versions import list_versions

REPORT = "group_report.html"


def build_group_report(
    output_dir: Path, study: StudyFiles | None = None, *, limits: Limits = LIMITS
) -> Path:
    """Build the report of a cohort.

    Parameters
    ----------
    output_dir : Path
        Top of the derivatives, after the group level.
    study : StudyFiles, optional
        What `read_study` found there, where it is known.
    limits : Limits
        Scans up to which each is shown.

    Returns
    -------
    report : Path
        ``output_dir / group_report.html``; the same bytes for the same files.
    """
    study = study or read_study(output_dir)
    results = read_results(study.metrics)
    sites = count_sites(study.scans)
    measures = measure_scans(study.scans)
    audits = audit_group(study)
    alerts = collect_study_alerts(study, sites, measures, audits)
    template = study_template(study)
    page = render_page(
        "group.html.j2",
        {
            "title": "Group report",
            "study": study,
            "alerts": alerts,
            "rating": False,
            "counts": {level: sum(f.level == level for f in alerts) for level in LEVELS},
            "left_out": describe_left_out(study.metrics),
            "sites": sites,
            **describe_scans(study, measures, results, template, limits),
            "harmonisation": _harmonisation(study, limits),
            "results": [_describe_task(task) for task in results],
            "enough_to_calibrate": ENOUGH_TO_CALIBRATE,
            "interval_notes": _sentences(study.metrics.get("methods")),
            "ablation": read_ablation(study.metrics),
            "saliency": _saliency(study, template),
            "learning": _learning(study),
            "audits": audits,
            "titles": _titles(study),
            "methods": group_methods(study),
            "environment": _environment(study),
        },
    )
    path = output_dir / REPORT
    write_text(path, page)
    return path


def describe_scans(
    study: StudyFiles,
    measures: Sequence[Measure],
    results: Sequence[TaskResult],
    template: tuple[Volume, Volume] | None,
    limits: Limits,
) -> dict[str, Any]:
    """Describe and draw the scans of a cohort, for whichever page shows them."""
    scans, style = study.scans, class_style(study.labels)
    outliers = rank_outliers(scans, measures)
    return {
        "classes": describe_classes(scans),
        "looks": style,
        "marks": {label: key_mark(*look) for label, look in style.items()},
        "numbered": numbered_sites(study.sites),
        "strips": draw_strips(scans, measures, most_dots=limits.dots),
        "people": describe_people(study, measures, results, most_rows=limits.rows),
        "mosaic": template
        and draw_mosaic(scans, template[1], outliers=outliers, most=limits.tiles),
        "mean_maps": draw_mean_maps(scans, most=limits.averaged),
    }


def group_methods(study: StudyFiles) -> Methods:
    """Describe the methods of both levels, as they ran."""
    scans = [scan.files.facts for scan in study.scans if scan.files is not None]
    return describe_group(facts_of_run(study), scans)


def write_group_methods(output_dir: Path, study: StudyFiles | None = None) -> Path:
    """Write CITATION.md: the methods of both levels, with what to cite."""
    path = output_dir / "CITATION.md"
    write_text(path, to_markdown(group_methods(study or read_study(output_dir))))
    return path


def study_template(study: StudyFiles) -> tuple[Volume, Volume] | None:
    """Read the template and its brain, of the first scan that is there."""
    settings = _settings(study.output_dir, "settings.toml").get("preprocessing", {})
    for scan in study.scans:
        if scan.files is not None:
            return read_template(scan.files, settings)
    return None


def _sentences(raw: Any) -> list[str]:
    return (
        [text for text in raw.values() if isinstance(text, str)] if isinstance(raw, dict) else []
    )


@dataclass(frozen=True)
class TaskSection:
    """A task with its charts."""

    task: TaskResult
    roc: Markup | None
    pr: Markup | None
    calibration: Markup | None
    scatter: Markup | None = None


def _describe_task(task: TaskResult) -> TaskSection:
    evaluation = task.main.folds if task.main else None
    if evaluation is None:
        return TaskSection(task, None, None, None)
    if task.is_regression:
        name = f"{task.key}-scatter"
        drawn = draw_scatter(evaluation, target=task.title, unit=task.unit, name=name)
        return TaskSection(task, None, None, None, drawn)
    calibrated = evaluation.shows_calibration
    return TaskSection(
        task,
        draw_roc(evaluation, name=f"{task.key}-roc"),
        draw_pr(evaluation, name=f"{task.key}-pr"),
        draw_calibration(evaluation, name=f"{task.key}-calibration") if calibrated else None,
    )


@dataclass(frozen=True)
class HarmonisationSection:
    """Harmonisation of one task: effect, maps, warnings."""

    task: str
    title: str
    effect: SiteEffect | None
    chart: Markup | None
    gains: list[GainMap]
    warnings: Mapping[str, list[str]]
    unchanged: str


def _harmonisation(study: StudyFiles, limits: Limits) -> list[HarmonisationSection]:
    """Describe every task that harmonises; networks of one task share folds and gains."""
    reader, mask = RishReader(study.scans), group_mask(study)
    titles = _titles(study)
    sections = []
    for number, task in enumerate(dict.fromkeys(model.task for model in study.models), 1):
        network = next(model.network for model in study.models if model.task == task)
        folds, final = study.folds_of(task, network), study.final_of(task, network)
        models = [*folds, *([final] if final else [])]
        if not any(model.card.get("harmonised") is True for model in models):
            continue
        effect = measure_site_effect(folds, reader, most=limits.measured)
        drawn = effect is not None and effect.changed
        sections.append(
            HarmonisationSection(
                task,
                titles.get(task, task),
                effect,
                draw_site_effect(effect, name=f"h{number}") if effect and drawn else None,
                draw_gains(final, mask) if final and mask else [],
                harmonisation_warnings(models),
                why_unchanged(folds),
            )
        )
    return sections


def _titles(study: StudyFiles) -> dict[str, str]:
    return {task.task: task.title for task in read_results(study.metrics)}


@dataclass(frozen=True)
class SaliencySection:
    """What every task's predictions rest on, and how alike the maps are."""

    views: list[SaliencyView]
    agreements: list[Agreement]


def _saliency(study: StudyFiles, template: tuple[Volume, Volume] | None) -> SaliencySection:
    results = {task.task: task for task in read_results(study.metrics)}
    views = []
    for number, folder in enumerate(dict.fromkeys(m.folder.parent for m in study.models), 1):
        path = folder / "saliency.json"
        facts = read_json(path)
        task = results.get(str(facts.get("task")))
        view = read_saliency(
            path,
            template,
            title=task.title if task else str(facts.get("task", "")),
            p=None if task is None else task.chance_p(str(facts.get("network"))),
            name=f"saliency-{number}",
        )
        if view is not None:
            views.append((view, folder))
    return SaliencySection([view for view, _ in views], compare_maps(views))


def _learning(study: StudyFiles) -> list[tuple[str, Markup]]:
    titles = _titles(study)
    charts = []
    pairs = dict.fromkeys((model.task, model.network) for model in study.models)
    for number, (task, network) in enumerate(pairs, 1):
        chart = draw_learning(study.folds_of(task, network), name=f"learning-{number}")
        if chart is not None:
            charts.append((f"{titles.get(task, task)}, {network}", chart))
    return charts


def _environment(study: StudyFiles) -> dict[str, list[tuple[str, Any]]]:
    """List how the run was started, what it was trained with, and what made this report."""
    run = read_json(study.output_dir / "logs" / "run-group.json")
    command = run.get("command")
    rows: list[tuple[str, Any]] = [
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else command),
        *((key.capitalize(), run.get(key)) for key in ("started", "finished", "seed")),
        ("Commit", run.get("commit") or source_commit()),
    ]
    final = next((model for model in study.models if model.fold is None), None)
    trained = [] if final is None else _trained_with(final.folder / "environment.txt")
    learning = _settings(study.output_dir, "settings-group.toml").get("learning", {})
    return {
        "Run": [row for row in rows if row[1] is not None],
        "Trained with": trained,
        "Report built with": list(list_versions().items()),
        "Settings of the group level": [(key, _words(learning[key])) for key in sorted(learning)],
    }


def source_commit() -> str | None:
    """Return the commit of the source that runs, if it runs from a checkout."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(  # nosec B603  # a list of arguments, no shell
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _words(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _trained_with(path: Path) -> list[tuple[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    pairs = [line.split(maxsplit=1) for line in lines]
    return [(pair[0], pair[1] if len(pair) > 1 else "") for pair in pairs if pair]


def _settings(output_dir: Path, name: str) -> Mapping[str, Any]:
    try:
        tables = tomllib.loads((output_dir / "logs" / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in tables.items() if isinstance(value, Mapping)}
