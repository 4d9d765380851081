r"""The diffusion tensor, by DIPY, for checks and quality numbers.

.. math:: S_k = S_0 \exp(-b_k g_k^T D g_k)

fitted by (weighted) least squares of the logarithm. D is needed here only for its main direction
(``direction``), its anisotropy (``fa``) and the misfit; nothing downstream is computed from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bids_gevnet.settings import B0_THRESHOLD

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TensorFit:
    """Tensors of some voxels.

    Attributes
    ----------
    fa : (v,) array
        Fractional anisotropy.
    md : (v,) array
        Mean diffusivity, mm²/s.
    direction : (v, 3) array
        Main direction, in the axes of the gradient table.
    residual : (v,) array
        Root mean square misfit of the diffusion-weighted signal, as a fraction of the fitted b0.
    """

    fa: NDArray[np.float64]
    md: NDArray[np.float64]
    direction: NDArray[np.float64]
    residual: NDArray[np.float64]


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
        direction=np.asarray(fit.directions[:, 0], dtype=np.float64),
        residual=np.sqrt(np.mean(np.square(misfit), axis=1)) if misfit.size else np.zeros(len(s0)),
    )
