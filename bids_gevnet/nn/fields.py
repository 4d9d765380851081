r"""Field types rho0 + rho1 + ... + rho_l with multiplicities, and how a change of gauge acts.

A field of type rho_n has one complex number z per point and channel (rho0: one real number).
A gauge change by the angle t at a point, e1' = cos(t) e1 + sin(t) e2, maps

    z  ->  exp(-i n t) z        (the paper's  a' = rho(t^-1) a).

Layout. A feature map is one tensor `(points, dim, batch)`; along dim stand the channels of
rho0, then for each n > 0 the real parts of all channels of rho_n, then the imaginary parts:

    [ s_1 ... s_c0 | Re z_1 ... Re z_c1 | Im z_1 ... Im z_c1 | Re (rho2) ... ]

Points first and batch last is what makes the layers fast on a CPU: gathering neighbours copies
whole rows, every product runs along the contiguous batch, and every mixing of channels is a
plain matrix product per point, without one transposition in the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bids_gevnet.errors import InputError


@dataclass(frozen=True)
class FieldType:
    """Direct sum of irreducible field types.

    Parameters
    ----------
    multiplicities : tuple of int
        Number of channels of rho0, rho1, ... The paper's c^(rho0 + rho1) is (c, c).

    Examples
    --------
    >>> FieldType.regular(4, 1)  # 4 scalars and 4 vectors: 12 numbers at each point
    FieldType(multiplicities=(4, 4))
    >>> FieldType.regular(4, 1).dim
    12
    """

    multiplicities: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.multiplicities or min(self.multiplicities) < 0 or self.dim == 0:
            raise InputError(
                expected="a multiplicity of 0 or more for each frequency, at least one above 0",
                found=str(self.multiplicities),
                remedy="FieldType.regular(channels) makes the paper's rho0 + rho1",
            )

    @classmethod
    def scalars(cls, channels: int) -> FieldType:
        """Type rho0 alone."""
        return cls((channels,))

    @classmethod
    def regular(cls, channels: int, bandlimit: int = 1) -> FieldType:
        """Type rho0 + ... + rho_l, each as often as there are channels."""
        return cls((channels,) * (bandlimit + 1))

    @property
    def dim(self) -> int:
        """Real numbers per point."""
        return sum(c if n == 0 else 2 * c for n, c in enumerate(self.multiplicities))

    @property
    def bandlimit(self) -> int:
        """Highest frequency l."""
        return len(self.multiplicities) - 1

    @property
    def frequencies(self) -> tuple[int, ...]:
        """Frequencies that have at least one channel."""
        return tuple(n for n, c in enumerate(self.multiplicities) if c)

    def components(self, n: int) -> int:
        """Real numbers of one channel of rho_n: 1 for n = 0, else 2."""
        return 1 if n == 0 else 2

    def span(self, n: int) -> slice:
        """Where rho_n lies along dim."""
        start = sum(self.components(k) * self.multiplicities[k] for k in range(n))
        return slice(start, start + self.components(n) * self.multiplicities[n])

    def part(self, x: Tensor, n: int) -> Tensor:
        """View of rho_n.

        Parameters
        ----------
        x : (points, dim, batch) tensor
        n : int

        Returns
        -------
        (points, 1 or 2, channels, batch) tensor
            Real and imaginary parts along the second axis.
        """
        shape = (x.shape[0], self.components(n), self.multiplicities[n], x.shape[2])
        return x[:, self.span(n)].reshape(shape)

    def check(self, x: Tensor, n_points: int | None = None) -> None:
        """Raise InputError unless x is a (points, dim, batch) tensor of this type."""
        if not isinstance(x, torch.Tensor):
            raise InputError(
                expected="a tensor",
                found=f"a {type(x).__name__}",
                remedy="give torch.as_tensor(x, dtype=torch.float32)",
            )
        wrong_points = n_points is not None and x.ndim == 3 and x.shape[0] != n_points
        if x.ndim != 3 or x.shape[1] != self.dim or wrong_points:
            points = "points" if n_points is None else str(n_points)
            raise InputError(
                expected=f"a tensor of shape ({points}, {self.dim}, batch) for {self}",
                found=str(tuple(x.shape)),
                remedy="put points first and batch last; see bids_gevnet.nn.fields",
            )

    def gauge_transform(self, x: Tensor, angles: Tensor) -> Tensor:
        """Coefficients of the same fields in frames turned by `angles`: rho(t^-1) x.

        Parameters
        ----------
        x : (points, dim, batch) tensor
        angles : (points,) tensor
            Radians; the angles given to `Grid.rotate_frames`.

        Returns
        -------
        (points, dim, batch) tensor
        """
        self.check(x)
        parts = [x[:, self.span(0)]]
        for n in range(1, len(self.multiplicities)):
            re, im = self.part(x, n).unbind(1)
            c = torch.cos(n * angles)[:, None, None].to(x)
            s = torch.sin(n * angles)[:, None, None].to(x)
            parts += [c * re + s * im, c * im - s * re]  # exp(-i n t) z
        return torch.cat(parts, dim=1)

    def __str__(self) -> str:
        terms = [f"{c} rho{n}" for n, c in enumerate(self.multiplicities) if c]
        return " + ".join(terms)
