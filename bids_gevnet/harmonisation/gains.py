r"""Gains per site, degree and voxel, and how they act on spherical samples.

.. math:: x' = x + \sum_l (g_l(v) - 1) \, P_l x, \qquad P_l = B_l A_l

on the distinct HEALPix samples x of voxel v: degree l is multiplied by g_l, what is of other
degrees stays. B_l and A_l, the columns and rows of the synthesis and analysis matrices of degree
l, are 28 numbers wide together where P_l is 96 wide: the same map at a third of the arithmetic.

Files are NumPy archives without pickled objects; what does not fit the format is refused before
memory is taken for it.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.harmonisation.features import fit_limits
from bids_gevnet.harmonisation.reference import reference_from_arrays
from bids_gevnet.harmonisation.rish import DEGREES
from bids_gevnet.sphere.harmonics import analysis_matrix, even_degrees, synthesis_matrix

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bids_gevnet.harmonisation.reference import Reference

_CHUNK = 16384
_MAX_BYTES = 4 * 1024**3
_FORMAT = "bids_gevnet RISH gains 1"


@dataclass(frozen=True)
class RishGains:
    """A fitted harmonisation.

    Parameters
    ----------
    gains : (n_sites, X, Y, Z, n_shells * n_degrees) array of float32
        All degrees of the first shell, then of the next.
    sites : tuple of str
    degrees : tuple of int
    nside : int
    reference : str or None
        Site that the others are brought to; None for the mean over sites.
    fwhm_mm : float
        Smoothness of the maps.
    association : float
        Cramér's V of site and diagnosis in the training data.
    columns : tuple of str
        What else the model accounted for.
    warnings : tuple of str
    b_values : tuple of float
        Of the shells, in the order of the samples; empty for one shell of any b-value.
    training : Reference or None
        What harmonised training scans look like, for sites that come later; None in files of
        earlier versions.

    Examples
    --------
    >>> gains = RishGains(np.ones((1, 2, 2, 2, 4), np.float32), ("A",))
    >>> gains.shape, gains.corrects("A")
    ((2, 2, 2), False)
    """

    gains: NDArray[np.float32]
    sites: tuple[str, ...]
    degrees: tuple[int, ...] = DEGREES
    nside: int = 4
    reference: str | None = None
    fwhm_mm: float = 0.0
    association: float = 0.0
    columns: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    b_values: tuple[float, ...] = ()
    training: Reference | None = None

    def __post_init__(self) -> None:
        wrong = (
            self.gains.ndim != 5
            or self.gains.shape[0] != len(self.sites)
            or self.gains.shape[-1] != self.shells * len(self.degrees)
            or not np.isfinite(self.gains).all()
            or (self.gains <= 0).any()
        )
        if wrong:
            raise InputError(
                expected=f"positive gains for {len(self.sites)} sites and {len(self.degrees)} "
                f"degrees of {self.shells} shell(s) on a voxel grid",
                found=f"an array of shape {self.gains.shape}",
                remedy="fit the harmonisation again",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Voxels of the grid along each axis."""
        return self.gains.shape[1:4]

    @property
    def shells(self) -> int:
        """How many shells are harmonised, each with gains of its own."""
        return max(1, len(self.b_values))

    def knows(self, site: str) -> bool:
        """Whether the site was among those fitted."""
        return site in self.sites

    def corrects(self, site: str) -> bool:
        """Whether the site's signal is changed at all."""
        return site in self.sites and bool((self.gains[self.sites.index(site)] != 1).any())

    def apply(
        self,
        samples: NDArray[np.floating[Any]],
        site: str,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float32]:
        """Harmonise a scan; one from an unknown site comes back as it is.

        Parameters
        ----------
        samples : (X, Y, Z, points) array, or (n_voxels, points) array with ``mask``
            S/b0 at the 6 nside^2 distinct HEALPix points, shell after shell.
        site : str
        mask : (X, Y, Z) bool array, optional
            Which voxels the samples are, in the order of ``mask.nonzero()``.

        Returns
        -------
        harmonised : array of float32
            In the shape of ``samples``.
        """
        grid = samples.shape[:-1] if mask is None else mask.shape
        if tuple(grid) != tuple(self.shape):
            raise InputError(
                expected=f"a scan on the grid of the harmonisation, {self.shape} voxels",
                found=f"{tuple(grid)} voxels",
                remedy="process the scan with the output resolution the model was trained with",
            )
        result = samples.astype(np.float32)
        if not self.corrects(site):
            return result
        gains = self.gains[self.sites.index(site)]
        gains = (gains if mask is None else gains[mask]).reshape(-1, len(self.degrees))
        analysis, synthesis, membership = self.operators()
        flat = result.reshape(-1, len(analysis))  # (voxels * shells, points)
        for start in range(0, len(flat), _CHUNK):
            piece = slice(start, start + _CHUNK)
            coefficients = flat[piece] @ analysis  # (voxels, coefficients)
            coefficients *= (gains[piece] - 1) @ membership
            flat[piece] += coefficients @ synthesis
        return result

    def operators(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Analysis (points, n), synthesis (n, points) and which column is of which degree."""
        lmax, _ = fit_limits(self.nside)
        column_degree = even_degrees(lmax)
        wanted = np.isin(column_degree, self.degrees)
        membership = np.equal.outer(np.asarray(self.degrees), column_degree[wanted])
        return (
            np.ascontiguousarray(analysis_matrix(self.nside, lmax)[wanted].T, dtype=np.float32),
            np.ascontiguousarray(synthesis_matrix(self.nside, lmax)[:, wanted].T, np.float32),
            membership.astype(np.float32),
        )

    def save(self, target: Path | IO[bytes]) -> None:
        """Write everything to one .npz file."""
        facts = {
            "format": _FORMAT,
            "sites": self.sites,
            "degrees": self.degrees,
            "nside": self.nside,
            "reference": self.reference,
            "fwhm_mm": self.fwhm_mm,
            "association": self.association,
            "columns": self.columns,
            "warnings": self.warnings,
            "b_values": self.b_values,
        }
        arrays = {"gains": self.gains}
        if self.training is not None:
            facts["training"], kept = self.training.to_arrays()
            arrays |= kept
        text = json.dumps(facts, sort_keys=True).encode()
        everything: dict[str, Any] = {"facts": np.frombuffer(text, np.uint8)} | arrays
        np.savez_compressed(target, **everything)


def load_gains(path: Path) -> RishGains:
    """Read gains; a file that is anything else is refused, and nothing in it is run."""
    try:
        return _read(path)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        InputError,
    ) as error:
        raise InputError(
            expected=f"gains written by bids_gevnet in {path}",
            found=f"something else ({error})",
            remedy="use the harmonisation.npz of a model folder as it was written",
        ) from None


def _read(path: Path) -> RishGains:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > _MAX_BYTES:
        raise ValueError(f"{size} bytes when unpacked")
    with np.load(path, allow_pickle=False) as content:
        facts = json.loads(bytes(np.asarray(content["facts"], np.uint8)))
        if not isinstance(facts, dict) or facts.pop("format", None) != _FORMAT:
            raise ValueError("another format")
        for name in ("sites", "degrees", "columns", "warnings", "b_values"):
            facts[name] = tuple(facts.get(name, ()) if name == "b_values" else facts[name])
        training = facts.pop("training", None)
        if training is not None:
            training = reference_from_arrays(training, content)
        gains = content["gains"].astype(np.float32)
        return RishGains(gains=gains, training=training, **_typed(facts))


def _typed(facts: dict[str, Any]) -> dict[str, Any]:
    """Refuse facts of the wrong type: they reach file names and reports."""
    kinds = {
        "sites": str,
        "columns": str,
        "warnings": str,
        "degrees": int,
        "b_values": float,
    }
    for name, kind in kinds.items():
        if not all(isinstance(item, kind) for item in facts[name]):
            raise ValueError(f"{name} of the wrong type")
    if not isinstance(facts["nside"], int) or facts["nside"] not in {1, 2, 4, 8, 16, 32}:
        raise ValueError("nside of the wrong type")
    if not (facts["reference"] is None or isinstance(facts["reference"], str)):
        raise ValueError("reference of the wrong type")
    return facts
