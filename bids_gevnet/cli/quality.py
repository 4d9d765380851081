"""Write the page on which people look at all scans and rate them; nothing is trained for it."""

import logging

import pandas as pd

from bids_gevnet.bids.derivatives import SAMPLES
from bids_gevnet.bids.participants import target_column
from bids_gevnet.bids.writing import write_text
from bids_gevnet.cli.parser import Request
from bids_gevnet.cli.reports import finished_labels, unfinished_labels
from bids_gevnet.errors import InputError

log = logging.getLogger("bids_gevnet")

NO_LABEL = "not given"
"""What stands for the class of a scan without one: quality needs none."""


def write_quality(request: Request) -> int:
    """Write group_qc.tsv and group_qc.html of all finished participants; print the page's path."""
    from bids_gevnet.learn.cohort.left_out import NO_DERIVATIVES, LeftOut, name_left_out
    from bids_gevnet.learn.cohort.members import write_scan_table
    from bids_gevnet.learn.cohort.scan_rows import RowReader, read_people
    from bids_gevnet.report.group.quality_page import build_quality_report
    from bids_gevnet.report.scan_files import find_scans

    if not request.output_dir.is_dir():
        raise InputError(
            expected="the OUTPUT_DIR of the participant level",
            found=f"no folder {request.output_dir}",
            remedy=f"run bids_gevnet {request.bids_dir} {request.output_dir} participant first",
        )
    people = pd.DataFrame(columns=["participant_id"])
    if (request.bids_dir / "participants.tsv").is_file():
        people = read_people(request.bids_dir)
    learning = request.settings.learning
    target = _target(list(people.columns), learning.target)
    reader = RowReader(people, request.bids_dir, learning.site, ())
    found = [
        reader.row(scan.standard(SAMPLES), target, unlabelled=NO_LABEL)
        for label in finished_labels(request)
        for scan in find_scans(request.output_dir, label)
    ]
    rows = [row for row in found if row is not None]
    missing = [
        LeftOut(participant=label, scan=f"sub-{label}", reason=NO_DERIVATIVES)
        for label in unfinished_labels(request, {row.participant for row in rows})
    ]
    for line in name_left_out(missing):
        log.warning("not on the page: %s", line)
    write_text(request.output.quality_table, write_scan_table(rows, target))
    build_quality_report(request.output_dir, target, missing)
    print(request.output.quality_report)
    return 0


def _target(columns: list[str], wanted: str | None) -> str:
    """Choose the column that scans are coloured by, if there is one."""
    try:
        return target_column(columns, wanted)
    except InputError:
        if wanted is not None:
            raise
        return "diagnosis"
