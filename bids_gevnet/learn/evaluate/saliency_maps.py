r"""What held-out predictions rest on: tested maps of the brain, by region and by angle to fibres.

Every held-out scan is explained by the network that was trained without it (`contributions`), and
labels are exchanged among held-out people to tell what the contributions owe to the diagnosis
from what they owe to anatomy (`significance`). Maps of plain gradients, which earlier versions
showed, look alike in every task and in untrained networks: that agreement is measured beside.

Written once, when the models are trained and the scans at hand, beside the models:

    models/<task>[/<network>]/saliency.nii.gz         z of every voxel, (X, Y, Z) float32
    models/<task>[/<network>]/saliency_p.nii.gz       its p, corrected over voxels; 1 outside
    models/<task>[/<network>]/sensitivity.nii.gz      mean gradient, 1 its root mean square
    models/<task>[/<network>]/saliency_regions.tsv    one row per region of the atlas
    models/<task>[/<network>]/saliency.json           `bids_gevnet.facts.saliency.SaliencyFacts`

so that a report can be built later without network or scans. Cost is bounded: two forward and
backward passes for each of at most `MAX_SCANS` scans and each class but one, by the network and
by an untrained one; one network a task: the paper's, or the first one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bids_gevnet.bids.writing import write_image, write_json, write_text
from bids_gevnet.errors import BidsGevnetError, InputError
from bids_gevnet.facts.saliency import ExplainedScan, RegionSaliency, SaliencyFacts
from bids_gevnet.learn.cohort.tables import tsv_cell
from bids_gevnet.learn.evaluate.contributions import (
    SMOOTH_MM,
    count_by_angle,
    explain,
    mean_scan,
    untrained_network,
)
from bids_gevnet.learn.evaluate.regions import read_regions, template_regions
from bids_gevnet.learn.evaluate.saliency_evidence import Evidence, Gathered, judge_evidence
from bids_gevnet.learn.evaluate.significance import PERMUTATIONS
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.batches import ScanReader
from bids_gevnet.learn.train.device_pieces import fit_one_scan_
from bids_gevnet.learn.train.progress import log, track
from bids_gevnet.settings import DEFAULT_NETWORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.learn.evaluate.contributions import Baseline, Explanation
    from bids_gevnet.learn.evaluate.regions import Regions
    from bids_gevnet.learn.train.jobs import TrainJob
    from bids_gevnet.nn.compound import ScanNetwork

MAX_SCANS = 60
"""A hundredth of what training takes in, and enough people to tell a strong effect from none."""
REGION_COLUMNS = ("region", "voxels", "significant_voxels", "share", "z", "p")


def explained_network(networks: Sequence[str]) -> str:
    """Which of several networks is explained: the default one, or the first."""
    return DEFAULT_NETWORK if DEFAULT_NETWORK in networks else networks[0]


def write_saliency_maps(
    jobs: Sequence[TrainJob],
    *,
    max_scans: int = MAX_SCANS,
    atlas: Path | None = None,
    device: torch.device | None = None,
) -> tuple[Path, ...]:
    """Map the saliency of every task; what was written for the same models is left.

    Parameters
    ----------
    jobs : sequence of TrainJob
        Of a whole run; their models are trained and their scans are in the store.
    max_scans : int
        Held-out scans per task, at most.
    atlas : Path, optional
        Label image in the space of the template; lobes if not given.
    device : torch.device, optional
        Where to compute; the CPU by default.

    Returns
    -------
    written : tuple of Path
        The JSON files, of this run and earlier ones.
    """
    written = []
    for folds in _chosen(jobs):
        first = folds[0]
        folder = Path(first.model_dir).parent
        target = folder / "saliency.json"
        affine = np.array(first.affine)
        regions = (
            template_regions(first.shape, affine)
            if atlas is None
            else read_regions(atlas, first.shape, affine)
        )
        plan = SaliencyFacts(
            task=first.task,
            network=first.options.network,
            labels=first.labels,
            models={str(job.fold): job.digest for job in folds},
            held_out_scans=sum(len(job.testing) for job in folds),
            max_scans=max_scans,
            seed=first.options.seed,
            b_values=first.b_values,
            smoothing_mm=SMOOTH_MM,
            permutations=PERMUTATIONS,
            atlas=regions.name,
            atlas_digest=regions.digest,
        )
        if not _is_current(target, plan):
            try:
                _write(folder, folds, plan, regions, device or torch.device("cpu"))
            except (OSError, BidsGevnetError) as error:
                # A report without this picture is better than none.
                log.warning("No saliency for %s: %s", first.task, error)
                continue
        written.append(target)
    return tuple(written)


def _chosen(jobs: Sequence[TrainJob]) -> list[list[TrainJob]]:
    """Jobs of the folds of each task, of one network."""
    tasks: dict[str, dict[str, list[TrainJob]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        # Other schemes, such as leaving out a site, keep their models in other folders.
        if job.fold is not None and job.testing and Path(job.model_dir).name == _name(job.fold):
            tasks[job.task][job.options.network].append(job)
    return [by[explained_network(list(by))] for by in tasks.values()]


def _name(fold: int) -> str:
    return f"fold-{fold}"


def _is_current(path: Path, plan: SaliencyFacts) -> bool:
    """Whether what was planned is what a file already holds."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return all(content[key] == value for key, value in plan.to_json().items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def spread_scans(candidates: Sequence[tuple[int, int]], max_scans: int) -> list[int]:
    """Choose scans turn by turn from every fold and class, in a fixed order.

    Parameters
    ----------
    candidates : sequence of (int, int)
        Fold and class of each scan.
    max_scans : int

    Returns
    -------
    chosen : list of int
        Sorted positions in `candidates`.
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, place in enumerate(candidates):
        groups[place].append(index)
    turns = [
        (turn, place, index)
        for place, members in groups.items()
        for turn, index in enumerate(members)
    ]
    return sorted(index for _, _, index in sorted(turns)[:max_scans])


def _write(
    folder: Path,
    jobs: Sequence[TrainJob],
    plan: SaliencyFacts,
    regions: Regions,
    device: torch.device,
) -> None:
    first = jobs[0]
    scans = [
        (job, index)
        for job in jobs
        for index in range(len(job.testing))
        if not _changes_label(job, index)
    ]
    places = [(job.fold or 0, job.testing[i].label) for job, i in scans]
    chosen = [scans[c] for c in spread_scans(places, plan.max_scans or 0)]
    trained, untrained = (
        Evidence(first.shape, len(first.labels), first.voxel_mm) for _ in range(2)
    )
    gathered = Gathered()
    if not chosen:
        raise InputError(
            expected="held-out people with one label each",
            found="none",
            remedy="look at the labels of their sessions",
        )
    for job in track(jobs, f"Saliency of {first.task}", len(jobs)):
        explained = [index for owner, index in chosen if owner is job]
        if explained:
            _add_fold(job, explained, (trained, untrained), gathered, device)
    inside = trained.inside()
    facts, test = judge_evidence(plan, trained, untrained, gathered, regions)
    z, p = np.zeros(first.shape, np.float32), np.ones(first.shape, np.float32)
    z[inside] = test.z
    affine = np.array(first.affine)
    if facts.significant_voxels is not None:
        p[inside] = test.p
        peak = np.array(np.unravel_index(int(z.argmax()), z.shape))
        where = affine[:3, :3] @ peak + affine[:3, 3]
        facts = replace(facts, peak_mm=tuple(round(float(mm), 1) for mm in where))
    write_image(folder / "saliency.nii.gz", z, affine)
    write_image(folder / "saliency_p.nii.gz", p, affine)
    sensitivity = trained.mean_sensitivity().astype(np.float32)
    write_image(folder / "sensitivity.nii.gz", sensitivity, affine)
    write_text(folder / "saliency_regions.tsv", region_table(facts.regions))
    write_json(folder / "saliency.json", facts.to_json())


def _truth(job: TrainJob, indices: Sequence[int]) -> float:
    """Class of a person, or the mean of the numbers of their scans."""
    scans = [job.testing[index] for index in indices]
    if job.is_regression:
        return float(np.mean([scan.value for scan in scans]))
    return scans[0].label


def _named(job: TrainJob, index: int) -> str:
    """Write the true class or number of a scan."""
    scan = job.testing[index]
    return f"{scan.value:g}" if job.is_regression else job.labels[scan.label]


def _changes_label(job: TrainJob, index: int) -> bool:
    """Whether somebody's scans have different labels, which could not be exchanged as one."""
    person = job.testing[index].participant
    return len({scan.label for scan in job.testing if scan.participant == person}) > 1


def _add_fold(
    job: TrainJob,
    chosen: Sequence[int],
    evidence: tuple[Evidence, Evidence],
    gathered: Gathered,
    device: torch.device,
) -> None:
    """Explain held-out scans of a fold by its own network, and by one that was not trained."""
    network, _, gains = load_model(Path(job.model_dir))
    fit_one_scan_(network.to(device), job.shape, job.nside)
    training, testing = ScanReader(job.training, gains), ScanReader(job.testing, gains)
    baseline = mean_scan(training, job.nside, job.shells)
    gathered.pairs = gathered.pairs + count_by_angle(baseline)
    people: dict[str, list[int]] = defaultdict(list)
    for index in chosen:
        people[job.testing[index].participant].append(index)
    gathered.people += len(people)
    models = (network, untrained_network(job, training, device))
    for model, found in zip(models, evidence, strict=True):
        explainer = _Explainer(model, job, testing, baseline, device)
        entries = []
        for indices in people.values():
            explained = [explainer.explain(index) for index in indices]
            sites = sorted({job.testing[index].site for index in indices})
            entries.append((_truth(job, indices), " and ".join(sites), explained))
            if model is network:
                gathered.shells += [each.shells for each in explained]
                gathered.sums += [each.accounts for each in explained]
        found.add_fold(job.fold or 0, entries)
    gathered.scans += [
        ExplainedScan(
            scan=job.testing[index].scan,
            fold=job.fold,
            label=_named(job, index),
        )
        for indices in people.values()
        for index in indices
    ]


@dataclass(frozen=True)
class _Explainer:
    """A network and the scans it explains."""

    network: ScanNetwork
    job: TrainJob
    reader: ScanReader
    baseline: Baseline
    device: torch.device

    def explain(self, index: int) -> Explanation:
        """Explain one scan."""
        volume, mask = (tensor[0].to(self.device) for tensor in self.reader.single(index))
        return explain(
            self.network,
            volume,
            mask,
            self.baseline,
            classes=len(self.job.labels),
        )


def region_table(regions: Sequence[RegionSaliency]) -> str:
    """Write the regions as TSV, in their order."""
    lines: list[tuple[str, ...]] = [REGION_COLUMNS]
    for region in regions:
        cells = (getattr(region, column) for column in REGION_COLUMNS)
        lines.append(tuple(tsv_cell(cell) for cell in cells))
    return "".join("\t".join(line) + "\n" for line in lines)
