r"""What held-out predictions rest on, averaged over scans: a map of the brain and of directions.

For a held-out scan i, A_i is the gradient of the predicted class's margin (`nn.saliency`) of the
network that was trained without it. With a_i(v) its root mean square over directions, s_i(d) over
brain voxels (both also over shells, where there are several), and <> the root mean square over
the brain or over directions,

.. math:: m(v) = \frac{1}{|\{i : v \in M_i\}|} \sum_{i : v \in M_i} \frac{a_i(v)}{<a_i>}, \qquad
          d(p) = \frac{1}{n} \sum_i \frac{s_i(p)}{<s_i>},

M_i the brain of scan i. Every scan counts alike, whatever the scale of its network's scores; 1 is
the root mean square of the brain. Voxels that fewer than half of the scans have are 0.

Written once, when the models are trained and the scans at hand, beside the models:

    models/<task>[/<network>]/saliency.nii.gz    m, (X, Y, Z) float32
    models/<task>[/<network>]/saliency.json      d, the scans, how well the folds agree, and the
                                                 mean share of each shell in the squares of A

so that a report can be built later without network or scans. Cost is bounded: one forward and one
backward pass for each of at most `MAX_SCANS` scans of a task, spread over folds and classes, and
one network a task: the paper's, or the first one. Memory is that of one scan.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bids_gevnet.bids.writing import write_image, write_json
from bids_gevnet.errors import BidsGevnetError
from bids_gevnet.learn.models.files import load_model
from bids_gevnet.learn.train.progress import log, track
from bids_gevnet.settings import DEFAULT_NETWORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bids_gevnet.learn.train.jobs import JobScan, TrainJob

    Floats = NDArray[np.float64]

MAX_SCANS = 24
FORMAT = "bids_gevnet saliency 1"
_LEAST_SHARE = 0.5
_TINY = 1e-30


def explained_network(networks: Sequence[str]) -> str:
    """Which of several networks is explained: the default one, or the first."""
    return DEFAULT_NETWORK if DEFAULT_NETWORK in networks else networks[0]


def write_saliency_maps(
    jobs: Sequence[TrainJob], *, max_scans: int = MAX_SCANS, device: torch.device | None = None
) -> tuple[Path, ...]:
    """Map the saliency of every task; what was written for the same models is left.

    Parameters
    ----------
    jobs : sequence of TrainJob
        Of a whole run; their models are trained and their scans are in the store.
    max_scans : int
        Held-out scans per task, at most.
    device : torch.device, optional
        Where to compute; the CPU by default.

    Returns
    -------
    written : tuple of Path
        The JSON files, of this run and earlier ones.
    """
    written = []
    for folds in _chosen(jobs):
        folder = Path(folds[0].model_dir).parent
        target = folder / "saliency.json"
        digest = {str(job.fold): job.digest for job in folds}
        if not _is_current(target, digest, max_scans):
            try:
                _write(folder, folds, digest, max_scans, device or torch.device("cpu"))
            except (OSError, BidsGevnetError) as error:
                # A report without this picture is better than none.
                log.warning("No saliency for %s: %s", folds[0].task, error)
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


def _is_current(path: Path, digest: dict[str, str], max_scans: int) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same = content["format"] == FORMAT and content["models"] == digest
        return bool(same and content["max_scans"] == max_scans)
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


class MeanMap:
    """Mean over scans that have a voxel, and of directions, all scans alike."""

    def __init__(self, shape: Sequence[int], directions: int, shells: int = 1) -> None:
        self.total: Floats = np.zeros(tuple(shape))
        self.count: Floats = np.zeros(tuple(shape))
        self.directions: Floats = np.zeros(directions)
        self.shares: Floats = np.zeros(shells)
        self.scans = 0

    def add(
        self,
        voxels: Floats,
        directions: Floats,
        mask: NDArray[np.bool_],
        shares: Floats | float = 1.0,
    ) -> None:
        """Add a scan: (X, Y, Z) map, (6 nside^2,) directions, brain, (shells,) shares."""
        inside = voxels[mask]
        self.total[mask] += inside / max(float(np.sqrt(np.mean(inside**2))), _TINY)
        self.count += mask
        self.directions += directions / max(float(np.sqrt(np.mean(directions**2))), _TINY)
        self.shares += shares
        self.scans += 1

    def brain(self) -> Floats:
        """Return m of the module's docstring: (X, Y, Z) array."""
        enough = self.count >= max(1.0, _LEAST_SHARE * self.scans)
        return np.where(enough, self.total / np.maximum(self.count, 1), 0.0)

    def sphere(self) -> Floats:
        """Return d of the module's docstring: (6 nside^2,) array."""
        return self.directions / max(self.scans, 1)

    def shell_shares(self) -> Floats:
        """Return the mean share of each shell: (shells,) array."""
        return self.shares / max(self.scans, 1)


def _write(
    folder: Path,
    jobs: Sequence[TrainJob],
    digest: dict[str, str],
    cap: int,
    device: torch.device,
) -> None:
    first = jobs[0]
    scans = [(job, index) for job in jobs for index in range(len(job.testing))]
    chosen = spread_scans([(job.fold or 0, job.testing[i].label) for job, i in scans], cap)
    everything = MeanMap(first.shape, 6 * first.nside**2, first.shells)
    parts, entries = [], []
    for job in track(jobs, f"Saliency of {first.task}", len(jobs)):
        explained = [scans[c][1] for c in chosen if scans[c][0] is job]
        part = MeanMap(first.shape, 6 * first.nside**2, first.shells)
        entries += _add_fold(job, explained, (part, everything), device)
        if part.scans:
            parts.append(part)
    content = {
        "format": FORMAT,
        "task": first.task,
        "network": first.options.network,
        "labels": list(first.labels),
        "nside": first.nside,
        "method": "gradient of the predicted number"
        if first.is_regression
        else "gradient of the margin of the predicted class",
        "models": digest,
        "max_scans": cap,
        "held_out_scans": len(scans),
        "scans": entries,
        "directions": everything.sphere().tolist(),
        "b_values": list(first.b_values),
        "shell_shares": everything.shell_shares().tolist(),
        "fold_agreement": agreement(parts),
    }
    image = everything.brain().astype(np.float32)
    write_image(folder / "saliency.nii.gz", image, np.array(first.affine))
    write_json(folder / "saliency.json", content)


def _add_fold(
    job: TrainJob, chosen: Sequence[int], maps: Sequence[MeanMap], device: torch.device
) -> list[dict[str, Any]]:
    """Add the chosen held-out scans of a fold, explained by the fold's own network."""
    from bids_gevnet.learn.train.batches import ScanReader
    from bids_gevnet.learn.train.device_pieces import fit_one_scan_
    from bids_gevnet.nn.attribution import saliency

    if not chosen:
        return []
    network, _, gains = load_model(Path(job.model_dir))
    network.to(device)
    fit_one_scan_(network, job.shape, job.nside)
    reader = ScanReader(job.testing, gains)
    entries = []
    for index in chosen:
        volume, mask = (tensor[0].to(device) for tensor in reader.single(index))
        explanation = saliency(network, volume, mask)
        inside = mask.cpu().numpy()
        voxels, directions, shares = (
            tensor.double().cpu().numpy()
            for tensor in (
                explanation.voxels,
                explanation.over_shells(),
                explanation.shell_shares(),
            )
        )
        for total in maps:
            total.add(voxels, directions, inside, shares)
        entries.append(_entry(job, job.testing[index], explanation.target))
    return entries


def _entry(job: TrainJob, scan: JobScan, target: int) -> dict[str, Any]:
    return {"scan": scan.scan, "fold": job.fold, "explained": job.labels[target]}


def agreement(parts: Sequence[MeanMap]) -> float | None:
    """Mean correlation of the maps of two folds, over voxels that both have."""
    correlations = []
    for number, one in enumerate(parts):
        for other in parts[number + 1 :]:
            a, b = one.brain(), other.brain()
            both = (a > 0) & (b > 0)
            if both.sum() > 2 and a[both].std() > 0 and b[both].std() > 0:
                correlations.append(float(np.corrcoef(a[both], b[both])[0, 1]))
    return float(np.mean(correlations)) if correlations else None
