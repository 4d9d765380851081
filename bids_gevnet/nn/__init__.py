"""Gauge equivariant layers, and the networks made of them.

Ten lines train a network to tell sticks from discs, whichever way they point:

>>> import torch
>>> from bids_gevnet import nn, sphere
>>> grid, generator = sphere.healpix(2), torch.Generator().manual_seed(0)
>>> axes = torch.nn.functional.normalize(torch.randn(96, 3, generator=generator), dim=1)
>>> cosine = axes @ torch.tensor(grid.points, dtype=torch.float32).T
>>> labels = torch.arange(96) % 2
>>> signal = ((2 * labels[:, None] - 1) * (cosine**2 - 1 / 3))[:, None]  # (96, 1, 48)
>>> network = nn.GEVNet(grid, "1-4-4", samples=7, classes=2)
>>> adam = torch.optim.Adam(network.parameters(), lr=0.01)
>>> for _ in range(60):  # on the first 64; the others point elsewhere
...     adam.zero_grad()
...     torch.nn.functional.cross_entropy(network(signal[:64]), labels[:64]).backward()
...     adam.step()
>>> accuracy = (network.eval()(signal[64:]).argmax(1) == labels[64:]).float().mean()
>>> bool(accuracy > 0.9)
True

Read in this order:

1. `fields`: scalars and vectors at every point, and how they change with the frame;
2. `steerable_kernels`: the kernels that commute with a change of frame, first and second order;
3. `gauge_convolution`: GEConv, Eq. (1), and GEVConv, Definition 3.3 and Eq. (3), computed by
   `fused_volterra` from the `response_matrices` of a grid (`all_products` for more products);
   `bids_gevnet.compiled` has the same in C++ for the CPU;
4. `nonlinearity`, `norm`, `pool`: what stands between two convolutions (`geometry` keeps the
   constants of a grid out of model files);
5. `gevnet`: networks on a sphere, written as the paper writes them; `deepsphere` is what
   the paper compares them with;
6. `ckn`: the kernel network across voxels, with `kappa`, `kmeans`, `inverse_sqrt` and
   `volume_convolution`;
7. `compound`: both together classify a scan, piece by piece (`staged`, `gevnet_stages`), several
   shells decorrelated (`shell_whitening`), and learn from a part of it (`blocks`,
   `block_features`);
8. `registry`: every network by name, those of other packages too; `zoo` lists the paper's,
   `builders` builds them;
9. `attribution`: which voxels and directions a prediction rests on.
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.nn.attribution import Saliency as Saliency
    from bids_gevnet.nn.attribution import saliency as saliency
    from bids_gevnet.nn.attribution import sphere_saliency as sphere_saliency
    from bids_gevnet.nn.ckn import CKN as CKN
    from bids_gevnet.nn.compound import CompoundNetwork as CompoundNetwork
    from bids_gevnet.nn.compound import Pieces as Pieces
    from bids_gevnet.nn.compound import ScanNetwork as ScanNetwork
    from bids_gevnet.nn.deepsphere import DeepSphere as DeepSphere
    from bids_gevnet.nn.fields import FieldType as FieldType
    from bids_gevnet.nn.gauge_convolution import GEConv as GEConv
    from bids_gevnet.nn.gauge_convolution import GEVConv as GEVConv
    from bids_gevnet.nn.gevnet import GEVNet as GEVNet
    from bids_gevnet.nn.gevnet import count_parameters as count_parameters
    from bids_gevnet.nn.kappa import Kappa as Kappa
    from bids_gevnet.nn.nonlinearity import RegularNonlinearity as RegularNonlinearity
    from bids_gevnet.nn.nonlinearity import RegularNorm as RegularNorm
    from bids_gevnet.nn.norm import MomentNorm as MomentNorm
    from bids_gevnet.nn.pool import SphereMean as SphereMean
    from bids_gevnet.nn.pool import TransportPool as TransportPool
    from bids_gevnet.nn.registry import Network as Network
    from bids_gevnet.nn.registry import build as build
    from bids_gevnet.nn.registry import find_network as find_network
    from bids_gevnet.nn.registry import networks as networks
    from bids_gevnet.nn.registry import scan_networks as scan_networks
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "fields": ["FieldType"],
            "gauge_convolution": ["GEConv", "GEVConv"],
            "nonlinearity": ["RegularNonlinearity", "RegularNorm"],
            "norm": ["MomentNorm"],
            "pool": ["SphereMean", "TransportPool"],
            "gevnet": ["GEVNet", "count_parameters"],
            "deepsphere": ["DeepSphere"],
            "ckn": ["CKN"],
            "kappa": ["Kappa"],
            "compound": ["CompoundNetwork", "Pieces", "ScanNetwork"],
            "registry": ["Network", "build", "find_network", "networks", "scan_networks"],
            "attribution": ["Saliency", "saliency", "sphere_saliency"],
        },
    )
