"""Precomputed geometry as buffers that are exact in every precision and never saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from bids_gevnet.sphere.frames import FloatArray


class GeometryModule(nn.Module):
    """Module with precomputed matrices that follow its device and dtype.

    The float64 originals are kept beside the buffers: `double()` on a buffer of float32 would
    keep its rounding, and gauge equivariance would then hold to 1e-7 instead of 1e-15. Nothing
    of it goes into the state dict.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact: dict[str, Tensor] = {}

    def register_exact(self, name: str, values: FloatArray) -> None:
        """Register float64 values as a buffer in the default dtype."""
        self._exact[name] = torch.from_numpy(values)
        buffer = self._exact[name].to(torch.get_default_dtype())
        self.register_buffer(name, buffer, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: FBT001, FBT002
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, exact in self._exact.items():
            moved = self.get_buffer(name)
            self.register_buffer(
                name, exact.to(device=moved.device, dtype=moved.dtype), persistent=False
            )
        return self
