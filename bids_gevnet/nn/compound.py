"""The compound network: volumes through a kernel network, voxels through a spherical one.

Data flow for one scan (section 5.3 of the paper; D = 6 nside^2 distinct directions, 96 for the
paper's nside = 4, and P = 2 D points of the sphere):

    (k D, X, Y, Z)    k shells, one after the other; k = 1 in the paper
    (D, k, X, Y, Z)   each direction is one 3D volume through the CKN        inter-voxel
    (D, c, x, y, z)   keep brain voxels, swap axes
    (D, c, V)         opposite directions are the same volume: D -> P by an index
    (P, c, V)         each voxel is c scalar fields on the sphere            intra-voxel
    (V, f)            mean over the sphere, then over brain voxels
    (f,)              Linear - ReLU - Linear -> class scores

Files hold the pixel of each opposite pair with the smaller nested index, in increasing order
(`bids_gevnet.sphere.resampling`). A coarse voxel i sits on voxel stride * i of the scan and is a
brain voxel if that one is.

Several shells are channels of the same volumes, because their points on the sphere are the same:
they are decorrelated (`shell_whitening`), and filters of the CKN's first layer have k times the
entries, so that patches of all shells are compared together. 4 * 27 more parameters per shell:
3,164 for one, 3,272 for two. All else is as for one shell.

Memory. Volumes go through the CKN a few directions at a time and voxels through the spherical
network a few at a time, see `staged`: loss and gradients are those of the undivided network.
`Pieces` sets the sizes. By default the CKN's maps between two normalisations are held, 1.1 times
the size of the scan; with `keep_volumes=False` training holds the scan, the CKN's output (1/8 of
it) and one piece, and takes about twice the time (benchmarks/results/memory.md).

Ablations of Table 3: without a spherical network ("CKN2") features are averaged over directions
and brain voxels, so that it does not matter which direction a volume belongs to. Without a CKN
("GEVNet") every brain voxel's raw signal s is given to the sphere as 8 fixed bumps
exp(-(s - k/7)^2 / (2/49)), k = 0, ..., 7. Bumps act on each sample alone, hence commute with
rotations and know nothing of neighbouring voxels, and make the 8 input channels with which the
spherical network has its 12,424 parameters; on the one raw channel it would have 11,416. Two
shells have bumps of their own: 16 channels and 13,576 parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from bids_gevnet.errors import InputError, ParticipantError
from bids_gevnet.nn.block_features import block_features
from bids_gevnet.nn.blocks import BlockBatch
from bids_gevnet.nn.gevnet import GEVNet
from bids_gevnet.nn.gevnet_stages import gevnet_stages
from bids_gevnet.nn.shell_whitening import ShellWhitening
from bids_gevnet.nn.staged import Finish, Staged
from bids_gevnet.sphere.resampling import expand_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bids_gevnet.nn.blocks import RegionMeans
    from bids_gevnet.nn.ckn import CKN


class SphereNetwork(Protocol):
    """A spherical network that gives one feature vector per voxel; an `nn.Module`."""

    @property
    def n_features(self) -> int:
        """Length of the feature vector."""
        ...

    def staged(self) -> Staged:
        """Stages from pieces (points, channels, voxels) to (voxels, n_features)."""
        ...


@dataclass(frozen=True)
class Pieces:
    """How a batch is cut up. None of this changes a result; it trades memory for time.

    Parameters
    ----------
    volume_voxels : int
        Voxels, over all directions in a piece, that go through the CKN at a time.
    sphere_voxels : int
        Coarse brain voxels that go through the spherical network at a time.
    keep_volumes, keep_sphere : bool
        Whether to hold what lies between two normalisations, or to compute it again.
    whole : bool
        Whether not to cut at all and to hold everything: nothing is computed twice, which is
        twice as fast where a batch is small (coarse voxels) and out of the question elsewhere.

    Examples
    --------
    >>> Pieces(sphere_voxels=16).keep_volumes
    True
    """

    volume_voxels: int = 600_000
    sphere_voxels: int = 64
    keep_volumes: bool = True
    keep_sphere: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if min(self.volume_voxels, self.sphere_voxels) < 1:
            raise InputError(
                expected="pieces of at least one voxel",
                found=f"{self.volume_voxels} and {self.sphere_voxels}",
                remedy="give positive numbers",
            )


class Bumps(nn.Module):
    """Raw signal to smooth indicator functions of its size: (P, k, V) to (P, k n, V) tensor."""

    centres: Tensor

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 1, n), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate exp(-(x - c_k)^2 / (2 h^2)) with h the distance between centres."""
        steps = (x[:, :, None] - self.centres.to(x.dtype)[:, None]) * (len(self.centres) - 1)
        return torch.exp(-steps.square() / 2).flatten(1, 2)


class ScanNetwork(nn.Module):
    """Base of every network that classifies scans: what training needs to know of it.

    A subclass sets `head` and implements `features`; all else has a default. Its normalisations
    should be `bids_gevnet.nn.MomentNorm`, whose statistics are those of all processes together.

    Attributes
    ----------
    head : nn.Sequential
        From features to class scores. Its first layer is an ``nn.Linear``, which training starts
        so that its inputs have mean 0 and variance 1.
    pieces : Pieces
        How to cut up a batch; training sets it. A network may ignore it.
    shells : int
        Shells of the scans it takes.
    masks_on_host : bool
        Whether masks may stay on the host while scans are on a GPU.

    Examples
    --------
    >>> class MeanSignal(ScanNetwork):
    ...     def __init__(self, *, classes, nside, strides):
    ...         super().__init__()
    ...         self.head = nn.Sequential(nn.Linear(6 * nside**2, classes))
    ...     def features(self, scans, masks):
    ...         return torch.stack([s[:, m].mean(1) for s, m in zip(scans, masks)])
    >>> network = MeanSignal(classes=2, nside=1, strides=())
    >>> network(torch.rand(3, 6, 2, 2, 2), torch.ones(3, 2, 2, 2, dtype=torch.bool)).shape
    torch.Size([3, 2])
    """

    head: nn.Sequential
    pieces: Pieces = Pieces()
    shells: int = 1
    masks_on_host: bool = False

    @property
    def reach(self) -> int | None:
        """Voxels on each side of a feature voxel that it depends on; None: not known.

        Where it is known, the network can be trained on blocks (`bids_gevnet.nn.blocks`).
        Training gives whole scans to every other network.
        """
        return None

    @property
    def stride(self) -> int:
        """Voxels of the scan per voxel of the feature maps, along one axis."""
        return 1

    def features(self, scans: Tensor, masks: Tensor) -> Tensor:
        """Features of each scan, the input of `head`: (batch, n_features) tensor.

        Parameters
        ----------
        scans : (batch, shells * 6 nside^2, X, Y, Z) tensor
            Signal over b0 in the distinct directions, shell after shell; any floating type.
        masks : (batch, X, Y, Z) bool tensor
            Brain voxels.
        """
        raise NotImplementedError

    def initialise_(self, volumes: Iterable[Tensor], **options: int) -> None:
        """Start from training volumes, (X, Y, Z) or (shells, X, Y, Z), before the first step."""

    def forward(self, scans: Tensor, masks: Tensor) -> Tensor:
        """Score the classes.

        Parameters
        ----------
        scans, masks : tensors
            As for `features`.

        Returns
        -------
        scores : (batch, classes) tensor
        """
        return cast("Tensor", self.head(self.features(scans, masks)))


class CompoundNetwork(ScanNetwork):
    """CKN across voxels, spherical network within voxels, mean over the brain, classifier.

    Parameters
    ----------
    ckn : CKN or None
        None gives the raw signal of every voxel to the sphere.
    sphere : SphereNetwork, GEVNet or None
        None averages the CKN's features over directions.
    classes : int
        2 or more.
    nside : int
        HEALPix resolution of the scans.
    shells : int
        Shells of the scans: the channels that the CKN takes, or 1/8 of those of the sphere.
    hidden : int
        Width of the fully connected block.
    pieces : Pieces
        Can be set anew at any time; `block_pieces` is for training on blocks.

    Examples
    --------
    >>> from bids_gevnet.nn import CKN, GEVNet
    >>> from bids_gevnet.sphere import healpix
    >>> network = CompoundNetwork(CKN(), GEVNet(healpix(1), "8-8-12", samples=7), nside=1)
    >>> scans, masks = torch.rand(2, 6, 8, 8, 8), torch.ones(2, 8, 8, 8, dtype=torch.bool)
    >>> network(scans, masks).shape
    torch.Size([2, 2])
    """

    expand: Tensor
    masks_on_host = True

    def __init__(
        self,
        ckn: CKN | None,
        sphere: SphereNetwork | GEVNet | None,
        classes: int = 2,
        *,
        nside: int = 4,
        shells: int = 1,
        hidden: int = 50,
        pieces: Pieces | None = None,
    ) -> None:
        super().__init__()
        if classes < 1 or (ckn is None and sphere is None):
            raise InputError(
                expected="at least 1 output and a CKN or a spherical network",
                found=f"{classes} outputs, {'no' if ckn is None else 'a'} CKN and "
                f"{'no' if sphere is None else 'a'} spherical network",
                remedy="build the network by name with bids_gevnet.nn.build",
            )
        self.ckn = ckn
        # A module at run time; the protocol says what the compound network needs of it.
        self.sphere: Any = sphere
        self.bumps = Bumps() if ckn is None else None
        self.whitening = ShellWhitening(shells) if ckn is not None and shells > 1 else None
        self.pieces = pieces or Pieces()
        self.block_pieces = self.pieces
        self.regions: RegionMeans | None = None  # set where training takes blocks
        self.nside, self.shells = nside, shells
        n_features = sphere.n_features if sphere is not None else cast("CKN", ckn).channels[-1]
        self.head = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )
        index = torch.from_numpy(expand_index(nside)).long()
        self.register_buffer("expand", index, persistent=False)

    @property
    def stride(self) -> int:
        """Voxels of the scan per voxel of the feature maps, along one axis."""
        return 1 if self.ckn is None else self.ckn.stride

    @property
    def reach(self) -> int:
        """Voxels on each side of a feature voxel that it depends on."""
        return 0 if self.ckn is None else self.ckn.reach

    @property
    def n_features(self) -> int:
        """Features of a voxel, or of a scan."""
        return cast("nn.Linear", self.head[0]).in_features

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.head.parameters()).dtype

    def part_counts(self) -> dict[str, int]:
        """Trainable numbers in each part: "ckn", "sphere" and "head"."""
        parts: dict[str, Any] = {"ckn": self.ckn, "sphere": self.sphere, "head": self.head}
        return {
            name: 0 if part is None else sum(p.numel() for p in part.parameters())
            for name, part in parts.items()
        }

    def initialise_(
        self, volumes: Iterable[Tensor], *, n_volumes: int = 16, **options: int
    ) -> None:
        """Start what stands before the sphere from training volumes; see `CKN`."""
        if self.ckn is None:
            return
        drawn = list(islice(volumes, n_volumes))
        if self.whitening is not None:
            self.whitening.fit_(drawn)
            like = self.whitening.mean
            drawn = [self.whitening(volume.to(like)[None])[0] for volume in drawn]
        self.ckn.initialise_(drawn, n_volumes=n_volumes, **options)

    def forward(self, scans: Tensor | BlockBatch, masks: Tensor | None = None) -> Tensor:
        """Score the classes.

        Parameters
        ----------
        scans, masks : tensors
            As for `features`; or blocks of scans alone, in training.

        Returns
        -------
        scores : (batch, classes) tensor
        """
        if isinstance(scans, BlockBatch):
            return cast("Tensor", self.head(block_features(self, scans)))
        if masks is None:
            raise TypeError("scans need masks")
        return cast("Tensor", self.head(self.features(scans, masks)))

    def features(self, scans: Tensor, masks: Tensor) -> Tensor:
        """Mean feature vector of each scan, the classifier's input: (batch, n_features) tensor."""
        self._check(scans, masks)
        return self.features_at(scans, self.brain_indices(scans, masks))

    def features_by_voxel(self, scans: Tensor, masks: Tensor) -> list[Tensor]:
        """Features of each scan's coarse brain voxels: batch times (V_b, n_features)."""
        self._check(scans, masks)
        return self._at_voxels(scans, self.brain_indices(scans, masks))

    def brain_indices(self, scans: Tensor, masks: Tensor) -> list[Tensor]:
        """Where the brain of each scan is in its feature maps, on the device of the scans.

        Masks that stay on the host keep it from waiting for the device: how many voxels a mask
        holds decides the shape of all that follows.
        """
        return [
            brain_index(mask, self.stride).to(scans.device, non_blocking=True)
            for mask in masks.unbind(0)
        ]

    def features_at(self, scans: Tensor, index: list[Tensor]) -> Tensor:
        """Do what `features` does, for indices of brain voxels that are known already.

        Nothing in here depends on the content of a tensor, so that a compiler sees it whole.

        Parameters
        ----------
        scans : (batch, shells * 6 nside^2, X, Y, Z) tensor
        index : list of (V_b,) int64 tensors
            Of `brain_indices`.
        """
        return torch.stack([v.mean(0) for v in self._at_voxels(scans, index)])

    def _at_voxels(self, scans: Tensor, index: list[Tensor]) -> list[Tensor]:
        # (batch, directions, shells, X, Y, Z), then batch times (directions, channels, V_b)
        per_scan = self._volumes(self.shells_as_channels(scans), index)
        return self.to_features(per_scan, self.pieces)

    def to_features(self, per_scan: list[Tensor], pieces: Pieces) -> list[Tensor]:
        """Run the spherical network: batch times (directions, channels, V_b) to (V_b, f)."""
        if self.sphere is None:
            return [f.mean(0).T for f in per_scan]
        sizes = [f.shape[2] for f in per_scan]
        # (directions, channels, V); not copied when there is one scan
        signals = torch.cat(per_scan, dim=2) if len(per_scan) > 1 else per_scan[0]
        del per_scan
        net = self.sphere
        staged = gevnet_stages(net) if isinstance(net, GEVNet) else net.staged()
        staged = _prepend(self._to_sphere, staged)
        if pieces.whole:
            outputs = staged.run_whole(signals)
        else:
            outputs = staged.run(
                signals,
                lambda x: torch.split(x, pieces.sphere_voxels, dim=2),
                keep=pieces.keep_sphere,
            )
        return list(torch.split(outputs.view(-1, net.n_features), sizes))

    def shells_as_channels(self, scans: Tensor) -> Tensor:
        """(batch, shells * directions, ...) to (batch, directions, shells, ...), not copied."""
        if self.shells == 1:
            return scans.unsqueeze(2)
        return torch.unflatten(scans, 1, (self.shells, -1)).transpose(1, 2)

    def _volumes(self, scans: Tensor, index: list[Tensor]) -> list[Tensor]:
        """Features of the brain voxels of each scan: batch times (directions, channels, V_b)."""
        if self.ckn is None:
            return [
                scan.flatten(2).index_select(2, i)
                for scan, i in zip(scans.unbind(0), index, strict=True)
            ]
        per_piece = max(1, self.pieces.volume_voxels // math.prod(scans.shape[2:]))

        def cut(x: Tensor) -> list[Tensor]:
            return [piece for scan in x.unbind(0) for piece in torch.split(scan, per_piece)]

        n_directions, n_channels = scans.shape[1], self.ckn.channels[-1]
        pieces_per_scan = math.ceil(n_directions / per_piece)

        def take_brain(piece: int, maps: Tensor) -> Tensor:
            return maps.flatten(2).index_select(2, index[piece // pieces_per_scan])

        sizes = [n_directions * n_channels * len(i) for i in index]
        staged = self.volume_stages(self.ckn)
        if self.pieces.whole:
            maps = staged.run_whole(scans.flatten(0, 1)).view(*scans.shape[:2], n_channels, -1)
            return [each.index_select(2, i) for each, i in zip(maps, index, strict=True)]
        outputs = staged.run(
            scans, cut, keep=self.pieces.keep_volumes, finish=Finish(take_brain, sum(sizes))
        )
        # Pieces are directions of one scan after the other: together they are whole scans.
        return [each.view(n_directions, n_channels, -1) for each in torch.split(outputs, sizes)]

    def volume_stages(self, ckn: CKN) -> Staged:
        """Stages of the kernel network, from scans of any type."""
        return _prepend(self._to_volumes, ckn.staged())

    def _to_volumes(self, x: Tensor) -> Tensor:
        """(directions, shells, X, Y, Z) of any type to the network's type, decorrelated."""
        x = x.to(self._dtype)
        return x if self.whitening is None else cast("Tensor", self.whitening(x))

    def _to_sphere(self, x: Tensor) -> Tensor:
        """(directions, channels, voxels) to (points, channels, voxels)."""
        x = x.index_select(0, self.expand)
        if self.bumps is None:
            return x
        return cast("Tensor", self.bumps(x.to(self._dtype)))

    def _check(self, scans: Tensor, masks: Tensor) -> None:
        n_volumes = self.shells * len(self.expand) // 2
        if scans.ndim != 5 or scans.shape[1] != n_volumes:
            raise InputError(
                expected=f"scans of shape (batch, {n_volumes}, X, Y, Z)",
                found=str(tuple(scans.shape)),
                remedy=f"resample {self.shells} shell(s) to the distinct points of HEALPix nside "
                f"{self.nside}",
            )
        if masks.dtype != torch.bool or masks.shape != (len(scans), *scans.shape[2:]):
            raise InputError(
                expected=f"boolean masks of shape {(len(scans), *scans.shape[2:])}",
                found=f"{masks.dtype} of shape {tuple(masks.shape)}",
                remedy="give one brain mask per scan, on the scan's own voxels",
            )


def brain_index(mask: Tensor, stride: int) -> Tensor:
    """Flat indices of the coarse voxels that sit on a brain voxel.

    Parameters
    ----------
    mask : (X, Y, Z) bool tensor
    stride : int

    Returns
    -------
    index : (V,) int64 tensor
        Into the flattened (ceil(X/stride), ceil(Y/stride), ceil(Z/stride)) map.
    """
    index = mask[::stride, ::stride, ::stride].flatten().nonzero()[:, 0]
    if len(index) == 0:
        raise ParticipantError(
            expected=f"a brain mask that holds one of every {stride}th voxel along each axis",
            found=f"{int(mask.sum())} brain voxels among {mask.numel()}, none of them there",
            remedy="check the brain mask, or use a finer output resolution",
        )
    return index


def _prepend(function: Callable[[Tensor], Tensor], staged: Staged) -> Staged:
    """Put a function without normalisation in front of the first stage."""
    first = staged.stages[0]

    def stage(x: Tensor, affine: Tensor | None, /) -> Tensor:
        return first(function(x), affine)

    return Staged([stage, *staged.stages[1:]], staged.norms, staged.parameters)
