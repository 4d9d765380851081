"""The kernel identity, the layer against its definition, and filters that stay on the sphere."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bids_gevnet.errors import InputError
from bids_gevnet.nn.ckn import (
    CKN,
    CKNLayer,
    box_sum,
    gaussian_window,
    keep_on_sphere,
)
from bids_gevnet.nn.inverse_sqrt import inverse_sqrt
from bids_gevnet.nn.kappa import LINEAR, QUADRATIC, Kappa
from bids_gevnet.nn.kmeans import spherical_kmeans

KAPPAS = {
    "linear": LINEAR,
    "quadratic": QUADRATIC,
    "cubic with offset": Kappa(degree=3, offset=0.5),
    "exponential": Kappa("exponential", alpha=2.0),
}


def _kernel(x: torch.Tensor, y: torch.Tensor, kappa: Kappa) -> torch.Tensor:
    cosine = x @ y / (x.norm() * y.norm())
    return x.norm() * y.norm() * kappa(cosine)


def _encode_patch(layer: CKNLayer, patch: torch.Tensor) -> torch.Tensor:
    """psi(x) as the layer computes it: the output at the centre of a volume that is the patch."""
    return layer(patch.view(1, -1, 3, 3, 3))[0, :, 1, 1, 1]


# --- the kernel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", KAPPAS.values(), ids=KAPPAS.keys())
def test_inner_product_of_encoded_patches_is_the_kernel(kappa: Kappa) -> None:
    torch.manual_seed(0)
    layer = CKNLayer(1, 6, kappa, eps=1e-9).double()
    lengths = torch.tensor([0.3, 2.0, 1.0, 5.0, 0.7, 1.1], dtype=torch.float64)
    patches = layer.filters.detach().flatten(1) * lengths[:, None]
    codes = torch.stack([_encode_patch(layer, p) for p in patches])
    expected = torch.stack([torch.stack([_kernel(x, y, kappa) for y in patches]) for x in patches])
    torch.testing.assert_close(codes @ codes.T, expected, rtol=1e-8, atol=1e-8)


def test_quadratic_filters_that_span_all_products_give_the_kernel_of_any_patch() -> None:
    # 27 entries have 27 * 28 / 2 = 378 products; 378 random filters span their space.
    torch.manual_seed(0)
    layer = CKNLayer(1, 378, QUADRATIC, eps=1e-9).double()
    x, y = torch.randn(2, 27, dtype=torch.float64)
    code = _encode_patch(layer, x) @ _encode_patch(layer, y)
    torch.testing.assert_close(code, _kernel(x, y, QUADRATIC), rtol=1e-6, atol=1e-6)
    # Negative control: too few filters give a projection, which is shorter.
    few = CKNLayer(1, 100, QUADRATIC, eps=1e-9).double()
    code = _encode_patch(few, x)
    assert code @ code < 0.9 * _kernel(x, x, QUADRATIC)


@pytest.mark.parametrize("kappa", KAPPAS.values(), ids=KAPPAS.keys())
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_projection_never_lengthens(kappa: Kappa, seed: int) -> None:
    torch.manual_seed(seed)
    layer = CKNLayer(2, 5, kappa).double()
    patch = torch.randn(54, dtype=torch.float64)
    code = _encode_patch(layer, patch)
    assert code @ code <= _kernel(patch, patch, kappa) * (1 + 1e-9)


@pytest.mark.parametrize("bad", [{"degree": 0}, {"offset": -1.0}, {"alpha": 0.0}])
def test_functions_that_are_no_kernel_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match="degree >= 1"):
        Kappa(**bad)  # type: ignore[arg-type]


# --- the inverse square root --------------------------------------------------------------------


def _degenerate(name: str) -> torch.Tensor:
    torch.manual_seed(3)
    Z = torch.nn.functional.normalize(torch.randn(5, 7, dtype=torch.float64), dim=1)
    if name == "twins":
        Z[1] = Z[0]
    elif name == "orthogonal":
        Z = torch.eye(5, 7, dtype=torch.float64)
    elif name == "all equal":
        Z = Z[:1].repeat(5, 1)
    return Z


@pytest.mark.parametrize("name", ["generic", "twins", "orthogonal", "all equal"])
def test_gradients_hold_for_repeated_and_vanishing_eigenvalues(name: str) -> None:
    Z = _degenerate(name).requires_grad_()

    def whiten(Z: torch.Tensor) -> torch.Tensor:
        return inverse_sqrt((Z @ Z.T).square(), eps=0.3)

    assert torch.autograd.gradcheck(whiten, (Z,))
    assert torch.autograd.gradgradcheck(whiten, (Z,))


def test_textbook_gradient_fails_where_ours_holds() -> None:
    Z = _degenerate("orthogonal").requires_grad_()
    eigenvalues, V = torch.linalg.eigh(Z @ Z.T)
    (naive,) = torch.autograd.grad(((V * eigenvalues.rsqrt()) @ V.T)[0, 1], Z)
    assert not naive.isfinite().all()
    (ours,) = torch.autograd.grad(inverse_sqrt(Z @ Z.T, eps=0.0)[0, 1], Z)
    # At K = I the derivative is -dK / 2, with dK_01 = dz_0 . z_1 + z_0 . dz_1.
    expected = torch.zeros_like(Z)
    expected[0, 1] = expected[1, 0] = -0.5
    torch.testing.assert_close(ours, expected)


def test_inverse_sqrt_squares_to_the_inverse() -> None:
    Z = _degenerate("generic")
    S = inverse_sqrt(Z @ Z.T, eps=0.0)
    torch.testing.assert_close(S @ S @ Z @ Z.T, torch.eye(5, dtype=torch.float64))


def test_training_survives_twin_filters() -> None:
    torch.manual_seed(0)
    layer = CKNLayer(1, 3, QUADRATIC)
    with torch.no_grad():
        layer.filters[1] = layer.filters[0]
        layer.filters[2] = -layer.filters[0]  # kappa(-1) = 1: one eigenvalue of 3, two of 0
    layer(torch.rand(2, 1, 4, 4, 4)).square().sum().backward()
    assert layer.filters.grad is not None
    assert layer.filters.grad.isfinite().all()


# --- the layer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kappa", KAPPAS.values(), ids=KAPPAS.keys())
def test_layer_equals_its_definition_patch_by_patch(kappa: Kappa, stride: int) -> None:
    torch.manual_seed(1)
    layer = CKNLayer(2, 3, kappa, stride=stride).double()
    x = torch.randn(1, 2, 5, 4, 6, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, [1] * 6)[0]
    Z = layer.filters.detach().flatten(1)
    codes = torch.zeros(3, 5, 4, 6, dtype=torch.float64)
    for i, j, k in np.ndindex(5, 4, 6):
        patch = padded[:, i : i + 3, j : j + 3, k : k + 3].flatten()
        codes[:, i, j, k] = patch.norm() * kappa(Z @ patch / patch.norm())
    K = kappa(Z @ Z.T) + layer.eps**2 * torch.eye(3, dtype=torch.float64)
    values, vectors = np.linalg.eigh(K.numpy())
    L = torch.from_numpy(vectors @ np.diag(values**-0.5) @ vectors.T)
    expected = torch.zeros(layer(x)[0].shape, dtype=torch.float64)
    w = gaussian_window(stride) if stride > 1 else torch.tensor([0.0, 1.0, 0.0])
    for a, b, c in np.ndindex(*expected.shape[1:]):
        for i, j, k in np.ndindex(5, 4, 6):
            o = [i - stride * a, j - stride * b, k - stride * c]
            if max(map(abs, o)) <= stride:
                weight = w[o[0] + stride] * w[o[1] + stride] * w[o[2] + stride]
                expected[:, a, b, c] += weight * codes[:, i, j, k]
    torch.testing.assert_close(
        layer(x)[0].detach(), torch.einsum("ij,jabc->iabc", L, expected), rtol=1e-9, atol=1e-9
    )


@given(size=st.sampled_from([1, 3, 5]), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_box_sum_is_a_convolution_with_ones(size: int, seed: int) -> None:
    x = torch.rand(1, 1, 6, 5, 7, generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(1, 1, size, size, size)
    torch.testing.assert_close(
        box_sum(x, size), torch.nn.functional.conv3d(x, ones, padding=size // 2)
    )


@pytest.mark.parametrize("kappa", KAPPAS.values(), ids=KAPPAS.keys())
def test_layer_gradients(kappa: Kappa) -> None:
    torch.manual_seed(2)
    layer = CKNLayer(1, 2, kappa, stride=2).double()
    x = torch.randn(1, 1, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (x, layer.filters))


def test_background_gives_finite_gradients() -> None:
    torch.manual_seed(0)
    for kappa in KAPPAS.values():
        layer = CKNLayer(1, 3, kappa)
        x = torch.zeros(1, 1, 8, 8, 8)
        x[..., :3] = 1.0
        x.requires_grad_()
        layer(x).square().sum().backward()
        assert x.grad is not None
        assert layer.filters.grad is not None
        assert x.grad.isfinite().all()
        assert layer.filters.grad.isfinite().all()


def test_even_patches_are_refused() -> None:
    with pytest.raises(InputError, match="odd patch size"):
        CKNLayer(1, 2, LINEAR, size=2)


# --- the network --------------------------------------------------------------------------------


def test_parameter_count_and_size_of_the_paper() -> None:
    network = CKN()
    assert sum(p.numel() for p in network.parameters()) == 3_164
    assert network(torch.rand(1, 1, 9, 12, 17)).shape == (1, 8, 3, 3, 5)
    assert network.stride**3 == 64


def test_network_is_layers_with_batch_norm_between() -> None:
    torch.manual_seed(4)
    network = CKN()
    x = torch.rand(3, 1, 8, 8, 8)
    expected = x
    for number, layer in enumerate(network.layers):
        expected = layer(expected)
        if number < 3:
            expected = torch.nn.BatchNorm3d(expected.shape[1])(expected)
    torch.testing.assert_close(network(x), expected)


def test_linear_kernel_makes_a_linear_network() -> None:
    torch.manual_seed(5)
    x, y = torch.randn(2, 1, 1, 8, 8, 8, dtype=torch.float64)
    linear = CKN(kappa=LINEAR).double().eval()
    torch.testing.assert_close(linear(2 * x - y), 2 * linear(x) - linear(y))
    quadratic = CKN(kappa=QUADRATIC).double().eval()
    mixed, apart = quadratic(2 * x - y), 2 * quadratic(x) - quadratic(y)
    assert (mixed - apart).norm() > 0.1 * apart.norm()


def test_strides_must_match_layers() -> None:
    with pytest.raises(InputError, match="4 strides"):
        CKN(strides=(2, 2))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_filters_stay_on_the_sphere(kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(6)
    network = torch.nn.Sequential(CKN())

    def lengths() -> torch.Tensor:
        return torch.cat(
            [f.flatten(1).norm(dim=1) for n, f in network.named_parameters() if "filters" in n]
        )

    optimizer = kind(network.parameters(), lr=0.1)  # type: ignore[call-arg]
    handle = keep_on_sphere(optimizer, network)
    for _ in range(2):
        optimizer.zero_grad()
        network(torch.rand(2, 1, 8, 8, 8)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(lengths(), torch.ones_like(lengths()))
    handle.remove()
    network(torch.rand(2, 1, 8, 8, 8)).square().sum().backward()
    optimizer.step()
    assert (lengths() - 1).abs().max() > 1e-3


def test_bfloat16_autocast_leaves_the_kernel_network_in_float32() -> None:
    torch.manual_seed(7)
    network = CKN()
    x = torch.rand(4, 1, 12, 12, 12)
    exact = network(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = network(x)
    rough.square().mean().backward()
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=1e-5, atol=1e-6)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


# --- initialisation -----------------------------------------------------------------------------


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_kmeans_finds_planted_directions(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.linalg.qr(torch.randn(10, 4, generator=generator)).Q.T
    noise = 0.05 * torch.randn(400, 10, generator=generator)
    lengths = 0.1 + torch.rand(400, 1, generator=generator)
    patches = (truth[torch.arange(400) % 4] + noise) * lengths
    centres = spherical_kmeans(patches, 4, generator=generator)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(4))
    best = (truth @ centres.T).max(dim=1)
    assert best.values.min() > 0.99
    assert best.indices.unique().numel() == 4


def test_kmeans_does_not_depend_on_the_block() -> None:
    patches = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    results = [
        spherical_kmeans(patches, 5, generator=torch.Generator().manual_seed(2), block=block)
        for block in (7, 10_000)
    ]
    torch.testing.assert_close(*results)


def test_kmeans_gives_distinct_centres_when_patches_repeat() -> None:
    patches = torch.ones(50, 8)
    centres = spherical_kmeans(patches, 3, generator=torch.Generator().manual_seed(0))
    assert centres.isfinite().all()
    assert (centres @ centres.T - torch.eye(3)).max() < 0.999


def _volumes(read: list[int], n: int = 1000) -> Iterator[torch.Tensor]:
    for number in range(n):
        read.append(number)
        volume = torch.zeros(16, 16, 16)
        generator = torch.Generator().manual_seed(number)
        volume[4:12, 4:12, 4:12] = torch.rand(8, 8, 8, generator=generator)
        yield volume


def test_initialisation_is_seeded_and_reads_no_more_than_it_needs() -> None:
    networks = []
    for seed in (0, 0, 1):
        read: list[int] = []
        torch.manual_seed(len(networks))  # the global state must not matter
        network = CKN()
        before = {k: v.clone() for k, v in network.state_dict().items() if "running" in k}
        network.initialise_(_volumes(read), n_volumes=3, n_patches=600, seed=seed)
        assert read == [0, 1, 2]
        assert all(torch.equal(network.state_dict()[k], v) for k, v in before.items())
        networks.append(network)
    first, same, other = ([layer.filters for layer in n.layers] for n in networks)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not any(torch.allclose(a, b) for a, b in zip(first, other, strict=True))
    for filters in first:
        torch.testing.assert_close(filters.flatten(1).norm(dim=1), torch.ones(len(filters)))


def test_initialisation_fits_the_patches_better_than_chance() -> None:
    torch.manual_seed(0)
    # Stripes of one direction: all patches lie near a plane of 27-dimensional space.
    phase = torch.arange(16.0)
    stripes = [torch.sin(phase + p)[:, None, None].expand(16, 16, 16) for p in torch.rand(4) * 6]
    network = CKN()
    chance = network.layers[0].filters.detach().clone()
    network.initialise_(stripes, n_patches=800)
    generator = torch.Generator().manual_seed(1)
    everywhere = torch.ones(16, 16, 16, dtype=torch.bool)
    patches = network.layers[0].sample_patches(stripes[0][None], everywhere, 200, generator)
    patches = torch.nn.functional.normalize(patches, dim=1)

    def fit(filters: torch.Tensor) -> float:
        return float((patches @ filters.detach().flatten(1).T).max(dim=1).values.mean())

    assert fit(network.layers[0].filters) > 0.8
    assert fit(chance) < 0.6


def test_patches_are_those_of_the_convolution() -> None:
    torch.manual_seed(8)
    layer = CKNLayer(2, 3, LINEAR)
    x = torch.randn(2, 5, 6, 7)
    support = torch.zeros(5, 6, 7, dtype=torch.bool)
    support[0, 3, 6] = True  # on the border
    patch = layer.sample_patches(x, support, 1, torch.Generator())
    torch.testing.assert_close(
        patch[0] @ layer.filters.flatten(1).T, layer.encode(x[None])[0, :, 0, 3, 6]
    )


def test_empty_volumes_are_refused() -> None:
    with pytest.raises(InputError, match="patches that are not zero"):
        CKN().initialise_([torch.zeros(8, 8, 8)])
    with pytest.raises(InputError, match="none in 0 volumes"):
        CKN().initialise_([])
