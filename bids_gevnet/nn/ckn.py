"""Three-dimensional convolutional kernel network: the inter-voxel part of the compound network.

For a patch x and unit filters Z = (z_1, ..., z_m) the layer projects the kernel mapping of x on
the span of the mappings of the filters (section 2.2 of the paper, after Mairal 2016):

    K(x, x') = |x| |x'| kappa(<x, x'> / (|x| |x'|)),
    psi(x) = L |x| kappa(Z^T x / |x|),    L = kappa(Z^T Z)^(-1/2),
    <psi(x), psi(x')> = K(x, x') when the filters' mappings span those of x and x',
    out = L pool(|x| kappa(Z^T x / |x|)).

kappa(t) is (c + t)^m, with c = 0, m = 1 in CKN1 and m = 2 in CKN2, or exp(alpha (t - 1)). L is
linear and acts on channels, so it comes after the pooling, on fewer voxels. |x| is
sqrt(sum x^2 + tiny): patches reach over the border of the volume into zeros.

pool is a Gaussian of size 2s + 1 and standard deviation s / sqrt 2, taken at every s-th voxel:
output voxel i sits on input voxel s i, and a side of n voxels becomes ceil(n / s). A stride of 1
leaves the map as it is, as in the code that the paper adapts.

Only Z is learned. It lives on the sphere: `CKNLayer.project_` puts it back after a step of an
optimiser, `keep_on_sphere` does so after every step. Batch normalisation follows every layer but
the last. CKN1 is linear from end to end but for that normalisation.

Features are (volumes, channels, x, y, z); a volume is one gradient direction of one scan.
"""

from __future__ import annotations

import math
from itertools import accumulate, islice
from operator import mul
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bids_gevnet.compiled.encoding import compiled_encode
from bids_gevnet.compiled.library import serves
from bids_gevnet.errors import InputError
from bids_gevnet.nn.inverse_sqrt import inverse_sqrt
from bids_gevnet.nn.kappa import QUADRATIC, Kappa
from bids_gevnet.nn.kmeans import spherical_kmeans
from bids_gevnet.nn.norm import MomentNorm, add_moments
from bids_gevnet.nn.staged import Staged
from bids_gevnet.nn.volume_convolution import convolve
from bids_gevnet.settings import DEFAULT_STRIDES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.utils.hooks import RemovableHandle

    from bids_gevnet.nn.staged import Stage

_TINY = 1e-12  # added to |x|^2: keeps the root differentiable on patches of the background
_EPS = 1e-2  # smallest square root of an eigenvalue of kappa(Z^T Z)


def gaussian_window(stride: int) -> Tensor:
    """Gaussian pooling weights along one axis, summing to 1: (2 stride + 1,) float64 tensor."""
    offsets = torch.arange(-stride, stride + 1, dtype=torch.float64)
    weights = torch.exp(-offsets.square() / stride**2)  # 2 sigma^2 = s^2
    return weights / weights.sum()


def pooling_matrix(n: int, stride: int) -> Tensor:
    """Gaussian pooling of an axis of n voxels: (ceil(n / stride), n) float64 tensor."""
    offsets = torch.arange(n) - stride * torch.arange(math.ceil(n / stride))[:, None]
    near = offsets.abs() <= stride
    return gaussian_window(stride)[offsets.clamp(-stride, stride) + stride] * near


def box_sum(x: Tensor, size: int) -> Tensor:
    """Sum over all patches of size^3 voxels, zeros outside: (..., x, y, z) to the same shape.

    Shifted additions axis by axis: 20 times faster on a CPU than a convolution with ones.
    """
    half = size // 2
    for dim in (-3, -2, -1):
        widths = [0, 0] * (-1 - dim) + [half, half]
        padded = F.pad(x, widths)
        n = x.shape[dim]
        x = padded.narrow(dim, 0, n)
        for shift in range(1, size):
            x = x + padded.narrow(dim, shift, n)
    return x


class CKNLayer(nn.Module):
    """out = L pool(|x| kappa(Z^T x / |x|)).

    Parameters
    ----------
    n_in, n_out : int
        Channels.
    kappa : Kappa
    size : int
        Side of a patch in voxels, odd.
    stride : int
        s of the pooling.
    eps : float
        Smallest square root of an eigenvalue of kappa(Z^T Z).
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kappa: Kappa,
        *,
        size: int = 3,
        stride: int = 1,
        eps: float = _EPS,
    ) -> None:
        super().__init__()
        if size % 2 == 0 or stride < 1:
            raise InputError(
                expected="an odd patch size and a stride of at least 1",
                found=f"size {size} and stride {stride}",
                remedy="choose for instance size 3 and stride 2",
            )
        self.kappa, self.size, self.stride, self.eps = kappa, size, stride, eps
        self.filters = nn.Parameter(torch.randn(n_out, n_in, size, size, size))
        self._matrices: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
        self.project_()

    @torch.no_grad()
    def project_(self) -> None:
        """Put every filter back on the unit sphere."""
        norms = self.filters.flatten(1).norm(dim=1).clamp_min(1e-12)
        self.filters.div_(norms.view(-1, 1, 1, 1, 1))

    def whitening(self) -> Tensor:
        """L = kappa(Z^T Z)^(-1/2): (n_out, n_out) tensor."""
        Z = self.filters.flatten(1).double()
        return inverse_sqrt(self.kappa(Z @ Z.T), self.eps).to(self.filters.dtype)

    def encode(self, x: Tensor) -> Tensor:
        """|x| kappa(Z^T x / |x|) at every voxel: (n, n_in, x, y, z) to (n, n_out, x, y, z)."""
        # Not in half precision: rounding of single voxels is larger than what people differ by
        # in the mean over a brain (benchmarks/results/precision.md).
        with torch.autocast(x.device.type, enabled=False):
            wide = x if x.dtype == torch.float64 else x.float()
            dots = convolve(wide, self.filters.to(wide.dtype))
            if self.kappa.is_linear:
                return dots
            squares = wide.square().sum(1, keepdim=True)
            norms = (box_sum(squares, self.size) + _TINY).sqrt()
            return norms * self.kappa(dots / norms)

    def pool(self, x: Tensor) -> Tensor:
        """Gaussian mean around every s-th voxel: (n, c, x, y, z) to (n, c, x/s, y/s, z/s)."""
        if self.stride == 1:
            return x
        # One matrix per axis: its backward pass is 6 times faster on a CPU than that of a
        # depthwise convolution with stride, which was a third of the time of training.
        along_x, along_y, along_z = (self._pooling(n, x) for n in x.shape[2:])
        n, channels, _, *rest = x.shape
        x = torch.matmul(along_x, x.flatten(3)).view(n, channels, -1, *rest)
        return along_y @ x @ along_z.T

    def _pooling(self, n: int, like: Tensor) -> Tensor:
        """Matrix of an axis of n voxels where `like` is, made and copied there once."""
        key = (n, like.dtype, like.device)
        if key not in self._matrices:
            with torch.inference_mode(False):  # may serve a backward pass later
                self._matrices[key] = pooling_matrix(n, self.stride).to(like)
        return self._matrices[key]

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer.

        Parameters
        ----------
        x : (volumes, n_in, x, y, z) tensor

        Returns
        -------
        y : (volumes, n_out, ceil(x/s), ceil(y/s), ceil(z/s)) tensor
        """
        pooled = self._fused(x) if self._has_kernel(x) else self._in_steps(x)
        # Whitening divides by small numbers: not for half precision.
        with torch.autocast(x.device.type, enabled=False):
            return torch.einsum("ij,njxyz->nixyz", self.whitening(), pooled)

    def _in_steps(self, x: Tensor) -> Tensor:
        """Encode, then pool."""
        encoded = self.encode(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.pool(encoded if encoded.dtype == torch.float64 else encoded.float())

    def _has_kernel(self, x: Tensor) -> bool:
        return self.kappa.kind == "polynomial" and serves(x, self.filters)

    def _fused(self, x: Tensor) -> Tensor:
        """Encode and pool plane by plane."""
        kappa = self.kappa
        pooled: Tensor = compiled_encode(
            x, self.filters, self.stride, kappa.is_linear, kappa.degree, kappa.offset
        )
        return pooled

    def sample_patches(
        self, x: Tensor, support: Tensor, n: int, generator: torch.Generator
    ) -> Tensor:
        """Draw patches centred on random voxels.

        Parameters
        ----------
        x : (n_in, x, y, z) tensor
            Input of the layer.
        support : (x, y, z) bool tensor
            Voxels a patch may be centred on.
        n : int
            How many, with replacement.
        generator
            Source of randomness.

        Returns
        -------
        patches : (n, n_in size^3) tensor
            In the order of the filters' entries; fewer than n where some are zero.
        """
        half = self.size // 2
        centres = support.nonzero()
        if len(centres) == 0:
            return x.new_empty(0, self.filters[0].numel())
        drawn = torch.randint(len(centres), (n,), generator=generator)
        centres = centres[drawn.to(centres.device)]
        reach = torch.arange(self.size, device=centres.device)
        i, j, k = (centres[:, axis, None] + reach for axis in range(3))  # each (n, size)
        padded = F.pad(x, [half] * 6)
        patches = padded[:, i[:, :, None, None], j[:, None, :, None], k[:, None, None, :]]
        patches = patches.transpose(0, 1).flatten(1)  # (n, n_in size^3)
        return patches[patches.norm(dim=1) > 1e-6]


class CKN(nn.Module):
    """Layers with batch normalisation between them; the last one has none.

    Parameters
    ----------
    channels : sequence of int
        Channels from input to output; the paper's 3,164 parameters are those of 1-4-4-8-8.
    strides : sequence of int
        Pooling of each layer. The paper does not give them; the default lets 1/64 of the voxels
        through.
    kappa : Kappa
        One kernel for all layers.
    size : int
        Side of a patch in voxels.
    eps : float
        Smallest square root of an eigenvalue of kappa(Z^T Z).

    Examples
    --------
    >>> CKN()(torch.rand(2, 1, 9, 9, 9)).shape
    torch.Size([2, 8, 3, 3, 3])
    """

    def __init__(
        self,
        channels: Sequence[int] = (1, 4, 4, 8, 8),
        strides: Sequence[int] = DEFAULT_STRIDES,
        kappa: Kappa = QUADRATIC,
        *,
        size: int = 3,
        eps: float = _EPS,
    ) -> None:
        super().__init__()
        if len(strides) != len(channels) - 1:
            raise InputError(
                expected=f"{len(channels) - 1} strides for channels {tuple(channels)}",
                found=f"{len(strides)}",
                remedy="give one stride for each layer",
            )
        self.channels, self.strides = tuple(channels), tuple(strides)
        pairs = zip(self.channels[:-1], self.channels[1:], self.strides, strict=True)
        self.layers = nn.ModuleList(
            CKNLayer(i, o, kappa, size=size, stride=s, eps=eps) for i, o, s in pairs
        )
        self.norms = nn.ModuleList(MomentNorm(c) for c in self.channels[1:-1])

    @property
    def stride(self) -> int:
        """Input voxels per output voxel along one axis."""
        return math.prod(self.strides)

    @property
    def levels(self) -> tuple[int, ...]:
        """Input voxels per voxel of each layer's output, along one axis."""
        return tuple(accumulate(self.strides, mul))

    @property
    def reach(self) -> int:
        """Input voxels on each side of an output voxel that it depends on.

        A patch reaches size // 2 voxels of the layer's input, the pooling s more, if s > 1.
        """
        sizes = [cast("CKNLayer", layer).size // 2 for layer in self.layers]
        pooled = [stride if stride > 1 else 0 for stride in self.strides]
        before = (1, *self.levels[:-1])
        return sum((a + b) * n for a, b, n in zip(sizes, pooled, before, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """Run the network on all volumes at once.

        Parameters
        ----------
        x : (volumes, channels[0], x, y, z) tensor

        Returns
        -------
        y : (volumes, channels[-1], ceil(x/stride), ceil(y/stride), ceil(z/stride)) tensor
        """
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = norm(layer(x))
        return cast("Tensor", self.layers[-1](x))

    def staged(self) -> Staged:
        """Cut the network at its normalisations; pieces of a batch are groups of volumes."""
        numbers = range(len(self.layers))
        norms = [self._norm(k) for k in numbers[:-1]]
        return Staged([self._stage(k) for k in numbers], norms, list(self.parameters()))

    def _norm(self, number: int) -> MomentNorm:
        return cast("MomentNorm", self.norms[number])

    def _stage(self, number: int) -> Stage:
        def stage(x: Tensor, affine: Tensor | None, /) -> Tensor:
            if affine is not None:
                x = self._norm(number - 1).normalise(x, affine)
            return cast("Tensor", self.layers[number](x))

        return stage

    @torch.no_grad()
    def initialise_(
        self,
        volumes: Iterable[Tensor],
        *,
        n_volumes: int = 16,
        n_patches: int = 20_000,
        seed: int = 0,
    ) -> None:
        """Set the filters of every layer by spherical k-means on patches of training volumes.

        Layer by layer, because the patches of one layer are made by those before it, normalised
        with the statistics of the volumes drawn. Patches are centred where the volume is not
        zero, so that the background does not take filters.

        Parameters
        ----------
        volumes : iterable of (x, y, z) or (channels, x, y, z) tensors
            One gradient direction each, in random order. No more than n_volumes are taken, one
            after the other: a generator that reads them from disk reads no more than these.
        n_volumes : int
        n_patches : int
            Patches per layer, in equal parts from all volumes.
        seed : int
            The same seed and volumes give the same filters.
        """
        generator = torch.Generator().manual_seed(seed)
        dtype = next(self.parameters()).dtype
        drawn = [v.detach().cpu().to(dtype) for v in islice(volumes, n_volumes)]
        features = [v.reshape(1, -1, *v.shape[-3:]) for v in drawn]
        supports = [(f[0] != 0).any(0) for f in features]
        for number, module in enumerate(self.layers):
            layer = cast("CKNLayer", module)
            if number > 0:
                features = self._advance(number - 1, features)
                s = self.strides[number - 1]
                supports = [support[::s, ::s, ::s] for support in supports]
            share = math.ceil(n_patches / max(len(features), 1))
            patches = [
                layer.sample_patches(f[0], support, share, generator)
                for f, support in zip(features, supports, strict=True)
            ]
            if sum(map(len, patches)) == 0:
                raise InputError(
                    expected="training volumes with patches that are not zero",
                    found=f"none in {len(features)} volumes, at layer {number + 1}",
                    remedy="check the brain masks and the intensities of the training scans",
                )
            centres = spherical_kmeans(torch.cat(patches), len(layer.filters), generator=generator)
            layer.filters.copy_(centres.view_as(layer.filters))

    def _advance(self, number: int, features: list[Tensor]) -> list[Tensor]:
        """Push the drawn volumes through one layer and its normalisation, one at a time."""
        device = next(self.parameters()).device
        features = [self.layers[number](f.to(device)).cpu() for f in features]
        # A norm of its own, so that the network's running statistics are left alone.
        norm = MomentNorm(self.channels[number + 1], synchronise=False)
        affine = norm.batch_affine(add_moments([norm.moments(f) for f in features]))
        return [norm.normalise(f, affine) for f in features]


def project_filters_(module: nn.Module) -> None:
    """Put the filters of all kernel layers inside a module back on the sphere."""
    for part in module.modules():
        if isinstance(part, CKNLayer):
            part.project_()


def keep_on_sphere(optimizer: torch.optim.Optimizer, module: nn.Module) -> RemovableHandle:
    """Let an optimiser put the filters back on the sphere after each of its steps.

    Parameters
    ----------
    optimizer
        Any torch optimiser of the module's parameters.
    module
        A CKN, or any network with one inside.

    Returns
    -------
    handle
        ``handle.remove()`` ends it.
    """
    return optimizer.register_step_post_hook(lambda *_: project_filters_(module))
