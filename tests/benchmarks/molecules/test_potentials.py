"""Potentials on spheres against brute force, closed forms and what symmetry demands."""

import numpy as np
import pytest
import torch
from molecules.potentials import (
    ELEMENTS,
    atom_list,
    coulomb_potentials,
    element_indicators,
    without_charges,
)

from bids_gevnet.sphere.icosphere_grid import icosphere

RADIUS = 0.9
DIRECTIONS = torch.tensor(icosphere(2).points)
AREAS = torch.tensor(icosphere(2).areas / (4 * np.pi))


@pytest.fixture
def water() -> tuple[torch.Tensor, torch.Tensor]:
    """Water and methanethiol-like four atoms, padded to five places; positions in bohr."""
    positions = torch.tensor(
        [
            [[0, 0, 0.22], [0, 1.43, -0.88], [0, -1.43, -0.88], [9, 9, 9], [9, 9, 9]],
            [[0, 0, 0], [3.4, 0, 0], [-0.7, 1.9, 0], [3.9, 2.4, 0.3], [0, 0, 0]],
        ],
        dtype=torch.float64,
    )
    charges = torch.tensor([[8, 1, 1, 0, 0], [6, 16, 1, 1, 0]], dtype=torch.float64)
    return positions, charges


def brute_force(positions: np.ndarray, charges: np.ndarray) -> list[np.ndarray]:
    """One (points, elements) array per atom, by loops over the definition."""
    spheres = []
    for r, z in zip(positions, charges, strict=True):
        for i in np.flatnonzero(z):
            sphere = np.zeros((len(DIRECTIONS), len(ELEMENTS)))
            for k, u in enumerate(DIRECTIONS.numpy()):
                for j in np.flatnonzero(z):
                    if j != i:
                        away = np.linalg.norm(r[i] + RADIUS * u - r[j])
                        sphere[k, ELEMENTS.index(int(z[j]))] += z[i] * z[j] / away
            spheres.append(sphere)
    return spheres


def test_potentials_are_those_of_the_definition(water):
    found = coulomb_potentials(*water, DIRECTIONS, RADIUS)
    expected = np.stack(brute_force(water[0].numpy(), water[1].numpy()), axis=-1)
    assert found.shape == (162, 5, 7)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_mean_over_the_sphere_is_the_potential_at_its_centre(water):
    """U is harmonic, so the radius does not matter; a larger power would not pass this."""
    found = coulomb_potentials(*water, DIRECTIONS, RADIUS)
    oxygen = torch.einsum("p,pca->ca", AREAS, found)[:, 0]
    bond = np.hypot(1.43, 1.10)
    torch.testing.assert_close(
        oxygen, torch.tensor([2 * 8 / bond, 0, 0, 0, 0], dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_turning_the_molecule_turns_the_signal(water):
    angle = 0.7
    turn = torch.tensor(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1.0]],
        dtype=torch.float64,
    )
    still = coulomb_potentials(*water, DIRECTIONS @ turn, RADIUS)  # seen from R^-1 u
    turned = coulomb_potentials(water[0] @ turn.T, water[1], DIRECTIONS, RADIUS)
    torch.testing.assert_close(turned, still)
    unturned = coulomb_potentials(*water, DIRECTIONS, RADIUS)
    assert (turned - unturned).abs().max() > 0.1  # the signal itself did change


def test_moving_the_molecule_changes_nothing(water):
    moved = water[0] + torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(
        coulomb_potentials(moved, water[1], DIRECTIONS, RADIUS),
        coulomb_potentials(*water, DIRECTIONS, RADIUS),
    )


def test_padding_changes_nothing(water):
    positions, charges = water
    wide = torch.nn.functional.pad(positions, (0, 0, 0, 4), value=0.3)
    found = coulomb_potentials(wide, torch.nn.functional.pad(charges, (0, 4)), DIRECTIONS, RADIUS)
    torch.testing.assert_close(found, coulomb_potentials(positions, charges, DIRECTIONS, RADIUS))
    assert found.isfinite().all()


def test_the_order_of_atoms_only_orders_the_spheres(water):
    positions, charges = (part[1:, :4] for part in water)
    order = torch.tensor([2, 0, 3, 1])
    found = coulomb_potentials(positions[:, order], charges[:, order], DIRECTIONS, RADIUS)
    expected = coulomb_potentials(positions, charges, DIRECTIONS, RADIUS)[..., order]
    torch.testing.assert_close(found, expected)


def test_without_charges_a_sphere_counts_inverse_distances(water):
    molecule, place = atom_list(water[1])
    own = water[1][molecule, place]
    found = without_charges(coulomb_potentials(*water, DIRECTIONS, RADIUS), own)
    sulphur, carbon = 4, 3  # the second molecule's atoms are 3 to 6 in the list
    assert own[[carbon, sulphur]].tolist() == [6, 16]
    away = (RADIUS * DIRECTIONS - torch.tensor([3.4, 0, 0], dtype=torch.float64)).norm(dim=1)
    torch.testing.assert_close(found[:, ELEMENTS.index(16), carbon], 1 / away)


def test_atoms_are_listed_molecule_after_molecule(water):
    molecule, place = atom_list(water[1])
    assert molecule.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert place.tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_an_element_has_one_column(water):
    columns = element_indicators(water[1])
    assert columns.sum(1).tolist() == [[2, 0, 0, 1, 0], [2, 1, 0, 0, 1]]
