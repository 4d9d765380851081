r"""Energy of a molecule: a GEVNet on the sphere of each atom, a DeepSet over the atoms.

    E = E_0(n) + psi( sum over atoms i of phi( g(U_i), e_i ) )

n are the charge-weighted numbers of atoms of each element, E_0 the composition baseline (a small
MLP that is trained first and then left alone), U_i the potentials around atom i, e_i the element
of atom i. g(U_i) are invariants of the sphere of atom i: the means of the potentials, and of every
layer of the GEVNet, for each channel, the mean of its scalar and of its energy s^2 + |z|^2. g does
not change with a rotation of the molecule but for the discretisation of the sphere, e_i and n do
not change at all, and the sum does not know the order of the atoms. phi and psi are MLPs. The
atoms of a batch are one flat list with the number of their molecule, so that nothing is computed
for padding.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.nn.fields import FieldType
from bids_gevnet.nn.gevnet import GEVNet
from bids_gevnet.nn.nonlinearity import RegularNonlinearity
from bids_gevnet.nn.norm import MomentNorm
from bids_gevnet.nn.pool import SphereMean, TransportPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bids_gevnet.sphere.grid import Grid

TYPICAL_ATOMS = 16.0
"""Sums over atoms are divided by this: a constant, unlike a mean, keeps energies additive."""


def make_mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given widths with SiLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def sum_by_molecule(values: Tensor, molecule: Tensor, n_molecules: int) -> Tensor:
    """Add up the rows of each molecule's atoms: (atoms, n) to (n_molecules, n)."""
    return values.new_zeros(n_molecules, values.shape[1]).index_add(0, molecule, values)


class SphereInvariants(nn.Module):
    """g of the module's docstring: invariants of spheres, learned by a GEVNet.

    Parameters
    ----------
    grid : Grid
    architecture : str
        As for `GEVNet`.
    spread : float
        The potentials' deviations from their mean are divided by this before they enter.
    **options
        As for `GEVNet`.

    Notes
    -----
    The mean over a sphere tells how far all atoms are, the deviation where the near ones are. The
    mean varies six times as much as the deviation (hydrogens of QM7), and would drown it: it goes
    around the GEVNet, as the first invariants.
    """

    def __init__(
        self, grid: Grid, architecture: str, *, spread: float = 0.13, **options: Any
    ) -> None:
        super().__init__()
        net = GEVNet(grid, architecture, **options)
        self.spread, self.layers = spread, net.layers
        fields, grids = [FieldType.scalars(net.n_in)], [grid]
        self.watched = []  # layers after which invariants are taken
        for k, layer in enumerate(net.layers):
            if isinstance(layer, TransportPool):
                grid = layer.coarse
            elif isinstance(layer, RegularNonlinearity) or k == len(net.layers) - 1:
                self.watched.append(k)
                fields.append(cast("FieldType", getattr(layer, "field", None) or layer.out_type))
                grids.append(grid)
        self.fields = fields
        self.means = nn.ModuleList(
            SphereMean(g, FieldType.scalars(f.multiplicities[0]))
            for f, g in zip(fields, grids, strict=True)
        )
        self.n_given = 2 * net.n_in
        self.n_invariants = 2 * sum(field.multiplicities[0] for field in fields)

    def given(self, potentials: Tensor) -> Tensor:
        """Invariants of the potentials themselves, the first n_given: (atoms, n_given)."""
        mean, x = self._split(potentials)
        return torch.cat([mean, self._energy(0, x)], dim=1)

    def _split(self, potentials: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the sphere, (atoms, channels), and scaled deviation from it."""
        mean: Tensor = self.means[0](potentials)
        return mean, (potentials - mean.T) / self.spread

    def forward(self, potentials: Tensor) -> Tensor:
        """(points, channels, atoms) to (atoms, n_invariants)."""
        mean, x = self._split(potentials)
        found = [mean, self._energy(0, x)]
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if k in self.watched:
                stage = self.watched.index(k) + 1
                scalars = x[:, : self.fields[stage].multiplicities[0]]
                found += [self.means[stage](scalars), self._energy(stage, x)]
        return torch.cat(found, dim=1)

    def _energy(self, stage: int, x: Tensor) -> Tensor:
        """Mean over the sphere of s^2 + |z|^2 of each channel: (atoms, channels)."""
        squares = x.square().view(len(x), -1, self.fields[stage].multiplicities[0], x.shape[2])
        energy: Tensor = self.means[stage](squares.sum(1))
        return energy


class DeepSet(nn.Module):
    """psi( sum of phi ), and a linear map of the same sum: one number per set.

    Parameters
    ----------
    n_in : int
        Numbers per atom.
    phi, psi : sequence of int
        Widths of the hidden layers; phi's last is the size of the sum.
    """

    def __init__(self, n_in: int, phi: Sequence[int], psi: Sequence[int]) -> None:
        super().__init__()
        self.phi = make_mlp((n_in, *phi))
        self.psi = make_mlp((phi[-1], *psi, 1))
        # Energies of atoms add up: this part is right from the first step.
        self.additive = nn.Linear(phi[-1], 1, bias=False)

    def forward(self, atoms: Tensor, molecule: Tensor, n_molecules: int) -> Tensor:
        """(atoms, n_in) and the molecule of each atom to (n_molecules,)."""
        total = sum_by_molecule(self.phi(atoms), molecule, n_molecules) / TYPICAL_ATOMS
        energies: Tensor = self.psi(total) + TYPICAL_ATOMS * self.additive(total)
        return energies[:, 0]


class MoleculeNetwork(nn.Module):
    """GEVNet per atom and DeepSet over the atoms.

    Parameters
    ----------
    spheres : SphereInvariants
    n_elements : int
    phi, psi : sequence of int
        As for `DeepSet`.

    Notes
    -----
    What is learned is normalised by batch, what is given by constants (`standardise_`): few atoms
    are sulphur, and statistics of one batch would scale their columns by chance.
    """

    centre: Tensor
    width: Tensor

    def __init__(
        self, spheres: SphereInvariants, n_elements: int, phi: Sequence[int], psi: Sequence[int]
    ) -> None:
        super().__init__()
        self.spheres = spheres
        n_given = spheres.n_given + n_elements
        n_learned = spheres.n_invariants - spheres.n_given
        self.register_buffer("centre", torch.zeros(n_given))
        self.register_buffer("width", torch.ones(n_given))
        self.norm = MomentNorm(n_learned)
        self.deepset = DeepSet(n_given + n_learned, phi, psi)

    @torch.no_grad()
    def standardise_(self, potentials: Tensor, elements: Tensor) -> None:
        """Set mean and standard deviation of the given numbers from atoms for training."""
        given = torch.cat([self.spheres.given(potentials), elements], dim=1)
        self.centre.copy_(given.mean(0))
        self.width.copy_(given.std(0).clamp_min(0.05))

    def atoms(self, potentials: Tensor, elements: Tensor) -> Tensor:
        """Normalised numbers of each atom: (atoms, n_invariants + n_elements)."""
        given, learned = self.spheres(potentials).tensor_split([self.spheres.n_given], dim=1)
        given = (torch.cat([given, elements], dim=1) - self.centre) / self.width
        return torch.cat([given, self.norm(learned)], dim=1)

    def forward(
        self, potentials: Tensor, elements: Tensor, molecule: Tensor, n_molecules: int
    ) -> Tensor:
        """Energy of each molecule.

        Parameters
        ----------
        potentials : (points, channels, atoms) tensor
        elements : (atoms, n_elements) tensor
        molecule : (atoms,) long tensor
        n_molecules : int

        Returns
        -------
        (n_molecules,) tensor
        """
        energies: Tensor = self.deepset(self.atoms(potentials, elements), molecule, n_molecules)
        return energies


class CompositionBaseline(nn.Module):
    """E_0: a linear function of charge-weighted atom counts, and a small MLP on top.

    Parameters
    ----------
    n_elements : int
    hidden : sequence of int
        Widths of the MLP's hidden layers.
    """

    centre: Tensor
    width: Tensor
    unit: Tensor

    def __init__(self, n_elements: int, hidden: Sequence[int] = (32, 32)) -> None:
        super().__init__()
        self.linear = nn.Linear(n_elements, 1)
        self.mlp = make_mlp((n_elements, *hidden, 1))
        nn.init.zeros_(self.mlp[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.mlp[-1].bias)  # type: ignore[arg-type]
        self.register_buffer("centre", torch.zeros(n_elements))
        self.register_buffer("width", torch.ones(n_elements))
        self.register_buffer("unit", torch.ones(()))

    def forward(self, counts: Tensor) -> Tensor:
        """(molecules, n_elements) counts times charges to (molecules,) energies."""
        x = (counts - self.centre) / self.width
        energies: Tensor = self.linear(x) + self.unit * self.mlp(x)
        return energies[:, 0]

    def fit_(self, counts: Tensor, energies: Tensor, *, steps: int = 300) -> None:
        """Fit the linear part by least squares, then the MLP to what is left, by Adam.

        Parameters
        ----------
        counts : (molecules, n_elements) tensor
        energies : (molecules,) tensor
        steps : int
            Of the whole batch; the rate falls from 0.01 to 0 as a cosine.
        """
        self.centre.copy_(counts.mean(0))
        self.width.copy_(counts.std(0).clamp_min(1e-3))
        x = (counts - self.centre) / self.width
        with torch.no_grad():
            design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1).double()
            # gelsd: elements that no molecule has leave the problem without full rank
            solution = torch.linalg.lstsq(design, energies[:, None].double(), driver="gelsd")
            self.linear.weight.copy_(solution.solution[:-1].T)
            self.linear.bias.copy_(solution.solution[-1])
            left = energies - self.linear(x)[:, 0]
            self.unit.copy_(left.std().clamp_min(1e-6))
        optimiser = torch.optim.Adam(self.mlp.parameters(), lr=0.01)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = 0.005 * (1 + math.cos(math.pi * step / steps))
            optimiser.zero_grad(set_to_none=True)
            loss = F.mse_loss(self.mlp(x)[:, 0], left / self.unit)
            torch.autograd.backward(loss)
            optimiser.step()
