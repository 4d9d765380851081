"""The shared library of compiled kernels: found, loaded and called.

The kernels do on the CPU, in float32, what PyTorch code of `nn` and `dwi` does everywhere: the
same numbers up to rounding, several times faster, because what lies between two steps stays in
registers and the first caches. Whatever is not float32 on a CPU, and every machine without the
library, takes the PyTorch code.

BIDS_GEVNET_KERNELS chooses: an instruction set ("baseline", "v3", "v4"), or "none" for PyTorch.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from bids_gevnet.compiled.build import LIBRARY, digest
from bids_gevnet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

NONE = "none"
_CHOICE = "BIDS_GEVNET_KERNELS"
# What the processor must have for each instruction set, best first, as PyTorch names it.
_LEVELS = (("v4", {"AVX512"}), ("v3", {"AVX512", "AVX2"}))
_chosen: list[str] = []  # by `use`, the last one counts


@cache
def _load() -> ctypes.CDLL | None:
    if not LIBRARY.is_file():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        stamp = (ctypes.c_char * len(digest())).in_dll(library, "kernels_digest")
    except (OSError, ValueError):  # made for another processor or C library
        return None
    return library if stamp.value.decode() == digest() else None  # or made from other sources


@cache
def _best() -> str:
    """Best instruction set of this processor, or NONE where there is no library."""
    if _load() is None:
        return NONE
    has = torch.backends.cpu.get_cpu_capability()
    return next((level for level, needs in _LEVELS if has in needs), "baseline")


@cache
def _from_environment(value: str) -> str:
    best, order = _best(), ("baseline", "v3", "v4")
    if value in {"", best, NONE}:
        return NONE if value == NONE else best
    if best == NONE or value not in order or order.index(value) > order.index(best):
        raise InputError(
            expected=f"{_CHOICE} to be none or an instruction set of this machine, up to {best}",
            found=repr(value),
            remedy=f"unset {_CHOICE}: the best one is found by itself",
        )
    return value


def _level() -> str:
    return _chosen[-1] if _chosen else _from_environment(os.environ.get(_CHOICE, ""))


_assume_constant: Any = torch.compiler.assume_constant_result  # has no types
_level_when_traced: Callable[[], str] = _assume_constant(_level)


def level() -> str:
    """Instruction set of the kernels that run: "v4", "v3", "baseline", or "none" (PyTorch).

    torch.compile asks once, when it traces.
    """
    return _level_when_traced()


@contextmanager
def use(wanted: str) -> Iterator[None]:
    """Run with the kernels of an instruction set, or with "none" for the PyTorch code."""
    _chosen.append(_from_environment(wanted))
    try:
        yield
    finally:
        _chosen.pop()


def describe() -> str:
    """Which code computes on the CPU, in a few words for logs and reports."""
    now = level()
    return "PyTorch (no compiled kernels)" if now == NONE else f"compiled kernels ({now})"


def serves(*tensors: Tensor) -> bool:
    """Whether the compiled kernels take these tensors: float32 on a CPU."""
    return level() != NONE and all(
        t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors
    )


def call(name: str, *arguments: object) -> None:
    """Call a kernel of the library: pointers and numbers, made by the functions below."""
    library = _load()
    if library is None:  # pragma: no cover, `serves` says so first
        raise InputError(
            expected="the library of compiled kernels",
            found=f"none at {LIBRARY}",
            remedy="python -m bids_gevnet.compiled.build",
        )
    if getattr(library, f"{name}_{level()}")(*arguments) != 0:
        raise MemoryError(f"not enough memory for the kernel {name}")


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Address of a contiguous tensor, or null."""
    if tensor is not None and not tensor.is_contiguous():
        raise ValueError("a kernel takes contiguous tensors only")
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of several contiguous tensors."""
    return (ctypes.c_void_p * len(tensors))(*(pointer(t).value for t in tensors))


def integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Array of 64-bit integers."""
    return (ctypes.c_int64 * len(values))(*values)


def number(value: int) -> ctypes.c_int64:
    """64-bit integer."""
    return ctypes.c_int64(value)


def threads() -> ctypes.c_int:
    """As many threads as PyTorch would take."""
    return ctypes.c_int(torch.get_num_threads())
