"""Networks of molecules: what they must not notice, and what they must be able to learn."""

import pytest
import torch
from molecules.deepset import (
    CompositionBaseline,
    DeepSet,
    MoleculeNetwork,
    SphereInvariants,
    sum_by_molecule,
)
from molecules.potentials import (
    atom_list,
    coulomb_potentials,
    element_indicators,
    without_charges,
)

from bids_gevnet.sphere.icosphere_grid import icosphere


@pytest.fixture
def network() -> MoleculeNetwork:
    torch.manual_seed(0)
    spheres = SphereInvariants(icosphere(2), "5-3v-4", samples=None)
    return MoleculeNetwork(spheres, 5, (16, 12), (8,)).double().eval()


@pytest.fixture
def molecules() -> tuple[torch.Tensor, torch.Tensor]:
    """Three random molecules of six, five and four atoms at least 1.9 bohr apart."""
    generator = torch.Generator().manual_seed(3)
    lattice = torch.cartesian_prod(*[torch.arange(3.0)] * 3).double() * 2.5
    positions = torch.stack(
        [lattice[torch.randperm(27, generator=generator)[:6]] for _ in range(3)]
    )
    positions += 0.3 * (2 * torch.rand(3, 6, 3, generator=generator, dtype=torch.float64) - 1)
    charges = torch.tensor(
        [[6, 1, 1, 8, 7, 1], [16, 6, 1, 1, 1, 0], [7, 6, 6, 1, 0, 0]], dtype=torch.float64
    )
    return positions, charges


def energies(network: MoleculeNetwork, positions, charges) -> torch.Tensor:
    molecule, place = atom_list(charges)
    own = charges[molecule, place]
    points = torch.tensor(icosphere(2).points)
    spheres = without_charges(coulomb_potentials(positions, charges, points, 1.0), own)
    with torch.no_grad():
        return network(spheres, element_indicators(own), molecule, len(charges))


def test_the_order_of_atoms_does_not_matter(network, molecules):
    positions, charges = molecules
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    found = energies(network, positions[:, order], charges[:, order])
    torch.testing.assert_close(found, energies(network, positions, charges))


def test_padding_and_companions_do_not_matter(network, molecules):
    positions, charges = molecules
    together = energies(network, positions, charges)
    for k, count in enumerate((6, 5, 4)):
        alone = energies(network, positions[k : k + 1, :count], charges[k : k + 1, :count])
        torch.testing.assert_close(alone[0], together[k])


def test_a_symmetry_of_the_grid_changes_nothing(network, molecules):
    """A fifth of a turn about a corner maps the icosphere to itself."""
    angle = torch.tensor(2 * torch.pi / 5, dtype=torch.float64)
    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    found = energies(network, molecules[0] @ turn.T, molecules[1])
    torch.testing.assert_close(found, energies(network, *molecules))


def test_any_rotation_changes_little_and_a_reshaped_molecule_much(network, molecules):
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    turn = turn * torch.linalg.det(turn).sign()
    before = energies(network, *molecules)
    turned = (energies(network, molecules[0] @ turn.T, molecules[1]) - before).abs().max()
    stretched = (energies(network, molecules[0] * 1.05, molecules[1]) - before).abs().max()
    assert turned < 0.05 * stretched


def test_given_invariants_are_the_first_of_all(network, molecules):
    molecule, place = atom_list(molecules[1])
    points = torch.tensor(icosphere(2).points)
    spheres = without_charges(
        coulomb_potentials(*molecules, points, 1.0), molecules[1][molecule, place]
    )
    given = network.spheres.given(spheres)
    everything = network.spheres(spheres)
    assert everything.shape == (15, network.spheres.n_invariants)
    torch.testing.assert_close(everything[:, : network.spheres.n_given], given)


def test_sums_belong_to_their_molecule():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = sum_by_molecule(values, torch.tensor([0, 2, 2]), 3)
    assert found.tolist() == [[1, 2], [0, 0], [8, 10]]


def test_the_additive_part_is_additive():
    torch.manual_seed(0)
    network = DeepSet(4, (8, 8), (8,)).double()
    torch.nn.init.zeros_(network.psi[-1].weight)
    torch.nn.init.zeros_(network.psi[-1].bias)
    atoms = torch.randn(5, 4, dtype=torch.float64)
    one = network(atoms, torch.zeros(5, dtype=torch.long), 1)
    two = network(atoms, torch.tensor([0, 0, 1, 1, 1]), 2)
    torch.testing.assert_close(one[0], two.sum())


def test_the_composition_baseline_solves_a_linear_problem():
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 9, (200, 5), generator=generator).double()
    counts[:, 4] = 0  # an element that no molecule has
    truth = counts @ torch.tensor([-3.0, -20, -15, 7, 99]).double() - 12
    baseline = CompositionBaseline(5).double()
    baseline.fit_(counts[:150], truth[:150], steps=20)
    with torch.no_grad():
        assert (baseline(counts[150:]) - truth[150:]).abs().max() < 1e-3


def test_the_composition_baseline_learns_what_is_not_linear():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 6, (400, 5), generator=generator).float()
    truth = 10 * counts.sum(1) + (counts[:, 0] - 2.5) ** 2
    baseline = CompositionBaseline(5)
    baseline.fit_(counts[:300], truth[:300], steps=0)
    with torch.no_grad():
        linear = (baseline(counts[300:]) - truth[300:]).square().mean()
    baseline.fit_(counts[:300], truth[:300], steps=300)
    with torch.no_grad():
        fitted = (baseline(counts[300:]) - truth[300:]).square().mean()
    assert fitted < 0.1 * linear
