r"""Real spherical harmonics of even degree, and projectors on one degree.

With :math:`Y_{lm}` real and orthonormal, :math:`\int Y_{lm} Y_{l'm'} = \delta\delta`, a signal
with :math:`f(-x) = f(x)` has even degrees only:

.. math:: f(x) = \sum_{l = 0, 2, \dots} \sum_{m = -l}^{l} c_{lm} Y_{lm}(x).

In the code: the matrix :math:`B_{p,(l,m)} = Y_{lm}(x_p)` is ``basis``, its columns ordered by l,
then by m from -l to l; coefficients of samples x are :math:`c = B^+ x` (least squares); the
projector on degree l is :math:`P_l = B_l (B^+)_l`, a square matrix on the samples, so that
:math:`P_l P_k = \delta_{lk} P_l`.

Conventions: DIPY's ``real_sh_descoteaux`` with ``legacy=False`` (m < 0 cosine, m > 0 sine,
Condon-Shortley phase left out), colatitude from +z, longitude from +x. Energies per degree and
projectors are the same in any real orthonormal basis. The paper has no equation for these; they
serve RISH harmonisation, its reference [RathiPaper].
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.errors import InputError
from bids_gevnet.sphere.resampling import distinct_directions

if TYPE_CHECKING:
    from numpy.typing import NDArray

LMAX = 8
"""Degrees fitted to HEALPix samples: two above the highest that is used (6), so that energy of
degree 8 does not alias into it; at nside 4 the fit stays well conditioned up to 10."""


def even_degrees(lmax: int) -> NDArray[np.intp]:
    """Return the degree l of each column of the basis.

    Returns
    -------
    degrees : ((lmax + 1)(lmax + 2) / 2,) array of int
    """
    if lmax < 0 or lmax % 2:
        raise InputError(
            expected="an even, non-negative highest degree",
            found=f"lmax = {lmax}",
            remedy="give 0, 2, 4, 6 or 8: an antipodally symmetric signal has no odd degrees",
        )
    degrees = np.arange(0, lmax + 1, 2)
    return np.repeat(degrees, 2 * degrees + 1)


def real_harmonics(directions: NDArray[np.floating[Any]], lmax: int) -> NDArray[np.float64]:
    """Return all real harmonics of even degree up to ``lmax`` at some directions.

    Parameters
    ----------
    directions : (n, 3) array
        Unit vectors.
    lmax : int
        Highest degree, even.

    Returns
    -------
    basis : (n, (lmax + 1)(lmax + 2) / 2) array

    Examples
    --------
    >>> real_harmonics(np.eye(3), 4).shape
    (3, 15)
    """
    from dipy.reconst.shm import real_sh_descoteaux

    even_degrees(lmax)  # refuses odd or negative degrees
    x, y, z = np.asarray(directions, dtype=np.float64).T
    colatitude = np.arctan2(np.hypot(x, y), z)
    longitude = np.arctan2(y, x)
    basis, _, _ = real_sh_descoteaux(lmax, colatitude, longitude, legacy=False)
    return np.asarray(basis, dtype=np.float64)


@lru_cache(maxsize=16)
def _fit_operator(nside: int, lmax: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    basis = real_harmonics(distinct_directions(nside), lmax)
    if basis.shape[1] > basis.shape[0]:
        raise InputError(
            expected=f"at most {basis.shape[0]} harmonics at nside {nside}",
            found=f"{basis.shape[1]} of degree up to {lmax}",
            remedy="lower lmax or raise nside",
        )
    return basis, np.asarray(np.linalg.pinv(basis), dtype=np.float64)


def analysis_matrix(nside: int, lmax: int = LMAX) -> NDArray[np.float64]:
    """Return the matrix from the distinct HEALPix samples to harmonic coefficients.

    Returns
    -------
    matrix : ((lmax + 1)(lmax + 2) / 2, 6 nside^2) array

    Examples
    --------
    >>> coefficients = analysis_matrix(4, 4) @ np.ones(96)  # a constant has degree 0 only
    >>> bool(np.allclose(coefficients, np.sqrt(4 * np.pi) * np.eye(15)[0]))
    True
    """
    return _fit_operator(nside, lmax)[1].copy()


def synthesis_matrix(nside: int, lmax: int = LMAX) -> NDArray[np.float64]:
    """Return the matrix from harmonic coefficients to the distinct HEALPix samples.

    Returns
    -------
    matrix : (6 nside^2, (lmax + 1)(lmax + 2) / 2) array

    Examples
    --------
    >>> bool(np.allclose(analysis_matrix(4, 4) @ synthesis_matrix(4, 4), np.eye(15)))
    True
    """
    return _fit_operator(nside, lmax)[0].copy()


def degree_projectors(
    nside: int, degrees: tuple[int, ...] = (0, 2, 4, 6), *, lmax: int = LMAX
) -> NDArray[np.float64]:
    """Return the projector on each degree, acting on the distinct HEALPix samples.

    Parameters
    ----------
    nside : int
    degrees : tuple of int
        Even degrees, none above ``lmax``.
    lmax : int
        Highest degree in the fit.

    Returns
    -------
    projectors : (n_degrees, 6 nside^2, 6 nside^2) array
        ``projectors[i] @ x`` is the part of the samples x of degree ``degrees[i]``. What is left
        after subtracting all of them is of other degrees (noise, mostly).
    """
    _check_degrees(degrees, lmax)
    basis, inverse = _fit_operator(nside, lmax)
    column_degree = even_degrees(lmax)
    return np.stack(
        [
            basis[:, column_degree == degree] @ inverse[column_degree == degree]
            for degree in degrees
        ]
    )


def spectrum(coefficients: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the energy of each even degree, the sum over m of the squared coefficients.

    Parameters
    ----------
    coefficients : (..., (lmax + 1)(lmax + 2) / 2) array

    Returns
    -------
    energy : (..., lmax / 2 + 1) array
    """
    count = coefficients.shape[-1]
    lmax = round((np.sqrt(8 * count + 1) - 3) / 2)
    starts = np.flatnonzero(np.diff(even_degrees(lmax), prepend=-1))
    if len(even_degrees(lmax)) != count:
        raise InputError(
            expected="1, 6, 15, 28, 45, ... coefficients of even degrees",
            found=f"{count}",
            remedy="use the coefficients that analysis_matrix gives",
        )
    return np.add.reduceat(np.square(coefficients, dtype=np.float64), starts, axis=-1)


def _check_degrees(degrees: tuple[int, ...], lmax: int) -> None:
    wrong = [degree for degree in degrees if degree % 2 or not 0 <= degree <= lmax]
    if wrong:
        raise InputError(
            expected=f"even degrees from 0 to {lmax}",
            found=", ".join(map(str, wrong)),
            remedy="leave these degrees out or raise lmax",
        )
