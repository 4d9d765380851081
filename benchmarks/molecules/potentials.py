r"""Coulomb potentials on spheres around the atoms of molecules: how a GEVNet sees a molecule.

For atom i at p_i with charge Z_i, direction u and element z, on a sphere of radius r,

    U_z(u; i) = sum over j != i with Z_j = z of  Z_i Z_j / |p_i + r u - p_j|,

one channel per element. With d = p_i - p_j the distance is sqrt(|d|^2 + r^2 + 2 r u.d), so that
all points of a sphere need one matrix product. U is harmonic inside the nearest atom: its mean
over the sphere is sum Z_i Z_j / |d| whatever the radius, and its degree l falls like (r / |d|)^l.

Symbols: p `positions`, Z `charges`, u `directions`, r `radius`, z `elements`.

Molecules are padded with charge 0 to a common number of atoms; a padded atom has no sphere and
adds nothing to any other. The atoms of a batch are then one flat list, molecule after molecule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

ELEMENTS = (1, 6, 7, 8, 16)
"""Charges of H, C, N, O and S, the elements of QM7."""


def atom_list(charges: Tensor) -> tuple[Tensor, Tensor]:
    """Molecule and place of each real atom, molecule after molecule.

    Parameters
    ----------
    charges : (molecules, places) tensor
        0 where there is no atom.

    Returns
    -------
    molecule, place : (atoms,) long tensors
    """
    molecule, place = torch.nonzero(charges > 0, as_tuple=True)
    return molecule, place


def element_indicators(charges: Tensor, elements: Sequence[int] = ELEMENTS) -> Tensor:
    """One column per element, 1 where a charge is that element's: (...) to (..., elements)."""
    table = torch.as_tensor(elements, dtype=charges.dtype, device=charges.device)
    return (charges[..., None] == table).to(charges.dtype)


def coulomb_potentials(
    positions: Tensor,
    charges: Tensor,
    directions: Tensor,
    radius: float,
    elements: Sequence[int] = ELEMENTS,
) -> Tensor:
    """Potentials on the sphere around every atom of a batch of molecules.

    Parameters
    ----------
    positions : (molecules, places, 3) tensor
    charges : (molecules, places) tensor
        0 where there is no atom.
    directions : (points, 3) tensor
        Unit vectors.
    radius : float
        In the unit of the positions, below the smallest distance of two atoms.
    elements : sequence of int
        Charges that have a channel each.

    Returns
    -------
    (points, elements, atoms) tensor
        The layout of `bids_gevnet.nn.fields`; atoms as listed by `atom_list`.
    """
    molecule, place = atom_list(charges)
    own = charges[molecule, place]  # (atoms,)
    difference = positions[molecule, place][:, None] - positions[molecule]  # (atoms, places, 3)
    squared = difference.square().sum(-1, keepdim=True) + radius**2
    squared = squared + 2 * radius * (difference @ directions.T)  # (atoms, places, points)
    weight = charges[molecule] * own[:, None]  # Z_i Z_j
    weight = weight.scatter(1, place[:, None], 0.0)  # j != i
    weight = (element_indicators(charges[molecule], elements) * weight[..., None]).transpose(1, 2)
    return torch.bmm(weight, squared.rsqrt()).permute(2, 1, 0).contiguous()


def without_charges(
    potentials: Tensor, charges: Tensor, elements: Sequence[int] = ELEMENTS
) -> Tensor:
    """Potentials divided by Z_i Z_j: one scale for all channels and atoms.

    Both charges are known, Z_j from the channel and Z_i from the atom. Left in, they make the
    sphere of a sulphur beside a carbon 96 times that of a hydrogen beside a hydrogen, and second
    order squares that.

    Parameters
    ----------
    potentials : (points, elements, atoms) tensor
    charges : (atoms,) tensor
    elements : sequence of int

    Returns
    -------
    (points, elements, atoms) tensor
    """
    table = torch.as_tensor(elements, dtype=potentials.dtype, device=potentials.device)
    return potentials / (table[:, None] * charges)
