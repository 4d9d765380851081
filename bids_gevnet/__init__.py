"""Gauge equivariant learning from diffusion MRI: a BIDS-App, and a library.

As a library, in the order in which a scan goes through it; each is imported when first used:

- `phantom`: scans with known truth, to try everything on;
- `dwi`: a diffusion series as arrays: correction, masks, registration, samples on the sphere;
- `sphere`: grids, frames, transport, harmonics, resampling;
- `harmonisation`: one scale for the scans of several scanners;
- `nn`: gauge equivariant layers and every network by name;
- `learn`: trained models and their predictions, evaluation of a study;
- `testing`: equivariance as assertions, for layers of your own;
- `errors`: what is raised where something cannot be done, as a sentence.

As a BIDS-App: `cli` reads the command line, `bids` the dataset; `workflows` connects the
`interfaces`; `report` writes what a person looks at. `settings` has every default.

>>> import bids_gevnet
>>> bids_gevnet.sphere.healpix(4).n_points
192
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet import dwi as dwi
    from bids_gevnet import errors as errors
    from bids_gevnet import harmonisation as harmonisation
    from bids_gevnet import learn as learn
    from bids_gevnet import nn as nn
    from bids_gevnet import phantom as phantom
    from bids_gevnet import sphere as sphere
    from bids_gevnet import testing as testing
    from bids_gevnet.versions import __version__ as __version__

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {"versions": ["__version__"]},
        submodules=[
            "dwi",
            "errors",
            "harmonisation",
            "learn",
            "nn",
            "phantom",
            "sphere",
            "testing",
        ],
    )
