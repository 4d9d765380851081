r"""The diffusion tensor, by DIPY: maps that people look at, checks and quality numbers.

.. math:: S_k = S_0 \exp(-b_k g_k^T D g_k)

fitted by (weighted) least squares of the logarithm. With :math:`\lambda_1 \ge \lambda_2 \ge
\lambda_3` the eigenvalues of D, ``ad`` is :math:`\lambda_1`, ``rd`` the mean of the other two and
``md`` that of all three. Nothing that is learned from is computed from D.

The signal falls off exponentially with b only while b is low: maps take one shell up to
``HIGHEST_B`` where there is one (`choose_tensor_shell`). Outside the mask they are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.dwi.shells import MIN_DIRECTIONS, choose_shell, find_shells
from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bids_gevnet.dwi.shells import Shell, Shells

HIGHEST_B = 1500.0
"""In s/mm²; above it the decay is no longer exponential and diffusivities come out too low."""

SCALARS = ("fa", "md", "ad", "rd")
"""Maps of one value a voxel: fractional anisotropy, mean, axial and radial diffusivity."""

_WHITE_MATTER_FA = (0.4, 0.95)
"""Between these: less is mixed with other tissue, more is noise or a fit gone wrong."""

_VOXELS_AT_ONCE = 20_000
"""In double precision with all volumes: tens of megabytes, not gigabytes."""


@dataclass(frozen=True)
class TensorFit:
    """Tensors of some voxels.

    Attributes
    ----------
    fa : (v,) array
        Fractional anisotropy.
    md, ad, rd : (v,) array
        Mean, axial and radial diffusivity, mm²/s.
    direction : (v, 3) array
        Main direction, in the axes of the gradient table.
    residual : (v,) array
        Root mean square misfit of the diffusion-weighted signal, as a fraction of the fitted b0.
    """

    fa: NDArray[np.float64]
    md: NDArray[np.float64]
    ad: NDArray[np.float64]
    rd: NDArray[np.float64]
    direction: NDArray[np.float64]
    residual: NDArray[np.float64]

    @property
    def white_matter(self) -> NDArray[np.bool_]:
        """Where anisotropy is that of white matter: (v,) array."""
        low, high = _WHITE_MATTER_FA
        inside: NDArray[np.bool_] = (self.fa > low) & (self.fa < high)
        return inside


def fit_tensor(
    signal: NDArray[np.floating[Any]],
    bvals: NDArray[np.floating[Any]],
    bvecs: NDArray[np.floating[Any]],
    *,
    b0_threshold: float = B0_THRESHOLD,
    weighted: bool = True,
) -> TensorFit:
    """Fit a tensor to every voxel.

    Parameters
    ----------
    signal : (v, n) array
        All volumes, b0s included.
    bvals : (n,) array
        s/mm².
    bvecs : (n, 3) array
        Unit vectors in any axes; zero for b0 volumes.
    b0_threshold : float
    weighted : bool
        Weight by the signal, as the noise of a logarithm asks for; ordinary least squares takes
        a tenth of the time and is good enough for main directions.

    Returns
    -------
    fit : TensorFit

    Examples
    --------
    >>> bvals = np.array([0.0, *[1000.0] * 6])
    >>> bvecs = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1],
    ...                   [0.6, 0.8, 0], [0.6, 0, 0.8], [0, 0.6, 0.8]])
    >>> diffusivity = np.diag([1.7e-3, 0.3e-3, 0.3e-3])  # a fibre along x
    >>> signal = np.exp(-bvals * np.einsum("ni,ij,nj->n", bvecs, diffusivity, bvecs))
    >>> fit = fit_tensor(signal[None], bvals, bvecs)
    >>> np.abs(fit.direction[0]).round(2)
    array([1., 0., 0.])
    """
    from dipy.core.gradients import gradient_table
    from dipy.reconst.dti import TensorModel

    b0 = bvals <= b0_threshold
    table = gradient_table(
        np.where(b0, 0.0, bvals), bvecs=np.where(b0[:, None], 0.0, bvecs), b0_threshold=0
    )
    data = np.maximum(np.asarray(signal, dtype=np.float64), 0)
    positive = data[data > 0]
    # The logarithm needs a floor; far below the noise it does not matter where.
    floor = 1e-4 * float(np.median(positive)) if positive.size else 1.0
    model = TensorModel(
        table, fit_method="WLS" if weighted else "LS", min_signal=floor, return_S0_hat=True
    )
    fit = model.fit(data)
    s0 = np.maximum(np.asarray(fit.S0_hat, dtype=np.float64), floor)
    tensors = np.asarray(fit.quadratic_form, dtype=np.float64)
    exponent = np.einsum("ni,vij,nj,n->vn", table.bvecs, tensors, table.bvecs, table.bvals)
    misfit = (data - s0[:, None] * np.exp(-exponent))[:, ~b0] / s0[:, None]
    return TensorFit(
        fa=np.asarray(fit.fa, dtype=np.float64),
        md=np.asarray(fit.md, dtype=np.float64),
        ad=np.asarray(fit.ad, dtype=np.float64),
        rd=np.asarray(fit.rd, dtype=np.float64),
        direction=np.asarray(fit.directions[:, 0], dtype=np.float64),
        residual=np.sqrt(np.mean(np.square(misfit), axis=1)) if misfit.size else np.zeros(len(s0)),
    )


def choose_tensor_shell(shells: Shells) -> Shell:
    """Choose the shell that tensors are fitted to: up to `HIGHEST_B` where there is one.

    >>> from bids_gevnet.dwi.shells import find_shells
    >>> choose_tensor_shell(find_shells([0, *[700] * 6, *[2500] * 60])).b_value
    700.0
    """
    low = tuple(
        shell
        for shell in shells.shells
        if shell.b_value <= HIGHEST_B and shell.n_volumes >= MIN_DIRECTIONS
    )
    return choose_shell(replace(shells, shells=low) if low else shells)


def tensor_maps(
    data: NDArray[Any],
    mask: NDArray[np.bool_],
    bvals: NDArray[np.float64],
    bvecs: NDArray[np.float64],
    *,
    b0_threshold: float = B0_THRESHOLD,
) -> dict[str, NDArray[np.float32]]:
    """Map the tensor inside a mask by weighted least squares; a few voxels at a time.

    Parameters
    ----------
    data : (X, Y, Z, n) array
        All volumes; the b0s and the shell of `choose_tensor_shell` are used.
    mask : (X, Y, Z) array of bool
    bvals : (n,) array
        s/mm².
    bvecs : (n, 3) array
        Unit vectors in the axes that colours are to stand for: world RAS.
    b0_threshold : float

    Returns
    -------
    maps : dict of str to array of float32
        The maps of `SCALARS`, (X, Y, Z), and "dec", (X, Y, Z, 3): red, green and blue from 0 to
        1, the components of the main direction times FA, without their sign. All are 0 outside
        the mask.
    """
    shells = find_shells(bvals, b0_threshold=b0_threshold)
    used = np.sort(np.concatenate([shells.b0, choose_tensor_shell(shells).volumes]))
    voxels = np.argwhere(mask)
    maps = {name: np.zeros(mask.shape, np.float32) for name in SCALARS}
    maps["dec"] = np.zeros((*mask.shape, 3), np.float32)
    for start in range(0, len(voxels), _VOXELS_AT_ONCE):
        where = tuple(voxels[start : start + _VOXELS_AT_ONCE].T)
        signal = np.nan_to_num(np.asarray(data[where], dtype=np.float64)[:, used])
        fit = fit_tensor(signal, bvals[used], bvecs[used], b0_threshold=b0_threshold)
        for name in SCALARS:
            maps[name][where] = np.nan_to_num(getattr(fit, name))
        colour = np.abs(fit.direction) * fit.fa[:, None]
        maps["dec"][where] = np.nan_to_num(colour)
    return maps
