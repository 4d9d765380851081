"""What half precision costs, and which part of a network must not have it.

    python benchmarks/precision.py --write            # benchmarks/results/precision.md
    python benchmarks/precision.py --folder FOLDER    # keeps the cohort and the trained models
    python benchmarks/precision.py --no-training      # the first table only

On the CPU, whose bfloat16 rounds as a GPU's does. A network tells people apart by small
differences of means over a brain, so rounding is compared with those: error of a feature over its
spread between people of a site in a phantom cohort, mean over features. An error that all people
share does no harm; "differing" is the part that they do not share.

TF32 is what NVIDIA GPUs take for convolutions of float32 unless told otherwise: inputs are
rounded to 10 bits and summed in float32. It is imitated here in the kernel network alone.

Then the same choices by what counts, held-out accuracy after training. Phantoms, not patients.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from learning import cross_validate
from pages import RESULTS, current_commit, write_page
from phantom_cohort import GROUPS, link_scans, still_settings, write_cohort
from torch import Tensor

from bids_gevnet.learn.cohort.members import read_cohort
from bids_gevnet.learn.cohort.store import store_scan, to_volume
from bids_gevnet.learn.evaluate.scoring import evaluate_table, read_predictions
from bids_gevnet.nn import ckn
from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.norm import MomentNorm
from bids_gevnet.nn.registry import build, scan_networks
from bids_gevnet.settings import ExecutionSettings, LearningSettings

PAGE = RESULTS / "precision.md"
STRIDES = (1, 1, 1, 1)
Convolve = Callable[[Tensor, Tensor], Tensor]


def in_bfloat16(x: Tensor, filters: Tensor) -> Tensor:
    """Convolve in the kernel network as autocast would."""
    half = F.conv3d(x.bfloat16(), filters.bfloat16(), padding=filters.shape[2] // 2)
    return half.to(x.dtype)


def in_tf32(x: Tensor, filters: Tensor) -> Tensor:
    """Convolve with inputs of 10 bits, as a GPU's tensor cores do."""
    return F.conv3d(_ToTf32.apply(x), _ToTf32.apply(filters), padding=filters.shape[2] // 2)


class _ToTf32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)  # 13 of 23 bits fall away

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:  # noqa: ARG004
        return grads[0]


CHOICES: dict[str, tuple[Convolve | None, bool]] = {
    "everything in bfloat16": (in_bfloat16, True),
    "kernel network in bfloat16, sphere in float32": (in_bfloat16, False),
    "kernel network in TF32, sphere in bfloat16": (in_tf32, True),
    "kernel network in float32, sphere in bfloat16": (None, True),
    "kernel network in TF32, sphere in float32": (in_tf32, False),
}
"""How the kernel network convolves, and whether autocast is on for the rest."""


@contextmanager
def chosen(convolve: Convolve | None) -> Iterator[None]:
    """Replace the kernel network's convolution inside the block."""
    with ExitStack() as stack:
        if convolve is not None:
            stack.enter_context(patch.object(ckn, "convolve", convolve))
            # The compiled kernel convolves by itself.
            stack.enter_context(patch.object(ckn.CKNLayer, "_has_kernel", lambda *_: False))
        yield


def read_people(output: Path, raw: Path) -> tuple[list[Tensor], list[Tensor], list[str], int]:
    """Volumes, masks and sites of everybody, and nside."""
    cohort = read_cohort(output, raw, folds=2)
    volumes, masks = [], []
    for row in cohort.rows:
        stored = store_scan(
            output / "work" / "store", row.image, row.mask, nside=cohort.nside,
            voxel_mm=cohort.voxel_mm,
        )  # fmt: skip
        volume, mask = to_volume(stored.samples.astype(np.float32), stored.mask)
        volumes.append(volume)
        masks.append(mask)
    return volumes, masks, [row.site for row in cohort.rows], cohort.nside


def within(features: Tensor, sites: list[str]) -> Tensor:
    """Take off the mean of each site: scanners differ more than people."""
    centred = features.clone()
    for site in set(sites):
        here = torch.tensor([other == site for other in sites])
        centred[here] -= features[here].mean(0)
    return centred


@torch.no_grad()
def rounding(
    name: str, volumes: list[Tensor], masks: list[Tensor], sites: list[str], nside: int
) -> dict[str, tuple[float, float]]:
    """Error over spread of each choice: in all, and the part that differs between people."""
    torch.manual_seed(0)
    network = build(name, nside=nside, strides=STRIDES)
    assert isinstance(network, CompoundNetwork)
    network.pieces = Pieces(whole=True)
    network.initialise_(v[0] for v in volumes)
    for part in network.modules():
        if isinstance(part, MomentNorm):
            part.momentum = 1.0
    some = volumes[:4], masks[:4]
    network.train()
    network.features(torch.stack(some[0]), torch.stack(some[1]))
    network.eval()

    def features() -> Tensor:
        pairs = zip(volumes, masks, strict=True)
        return torch.cat([network.features(v[None], m[None]).double() for v, m in pairs])

    truth = features()
    spread = within(truth, sites).std(0)
    found = {}
    for choice, (convolve, half) in CHOICES.items():
        with chosen(convolve), torch.autocast("cpu", torch.bfloat16, enabled=half):
            error = (features() - truth) / spread
        total = error.square().mean(0).sqrt().mean()
        found[choice] = (float(total), float(within(error, sites).std(0).mean()))
    return found


def train_with(
    options: argparse.Namespace, folder: Path, number: int, choice: str
) -> tuple[float, float]:
    """Held-out accuracy and AUC after training with a choice."""
    convolve, half = (None, False) if choice == "float32" else CHOICES[choice]
    output = link_scans(folder, f"choice-{number}")
    learning = LearningSettings(
        network=options.network, strides=STRIDES, folds=options.folds, epochs=options.epochs,
        samples_per_class=options.samples, leave_site_out=False, devices="cpu:1", resume=True,
        precision="bfloat16" if half else "float32", classes=options.classes,
    )  # fmt: skip
    execution = ExecutionSettings(random_seed=options.seed, nprocs=1)
    with chosen(convolve):
        layout = cross_validate(output, folder / "raw", learning, execution)
    table = read_predictions(layout.predictions_table)
    own = table[table["kind"] == "network"]
    few = evaluate_table(own, seed=options.seed, resamples=100, permutations=100)
    return _accuracy(few)


def _accuracy(content: dict[str, Any]) -> tuple[float, float]:
    """Accuracy and AUC, means over tasks."""
    pooled = [task["models"][0]["schemes"]["folds"]["pooled"] for task in content["tasks"]]
    names = ("accuracy", "roc_auc")
    accuracy, auc = (float(np.mean([p[name]["value"] for p in pooled])) for name in names)
    return accuracy, auc


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--per-group", type=int, default=12)
    parser.add_argument("--groups", nargs="+", default=list(GROUPS))
    parser.add_argument("--networks", nargs="+", default=list(scan_networks()[:6]))
    parser.add_argument("--network", default="ckn2+gevnet", help="that is trained")
    parser.add_argument("--strength", type=float, default=1.6)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--choices", type=int, nargs="*", help="numbers of the choices to train")
    parser.add_argument("--classes", default="pairs", help="as of the group level")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        text = measure(options, folder)
    print(text)
    if options.write:
        write_page(PAGE, text)
    return 0


def measure(options: argparse.Namespace, folder: Path) -> str:
    """Make both tables."""
    settings = still_settings(
        per_group=options.per_group, voxel_mm=8.0, micro_effect=options.strength,
        seed=options.seed,
    )  # fmt: skip
    write_cohort(folder, settings, options.groups, resolution_mm=16.0, nside=2)
    people = read_people(link_scans(folder, "rounding"), folder / "raw")
    volumes, nside = people[0], people[-1]
    command = " ".join(["benchmarks/precision.py", *sys.argv[1:]])
    cohort = f"{len(volumes)} phantom people, 16 mm, nside {nside}, on the CPU"
    lines = [
        "# Half precision",
        "",
        f"`python {command}`, commit {current_commit()}: {cohort}.",
        "",
        "Rounding error of features over their spread between people of a site; in brackets the",
        "part that differs between people.",
        "",
        f"| network | {' | '.join(CHOICES)} |",
        f"| --- |{' ---: |' * len(CHOICES)}",
    ]
    for name in options.networks:
        found = rounding(name, *people)
        cells = [f"{total:.3f} ({differing:.3f})" for total, differing in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if options.no_training:
        return "\n".join(lines)
    names = ["float32", *CHOICES]
    numbers = range(len(names)) if options.choices is None else options.choices
    how = f"{' v '.join(options.groups)}, {options.folds} folds, {options.epochs} epochs"
    lines += [
        "",
        f"Held-out accuracy and AUC of {options.network} on the same people ({how}):",
        "",
        "| choice | accuracy | AUC |",
        "| --- | ---: | ---: |",
    ]
    for number in numbers:
        accuracy, auc = train_with(options, folder, number, names[number])
        lines.append(f"| {names[number]} | {accuracy:.3f} | {auc:.3f} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
