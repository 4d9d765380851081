"""Plan ``participant --model --adapt``: gains for new sites, from the scans in OUTPUT_DIR.

Participants are processed one by one, but a site is known by its people. So adaptation uses the
scans that earlier runs left in OUTPUT_DIR, all of them and no others: what a scan is harmonised
with does not depend on who happened to finish first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bids_gevnet.bids.manifest import hash_file
from bids_gevnet.bids.writing import replacing
from bids_gevnet.cli.quality import NO_LABEL
from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bids_gevnet.cli.parser import Request
    from bids_gevnet.learn.cohort.scan_rows import ScanRow
    from bids_gevnet.learn.models.adaptation import UnlabelledScan
    from bids_gevnet.learn.models.files import ModelCard

log = logging.getLogger("bids_gevnet")
NO_COLUMN = ""
"""No table has a column of this name: diagnoses are not read."""


@dataclass(frozen=True)
class AdaptationPlan:
    """Gains of a model and of new sites.

    Attributes
    ----------
    gains : Path or None
        File with all of them; None where nothing is adapted.
    sentences : mapping of site to str
        What was done for each new site.
    """

    gains: Path | None = None
    sentences: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str | None:
        """Changes with the gains; None where there are none."""
        return None if self.gains is None else hash_file(self.gains)


def plan_adaptation(request: Request) -> AdaptationPlan:
    """Adapt a model to the sites of the scans in OUTPUT_DIR that it was not trained on.

    Where ``--adapt`` is not asked for, or all sites are known to the model, there is nothing to
    do; where no new site has enough people yet, the run is refused.
    """
    learning = request.settings.learning
    if learning.model is None or not learning.adapt:
        return AdaptationPlan()
    from bids_gevnet.learn.models.adaptation import adapt_sites
    from bids_gevnet.learn.models.files import load_harmonisation

    card, gains = load_harmonisation(learning.model)
    scans, unfit = _processed_scans(request, card)
    new = sorted({scan.site for scan in scans if gains is not None and not gains.knows(scan.site)})
    adapted = adapt_sites(gains, scans)
    for text in (*adapted.refusals, *unfit):
        log.warning("%s", text)
    if not adapted.adaptations:
        if scans and not new:
            log.info("--adapt: the model was trained on all sites of these scans")
            return AdaptationPlan()
        raise InputError(
            expected="scans of at least 3 people of a site that the model was not trained on, "
            f"processed before in {request.output_dir}, for --adapt",
            found=" ".join(adapted.refusals) or "none",
            remedy="run the participant level without --adapt first, for everybody of the site, "
            "and then again with it",
        )
    path = request.work.root / "adapted_gains.npz"
    with replacing(path) as part, part.open("wb") as stream:
        adapted.gains.save(stream)
    for each in adapted.adaptations:
        log.warning("%s", each.sentence)
    return AdaptationPlan(path, {each.site: each.sentence for each in adapted.adaptations})


def _processed_scans(request: Request, card: ModelCard) -> tuple[list[UnlabelledScan], list[str]]:
    """Store the scans of OUTPUT_DIR that fit the model; say why others do not."""
    from bids_gevnet.learn.cohort.grids import read_grid
    from bids_gevnet.learn.cohort.store import store_scan
    from bids_gevnet.learn.models.adaptation import UnlabelledScan

    voxel_mm = abs(np.linalg.det(np.array(card.affine)[:3, :3])) ** (1 / 3)
    scans, unfit = [], []
    for row in _rows(request):
        try:
            grid = read_grid(row)
        except InputError as error:
            unfit.append(f"{row.scan} is not used for --adapt: {error}")
            continue
        shells = max(1, len(grid.b_values))
        if (tuple(grid.shape), grid.nside, shells) != (card.shape, card.nside, card.shells):
            unfit.append(f"{row.scan} is not used for --adapt: it is on another grid or shell")
            continue
        stored = store_scan(
            request.work.store, row.image, row.mask, nside=card.nside, voxel_mm=float(voxel_mm)
        )
        scans.append(
            UnlabelledScan(
                folder=str(stored.folder),
                participant=row.participant,
                site=row.site,
                covariates=row.covariates,
            )
        )
    return scans, unfit


def _rows(request: Request) -> Iterator[ScanRow]:
    """Read about everybody in OUTPUT_DIR, not only those asked for now, without a diagnosis."""
    from bids_gevnet.learn.cohort.members import find_samples
    from bids_gevnet.learn.cohort.scan_rows import RowReader, read_people

    people = pd.DataFrame(columns=["participant_id"])
    if (request.bids_dir / "participants.tsv").is_file():
        people = read_people(request.bids_dir)
    learning = request.settings.learning
    reader = RowReader(people, request.bids_dir, learning.site, learning.covariates)
    for image in sorted(find_samples(request.output_dir)):
        row = reader.row(image, NO_COLUMN, unlabelled=NO_LABEL)
        if row is not None:
            yield row
