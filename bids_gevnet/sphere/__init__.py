"""Spherical grids: points, frames, transport, quadrature, harmonics, resampling.

>>> from bids_gevnet import sphere
>>> grid = sphere.icosphere(3)
>>> grid.n_points, grid.frames.shape
(642, (642, 2, 3))

Read in this order:

1. `frames`: tangent frames and parallel transport in closed form;
2. `grid`: what every grid knows; `healpix_grid` and `icosphere_grid` make those of the sphere,
   `mesh` any closed triangle mesh;
3. `quadrature`: integrals over rings around every point, which convolutions are made of;
4. `harmonics`: real spherical harmonics of even degree on the distinct HEALPix points;
5. `resampling`: from gradient directions to these points.
"""

from typing import TYPE_CHECKING

from bids_gevnet.lazy import export

if TYPE_CHECKING:
    from bids_gevnet.sphere.frames import geodesic_distance as geodesic_distance
    from bids_gevnet.sphere.frames import transport as transport
    from bids_gevnet.sphere.grid import Grid as Grid
    from bids_gevnet.sphere.grid import SphereGrid as SphereGrid
    from bids_gevnet.sphere.harmonics import analysis_matrix as analysis_matrix
    from bids_gevnet.sphere.harmonics import real_harmonics as real_harmonics
    from bids_gevnet.sphere.harmonics import synthesis_matrix as synthesis_matrix
    from bids_gevnet.sphere.healpix_grid import healpix as healpix
    from bids_gevnet.sphere.icosphere_grid import icosphere as icosphere
    from bids_gevnet.sphere.mesh import TriangleMesh as TriangleMesh
    from bids_gevnet.sphere.quadrature import ring_stencil as ring_stencil
    from bids_gevnet.sphere.resampling import distinct_directions as distinct_directions
    from bids_gevnet.sphere.resampling import expand as expand
    from bids_gevnet.sphere.resampling import resample as resample
    from bids_gevnet.sphere.resampling import resampling_matrix as resampling_matrix
else:
    __getattr__, __dir__, __all__ = export(
        __name__,
        {
            "frames": ["geodesic_distance", "transport"],
            "grid": ["Grid", "SphereGrid"],
            "healpix_grid": ["healpix"],
            "icosphere_grid": ["icosphere"],
            "mesh": ["TriangleMesh"],
            "quadrature": ["ring_stencil"],
            "harmonics": ["analysis_matrix", "real_harmonics", "synthesis_matrix"],
            "resampling": ["distinct_directions", "expand", "resample", "resampling_matrix"],
        },
    )
