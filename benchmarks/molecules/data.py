"""Molecules for `qm7.py`: reading QM7, planted ones for tests, and what a network sees of them."""

from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.icosphere_grid import icosphere
from molecules.deepset import MoleculeNetwork
from molecules.potentials import (
    ELEMENTS,
    atom_list,
    coulomb_potentials,
    element_indicators,
    without_charges,
)


@dataclass(frozen=True)
class Options:
    """Everything that decides what is trained."""

    architecture: str = "5-5v-10-32"
    level: int = 1
    radius: float = 1.0  # bohr; the nearest atoms of QM7 are 1.83 apart
    phi: tuple[int, ...] = (120, 120, 120)
    psi: tuple[int, ...] = (64,)
    baseline_steps: int = 300
    epochs: int = 20
    rate: float = 5e-3
    set_epochs: int = 150
    set_rate: float = 2e-3
    batch: int = 32
    weight_decay: float = 1e-2
    orientations: int = 2
    score_every: int = 4
    order: int = 2
    seed: int = 0


@dataclass(frozen=True)
class Molecules:
    """Positions in bohr, charges (0: no atom), energies in kcal/mol, test molecules of folds."""

    positions: Tensor
    charges: Tensor
    energies: Tensor
    folds: tuple[Tensor, ...]

    def split(self, fold: int) -> tuple[Tensor, Tensor]:
        """Molecules to train on, and those of the fold."""
        others = [test for k, test in enumerate(self.folds) if k != fold]
        return torch.cat(others), self.folds[fold]

    @property
    def counts(self) -> Tensor:
        """Charge-weighted numbers of atoms of each element: (molecules, elements)."""
        return element_indicators(self.charges).sum(1) * torch.tensor(ELEMENTS)


def read_qm7(path: Path) -> Molecules:
    """Read R, Z, T and P of QM7 from an npz file."""
    remedy = (
        "give --data a file with the arrays R (n, 23, 3), Z (n, 23), T (1, n) and P (5, n / 5) "
        "of qm7.mat from http://quantum-machine.org/datasets, saved by numpy.savez"
    )
    try:
        with path.open("rb") as stream, np.load(stream) as content:
            r, z, t, p = (content[name] for name in "RZTP")
        wrong = what_is_wrong(r, z, t, p)
    except (OSError, EOFError, KeyError, ValueError, TypeError, BadZipFile) as error:
        wrong = str(error) or type(error).__name__
    if wrong:
        raise InputError(expected=f"the QM7 molecules in {path}", found=wrong, remedy=remedy)
    return Molecules(
        torch.tensor(r, dtype=torch.float32),
        torch.tensor(z, dtype=torch.float32),
        torch.tensor(t.ravel(), dtype=torch.float32),
        tuple(torch.tensor(fold, dtype=torch.long) for fold in p),
    )


def what_is_wrong(r: np.ndarray, z: np.ndarray, t: np.ndarray, p: np.ndarray) -> str:
    """Say what keeps arrays from being molecules with folds; nothing if they are."""
    if r.shape != (*z.shape, 3) or len(z) != t.size:
        return f"R {r.shape}, Z {z.shape} and T {t.shape}, which do not fit together"
    if sorted(p.ravel().tolist()) != list(range(t.size)):
        return f"folds P that do not hold each of {t.size} molecules once"
    unknown = set(np.unique(z).tolist()) - {0, *ELEMENTS}
    if unknown:
        return f"charges {sorted(unknown)} besides those of H, C, N, O and S"
    return "" if all(np.isfinite(a).all() for a in (r, t)) else "numbers that are not finite"


def plant_molecules(n: int, seed: int = 0, places: int = 8) -> Molecules:
    """Make random molecules with a known energy: the composition's, and 20 / d^2 of each pair."""
    rng = np.random.default_rng(seed)
    corners = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    positions = np.zeros((n, places, 3))
    charges = np.zeros((n, places))
    for k in range(n):
        atoms = int(rng.integers(3, places + 1))
        lattice = corners[rng.permutation(len(corners))[:atoms]]
        positions[k, :atoms] = 2.6 * lattice + rng.uniform(-0.35, 0.35, (atoms, 3))
        charges[k, :atoms] = rng.choice(ELEMENTS, atoms, p=[0.5, 0.25, 0.12, 0.1, 0.03])
    distance = np.linalg.norm(positions[:, :, None] - positions[:, None], axis=-1)
    pairs = (charges[:, :, None] * charges[:, None] > 0) & ~np.eye(places, dtype=bool)
    bonds = np.where(pairs, 10 / np.maximum(distance, 1) ** 2, 0).sum((1, 2))
    energies = -3.0 * charges.sum(1) - 40.0 * (charges > 0).sum(1) - bonds
    folds = torch.arange(n).chunk(5)
    r, z, t = (torch.tensor(a, dtype=torch.float32) for a in (positions, charges, energies))
    return Molecules(r, z, t, tuple(folds))


def random_rotation(generator: torch.Generator) -> Tensor:
    """Draw a (3, 3) rotation uniformly, from a unit quaternion."""
    w, x, y, z = nn.functional.normalize(torch.randn(4, generator=generator), dim=0).tolist()
    return torch.tensor(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


class Spheres:
    """Potentials of chosen molecules, made when they are needed: cheaper than a layer."""

    def __init__(self, data: Molecules, options: Options) -> None:
        self.data, self.radius = data, options.radius
        self.points = torch.tensor(icosphere(options.level).points, dtype=torch.float32)

    def turned(self, chosen: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """Potentials of turned molecules, elements and molecule of each atom, and how many."""
        positions, charges = self.data.positions[chosen] @ rotation.T, self.data.charges[chosen]
        molecule, place = atom_list(charges)
        own = charges[molecule, place]
        raw = coulomb_potentials(positions, charges, self.points, self.radius)
        return without_charges(raw, own), element_indicators(own), molecule, len(chosen)

    def __call__(
        self, chosen: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Turn the batch at random, or not at all."""
        return self.turned(
            chosen, torch.eye(3) if generator is None else random_rotation(generator)
        )


class KeptAtoms:
    """Numbers of every atom for a few orientations, which the network makes once."""

    @torch.no_grad()
    def __init__(self, network: MoleculeNetwork, spheres: Spheres, options: Options) -> None:
        network.eval()
        generator = torch.Generator().manual_seed(options.seed)
        self.counts = (spheres.data.charges > 0).sum(1)
        self.ends = self.counts.cumsum(0)
        everything = torch.arange(len(self.counts)).split(128)
        self.numbers = []
        for _ in range(options.orientations):
            turn = random_rotation(generator)
            parts = [network.atoms(*spheres.turned(chosen, turn)[:2]) for chosen in everything]
            self.numbers.append(torch.cat(parts))

    def pick(self, chosen: Tensor, orientation: int) -> tuple[Tensor, Tensor, int]:
        """Numbers and molecule of each atom of chosen molecules, and how many these are."""
        counts = self.counts[chosen]
        molecule = torch.repeat_interleave(torch.arange(len(chosen)), counts)
        starts = self.ends[chosen] - counts.cumsum(0)  # of the molecule's atoms, less its place
        rows = torch.arange(len(molecule)) + torch.repeat_interleave(starts, counts)
        return self.numbers[orientation][rows], molecule, len(chosen)

    def __call__(
        self, chosen: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, int]:
        """Pick an orientation at random, or the first."""
        several = len(self.numbers)
        one = 0 if generator is None else int(torch.randint(several, (), generator=generator))
        return self.pick(chosen, one)
