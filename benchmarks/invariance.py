"""Loss and gradients of the compound networks in pieces, against the undivided networks.

    python benchmarks/invariance.py            # all six networks of Table 3
    python benchmarks/invariance.py --write    # also benchmarks/results/invariance.md

Two random scans of 16 x 20 x 16 voxels in 96 directions (a slab of the brain mask for the lone
GEVNet, which works on every voxel). The undivided network runs once, with torch's own backward
pass. A difference is relative: |a - b| / |b| for the loss, and the
same with Euclidean norms over all parameters for the gradients.
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from pages import RESULTS, write_page

from bids_gevnet.nn.compound import CompoundNetwork, Pieces
from bids_gevnet.nn.zoo import PAPER_NETWORKS

WHOLE = Pieces(whole=True)
CUTS = {
    "default": Pieces(),
    "24 directions, 32 voxels, kept": Pieces(24 * 5120, 32, keep_volumes=True, keep_sphere=True),
    "5 directions, 7 voxels, nothing kept": Pieces(5 * 5120, 7, keep_volumes=False),
}
PAGE = RESULTS / "invariance.md"


def make_batch(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scans = torch.rand(2, 96, 16, 20, 16, generator=generator, dtype=torch.float64).to(dtype)
    masks = torch.rand(2, 16, 20, 16, generator=generator) < 0.6
    if name == "gevnet":
        masks[:, 1:] = False
        masks[:, :, 5:] = False
    return scans * masks[:, None], masks


def gradients(
    network: CompoundNetwork, pieces: Pieces, batch: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    network.pieces = pieces
    loss = F.cross_entropy(network(*batch), torch.tensor([0, 1]))
    grads = torch.autograd.grad(loss, list(network.parameters()))
    return loss.detach(), torch.cat([g.flatten() for g in grads])


def report() -> str:
    lines = [f"`python benchmarks/invariance.py {' '.join(sys.argv[1:])}`".replace(" `", "`"), ""]
    lines += ["| network | precision | pieces | loss differs by | gradients differ by |"]
    lines += ["|---|---|---|---:|---:|"]
    print("\n".join(lines), flush=True)
    for entry in (each for each in PAPER_NETWORKS if each.classifies_scans):
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            network = entry.build().to(dtype)
            batch = make_batch(entry.name, dtype)
            network.initialise_(batch[0][0], n_patches=2000)
            loss, grads = gradients(network, WHOLE, batch)
            for label, pieces in CUTS.items():
                other, others = gradients(network, pieces, batch)
                row = (
                    f"| {entry.name} | {str(dtype).removeprefix('torch.')} | {label} "
                    f"| {abs(other - loss) / loss:.0e} "
                    f"| {(others - grads).norm() / grads.norm():.0e} |"
                )
                print(row, flush=True)
                lines.append(row)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    text = report()
    if options.write:
        write_page(PAGE, f"# Pieces\n\n{__doc__.split(chr(10) * 2, 2)[2]}\n{text}")


if __name__ == "__main__":
    main()
