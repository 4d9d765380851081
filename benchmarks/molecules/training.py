"""Training on one fold of molecules, for `qm7.py`.

Three stages. The composition baseline comes first; what it leaves is the target of the others.
"together" trains GEVNet and DeepSet; every batch of molecules is turned by a random rotation.
"set" goes on with the DeepSet alone: the invariants of every atom, which then stay as they are,
are kept for a few orientations of the sphere, and an epoch takes a tenth of the time. The
prediction is the mean over these orientations. Rates follow one cycle: up for the first 15 % of
the steps, then down to 0 as a cosine. Held-out molecules are scored on the way for the learning
curve only; nothing is chosen by them.

A stage resumes from its last epoch when it is started again, and runs in several processes under
torchrun: each takes its share of every batch, as in `bids_gevnet.learn.train.trainer`.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bids_gevnet.bids.writing import write_json
from bids_gevnet.learn.train.checkpoints import Position, load_checkpoint, save_checkpoint
from bids_gevnet.learn.train.distributed import Processes, StopRequest, TrainingInterrupted
from bids_gevnet.nn.gevnet import count_parameters
from bids_gevnet.sphere.icosphere_grid import icosphere
from molecules.data import KeptAtoms, Molecules, Options, Spheres
from molecules.deepset import CompositionBaseline, MoleculeNetwork, SphereInvariants
from molecules.potentials import ELEMENTS

log = logging.getLogger("bids_gevnet.benchmarks.qm7")

RISE = 0.15
SET_ALONE: dict[str, Any] = {"set_epochs": 0, "set_rate": 0.0, "orientations": 0, "score_every": 0}
MAX_NORM = 1.0  # of the gradients: a few molecules are far from all others
Inputs = Callable[[Tensor, torch.Generator | None], tuple[Any, ...]]


@dataclass(frozen=True)
class Stage:
    """What one stage trains, and on what; the digest is that of all that decides its result."""

    name: str
    network: nn.Module
    inputs: Inputs
    epochs: int
    rate: float
    digest: str


@dataclass(frozen=True)
class Fold:
    """One fold's molecules, targets in units of `scale` kcal/mol, and where its files are."""

    name: str
    train: Tensor
    test: Tensor
    target: Tensor
    scale: float
    folder: Path


def rise_and_fall(done: float) -> float:
    """Share of the highest rate after a share of all steps."""
    if done < RISE:
        return done / RISE
    return 0.5 * (1 + math.cos(math.pi * (done - RISE) / (1 - RISE)))


def fit(
    stage: Stage, fold: Fold, options: Options, processes: Processes, stop: StopRequest
) -> list[dict[str, Any]]:
    """Train a stage to its end, from its checkpoint if there is one; return its learning curve."""
    network = stage.network.train()
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=stage.rate, weight_decay=options.weight_decay
    )
    path = fold.folder / f"{fold.name}_{stage.name}.safetensors"
    position = load_checkpoint(path, network, optimiser, stage.digest) or Position()
    model = DistributedDataParallel(network) if processes.size > 1 else network
    while position.epoch < stage.epochs:
        begun = time.process_time()
        loss = run_epoch(stage, model, optimiser, fold, position.epoch, options, processes)
        spent = processes.sum([time.process_time() - begun])[0]
        epoch = position.epoch + 1
        row: dict[str, Any] = {"epoch": epoch, "train_rmse": fold.scale * loss**0.5}
        row |= {"processor_s": spent, "held_out_rmse": None}
        if epoch % options.score_every == 0 or epoch == stage.epochs:
            left = predict(stage, fold.test) - fold.target[fold.test]
            row["held_out_rmse"] = fold.scale * float(left.square().mean().sqrt())
        position = Position(epoch=epoch, curve=[*position.curve, row])
        if processes.first:
            save_checkpoint(path, network, optimiser, position, stage.digest)
            say(stage, fold, row)
        if stop.agreed(processes) and epoch < stage.epochs:
            raise TrainingInterrupted(
                expected="to train to the end",
                found=f"a signal to stop after epoch {epoch} of {fold.name}, {stage.name}",
                remedy="run the same command again: it resumes from there",
            )
    return position.curve


def say(stage: Stage, fold: Fold, row: dict[str, Any]) -> None:
    held_out = row["held_out_rmse"]
    log.info(
        "%s, %s, epoch %d/%d: RMSE %.2f%s, %.0f s",
        fold.name,
        stage.name,
        row["epoch"],
        stage.epochs,
        row["train_rmse"],
        "" if held_out is None else f", held out {held_out:.2f}",
        row["processor_s"],
    )


def run_epoch(
    stage: Stage,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    fold: Fold,
    epoch: int,
    options: Options,
    processes: Processes,
) -> float:
    """Do the steps of an epoch; return the mean squared error in units of the target."""
    generator = torch.Generator().manual_seed(1_000_003 * options.seed + epoch)
    order = fold.train[torch.randperm(len(fold.train), generator=generator)]
    batches = order.tensor_split(max(1, len(order) // options.batch))
    total = 0.0
    model.train()
    for step, batch in enumerate(batches):
        done = (epoch + (step + 0.5) / len(batches)) / stage.epochs
        for group in optimiser.param_groups:
            group["lr"] = stage.rate * rise_and_fall(done)
        own = batch[processes.rank :: processes.size]
        left = model(*stage.inputs(own, generator)) - fold.target[own]
        squares = left.square().sum()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(squares * (processes.size / len(batch)))
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimiser.step()
        total += float(squares.detach())
    return processes.sum([total])[0] / len(order)


@torch.no_grad()
def predict(stage: Stage, chosen: Tensor) -> Tensor:
    """Score molecules in one orientation: (n,) tensor in units of the target."""
    stage.network.eval()
    scores = torch.cat([stage.network(*stage.inputs(part, None)) for part in chosen.split(128)])
    stage.network.train()
    return scores


def make_network(options: Options) -> MoleculeNetwork:
    """Build GEVNet and DeepSet with weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        spheres = SphereInvariants(
            icosphere(options.level), options.architecture, samples=None, order=options.order
        )
        return MoleculeNetwork(spheres, len(ELEMENTS), options.phi, options.psi)


def fit_baseline(data: Molecules, train: Tensor, options: Options) -> tuple[Tensor, int]:
    """Energies that the composition explains, (n,) tensor, and the baseline's parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        baseline = CompositionBaseline(len(ELEMENTS))
    baseline.fit_(data.counts[train], data.energies[train], steps=options.baseline_steps)
    with torch.no_grad():
        return baseline(data.counts), count_parameters(baseline)


def fold_digest(data: Molecules, options: Options, number: int) -> str:
    """Digest of all that decides a fold's result but the code."""
    parts = [data.positions, data.charges, data.energies, data.split(number)[1]]
    sums = [float(part.double().sum()) for part in parts]
    text = json.dumps([asdict(options), sums, number])
    return hashlib.sha256(text.encode()).hexdigest()


def read_finished(path: Path, digest: str) -> dict[str, Any] | None:
    """Read the result of a fold, if an earlier run of the same options finished it."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found if found.get("digest") == digest else None


def finished_folds(data: Molecules, options: Options, folder: Path) -> list[dict[str, Any]]:
    """Results of all folds that are finished, in order."""
    found = (
        read_finished(folder / f"fold-{k + 1}.json", fold_digest(data, options, k))
        for k in range(len(data.folds))
    )
    return [result for result in found if result is not None]


def train_fold(
    data: Molecules,
    number: int,
    options: Options,
    folder: Path,
    processes: Processes,
    stop: StopRequest,
    commit: str = "unknown",
) -> dict[str, Any]:
    """Train and test one fold; what an earlier run finished is read, not done again.

    Parameters
    ----------
    data : Molecules
    number : int
        0 to 4; files and tables count from 1.
    options : Options
    folder : Path
        For checkpoints and results.
    processes, stop
        As in `bids_gevnet.learn.train.trainer`.
    commit : str
        Of the code, for the table.

    Returns
    -------
    dict
        RMSE, baseline's RMSE, parameters, processor seconds, learning curves.
    """
    name, digest = f"fold-{number + 1}", fold_digest(data, options, number)
    if (found := read_finished(folder / f"{name}.json", digest)) is not None:
        log.info("%s: done before", name)
        return found
    train, test = data.split(number)
    begun = time.process_time()
    explained, n_baseline = fit_baseline(data, train, options)
    left = data.energies - explained
    scale = float(left[train].std())
    fold = Fold(name, train, test, left / scale, scale, folder)
    network, spheres = make_network(options), Spheres(data, options)
    network.standardise_(*spheres(train[:500], None)[:2])
    other = time.process_time() - begun
    # A longer second stage may go on from the same first one.
    first = fold_digest(data, replace(options, **SET_ALONE), number)
    together = Stage("together", network, spheres, options.epochs, options.rate, first)
    curves = {"together": fit(together, fold, options, processes, stop)}
    begun = time.process_time()
    kept = KeptAtoms(network, spheres, options)
    other += time.process_time() - begun
    alone = Stage("set", network.deepset, kept, options.set_epochs, options.set_rate, digest)
    curves["set"] = fit(alone, fold, options, processes, stop)
    spent = sum(row["processor_s"] for curve in curves.values() for row in curve)
    result = {
        "digest": digest,
        "fold": number + 1,
        "commit": commit,
        "baseline_rmse": float(left[test].square().mean().sqrt()),
        **score_orientations(network, kept, fold),
        "parameters": count_parameters(network) + n_baseline,
        "sphere_parameters": count_parameters(network.spheres),
        "processor_s": spent + other,
        "curves": curves,
    }
    if processes.first:
        write_json(folder / f"{name}.json", result)
    processes.wait()
    return result


@torch.no_grad()
def score_orientations(network: MoleculeNetwork, kept: KeptAtoms, fold: Fold) -> dict[str, float]:
    """RMSE and MAE of the mean over orientations, RMSE of one, and how much they differ."""
    network.eval()
    several = range(len(kept.numbers))
    each = torch.stack([network.deepset(*kept.pick(fold.test, k)) for k in several]) * fold.scale
    truth = fold.target[fold.test] * fold.scale
    left = each.mean(0) - truth
    return {
        "rmse": float(left.square().mean().sqrt()),
        "mae": float(left.abs().mean()),
        "rmse_one_orientation": float((each - truth).square().mean().sqrt()),
        "orientation_spread": float(each.std(0, correction=0).square().mean().sqrt()),
    }
