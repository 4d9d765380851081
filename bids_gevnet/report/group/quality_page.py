"""Build group_qc.html: who was scanned, how good the scans are, and a box to rate each of them."""

from collections.abc import Sequence
from pathlib import Path

from bids_gevnet.bids.writing import write_text
from bids_gevnet.learn.cohort.left_out import LeftOut, scans_by_reason
from bids_gevnet.learn.cohort.number_checks import guess_kind
from bids_gevnet.learn.cohort.tasks import REGRESSION
from bids_gevnet.report.alerts import LEVELS
from bids_gevnet.report.group.alerts import scan_alerts
from bids_gevnet.report.group.cohort import (
    count_sites,
    measure_scans,
)
from bids_gevnet.report.group.limits import LIMITS, Limits
from bids_gevnet.report.group.page import describe_scans, study_template
from bids_gevnet.report.group.study_files import StudyFiles, read_scan_table, read_table_text
from bids_gevnet.report.page import render_page

TABLE, PAGE = "group_qc.tsv", "group_qc.html"


def build_quality_report(
    output_dir: Path, target: str, left_out: Sequence[LeftOut] = (), *, limits: Limits = LIMITS
) -> Path:
    """Build the page from group_qc.tsv and the derivatives.

    Parameters
    ----------
    output_dir : Path
        Top of the derivatives, after the participant level.
    target : str
        Column of the table that scans are coloured by.
    left_out : sequence of LeftOut
        Who of the dataset is not on the page.
    limits : Limits
        Scans up to which each is shown.

    Returns
    -------
    page : Path
        ``output_dir / group_qc.html``; the same bytes for the same files.
    """
    table = read_table_text(output_dir / TABLE)
    entries = {str(number): row.get(target, "") for number, row in enumerate(table)}
    numbers = guess_kind(entries) == REGRESSION
    scans = tuple(read_scan_table(output_dir, table, target, numbers=numbers))
    study = StudyFiles(output_dir, target, scans, (), {}, ())
    measures = measure_scans(scans)
    alerts = sorted(scan_alerts(study, measures), key=lambda alert: LEVELS.index(alert.level))
    page = render_page(
        "group_quality.html.j2",
        {
            "title": "Quality of all scans",
            "study": study,
            "alerts": alerts,
            "rating": True,
            "far": {scans[i].key for measure in measures for i in measure.far},
            "left_out": scans_by_reason((entry.reason, entry.scan) for entry in left_out),
            "sites": count_sites(scans),
            **describe_scans(study, measures, (), study_template(study), limits),
        },
    )
    path = output_dir / PAGE
    write_text(path, page)
    return path
