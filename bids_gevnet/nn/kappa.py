"""Dot-product kernels kappa(t) on the unit sphere: K(x, x') = |x| |x'| kappa(cosine of x and x').

LINEAR is that of CKN1 and QUADRATIC that of CKN2 in the paper's Table 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Kappa:
    """Dot-product kernel on the unit sphere.

    Parameters
    ----------
    kind
        "polynomial": (offset + t)^degree; "exponential": exp(alpha (t - 1)).
    degree : int
        m, at least 1.
    offset : float
        c, not negative: a negative one would not give a kernel.
    alpha : float
        Inverse squared width of the exponential, positive.

    Examples
    --------
    >>> import torch
    >>> Kappa(degree=2)(torch.tensor([0.5, 1.0])).tolist()
    [0.25, 1.0]
    """

    kind: Literal["polynomial", "exponential"] = "polynomial"
    degree: int = 1
    offset: float = 0.0
    alpha: float = 4.0

    def __post_init__(self) -> None:
        if self.degree < 1 or self.offset < 0 or self.alpha <= 0:
            raise InputError(
                expected="a kernel with degree >= 1, offset >= 0 and alpha > 0",
                found=f"degree {self.degree}, offset {self.offset}, alpha {self.alpha}",
                remedy="choose other kernel parameters",
            )

    @property
    def is_linear(self) -> bool:
        """Whether kappa(t) = t, for which |x| cancels."""
        return self.kind == "polynomial" and self.degree == 1 and self.offset == 0

    def __call__(self, t: Tensor) -> Tensor:
        """Evaluate kappa at the cosines t: (...) to (...)."""
        if self.kind == "exponential":
            return torch.exp(self.alpha * (t - 1))
        shifted = t + self.offset if self.offset else t
        return shifted if self.degree == 1 else shifted.pow(self.degree)


LINEAR = Kappa(degree=1)
QUADRATIC = Kappa(degree=2)
