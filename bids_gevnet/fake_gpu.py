"""A GPU that computes nothing: what would run on one, counted on a machine that has none.

Inside `fake_gpu` tensors have a shape, a type and a device and no content (PyTorch's
`FakeTensorMode`). Everything above the kernels is real: our code, autograd, the optimiser. So an
operation that mixes the host's tensors with the device's is found here, and the operators that
would be launched, the bytes they would move and their arithmetic are counted.

    >>> import torch
    >>> with fake_gpu() as gpu:
    ...     layer = gpu.take(torch.nn.Linear(3, 2))
    ...     layer(torch.empty(5, 3, device=gpu.device)).sum().backward()
    >>> gpu.counts.operators > 0, gpu.counts.waits
    (True, 0)

The device is called ``fakegpu`` and not ``cuda``: a PyTorch without CUDA builds graphs of fake
CUDA tensors and cannot run their backward pass. It says nothing about numbers, time or the
memory of a real GPU. Operators of this package are opened, so that what they do is seen.

What depends on content has none: as many voxels are inside a mask as `inside` says, and numbers
that the host waits for are 1.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = "fakegpu"
_OURS = "bids_gevnet"
_ATEN = torch.ops.aten
# They give memory or another view of it, and launch nothing.
_FREE = ("empty", "new_empty", "detach", "alias", "_unsafe_view", "lift_fresh", "_reshape_alias")
_COPIES = ("_to_copy", "copy_", "_copy_from")


class MixedDevicesError(RuntimeError):
    """An operation was given tensors of the host and of the device."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One operator that a GPU would run.

    Parameters
    ----------
    name : str
    moved : int
        Bytes read and written, if nothing is found in a cache.
    flops : int
        Of matrix products and convolutions; all else is bound by memory.
    itemsize : int
        Bytes of a number of the result.
    """

    name: str
    moved: int
    flops: int
    itemsize: int


@dataclass
class Counts:
    """What was asked of the device.

    Attributes
    ----------
    launches : list of Launch
    calls : int
        Operators that PyTorch was asked for, views and memory among them: the host's work.
    to_device, to_host : int
        Bytes copied between the host and the device.
    waits : int
        How often the host waited for a number of the device.
    live, peak : int
        Bytes of all tensors on the device now, and at most.
    """

    launches: list[Launch] = field(default_factory=list)
    calls: int = 0
    to_device: int = 0
    to_host: int = 0
    waits: int = 0
    live: int = 0
    peak: int = 0

    @property
    def operators(self) -> int:
        """How many operators were launched."""
        return len(self.launches)

    @property
    def moved(self) -> int:
        """Bytes that they read and write."""
        return sum(launch.moved for launch in self.launches)

    @property
    def flops(self) -> int:
        """Arithmetic of matrix products and convolutions."""
        return sum(launch.flops for launch in self.launches)

    def seconds(self, *, bandwidth: float, flops: Callable[[int], float], launch: float) -> float:
        """Least time on a device: each operator is bound by memory, arithmetic or its launch.

        Parameters
        ----------
        bandwidth : float
            Bytes a second.
        flops : callable
            From the bytes of a number to operations a second.
        launch : float
            Seconds that the host needs to start an operator.
        """
        return sum(
            max(one.moved / bandwidth, one.flops / flops(one.itemsize), launch)
            for one in self.launches
        )


class FakeGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is launched and refuses to mix devices; made by `fake_gpu`.

    Parameters
    ----------
    inside : float
        Share of the voxels that a mask is taken to hold.
    """

    def __init__(self, inside: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = torch.device(_NAME, 0)
        self.counts = Counts()
        self._inside = inside
        self._storages: dict[int, weakref.ref[Any]] = {}

    def take(self, module: nn.Module) -> nn.Module:
        """Put parameters and buffers of a module on the device, without content, in place."""
        for part in module.modules():
            for name, value in part._parameters.items():  # noqa: SLF001
                if value is not None:
                    moved = self._empty_like(value)
                    part._parameters[name] = nn.Parameter(moved, value.requires_grad)  # noqa: SLF001
            for name, buffer in part._buffers.items():  # noqa: SLF001
                if buffer is not None:
                    part._buffers[name] = self._empty_like(buffer)  # noqa: SLF001
        return module

    def _empty_like(self, value: Tensor) -> Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=self.device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at an operator before it runs."""
        result = self._run(func, args, kwargs or {})
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == _NAME:
                self._hold(leaf)
        return result

    def _hold(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until it is given back."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001
        if key in self._storages:
            return

        def give_back(_: Any) -> None:
            del self._storages[key]
            self.counts.live -= size

        self._storages[key] = weakref.ref(storage, give_back)
        self.counts.live += size
        self.counts.peak = max(self.counts.peak, self.counts.live)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace == _OURS:
            # Below autograd already: what the operator does inside is counted one by one.
            with self:
                return OPDEFS[func.name()]._init_fn(*args, **kwargs)  # noqa: SLF001
        name = func.overloadpacket.__name__
        self.counts.calls += func.namespace != "prim"
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in given if tensor.device.type == _NAME]
        if name in _COPIES:
            return self._copy(func, given, args, kwargs)
        if on_device:
            self._refuse_host(func, given)
        content = self._content(func, name, args)
        if content is not None:
            self.counts.waits += bool(on_device)
            return content
        if name == "index" and any(_is_mask(i) for i in args[1]):
            self.counts.waits += bool(on_device)
            args = (args[0], self._spread(args[1]), *args[2:])
        result = func(*args, **kwargs)
        if on_device or _device_of(result) == _NAME:
            self._count(func, name, (given, args, kwargs), result)
        return result

    def _copy(self, func: Any, given: list[Tensor], args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        source = given[1] if func.overloadpacket.__name__ == "copy_" else given[0]
        there, before = _device_of(result) == _NAME, source.device.type == _NAME
        if there and before:
            self._count(func, func.overloadpacket.__name__, (given, args, kwargs), result)
        elif there and source.ndim:
            self.counts.to_device += _bytes(source)
        elif before:
            self.counts.to_host += _bytes(source)
            self.counts.waits += 1
        return result

    @staticmethod
    def _refuse_host(func: Any, given: list[Tensor]) -> None:
        for tensor in given:
            # A number on the host is passed along with the launch, as for CUDA.
            if tensor.device.type != _NAME and tensor.ndim > 0:
                shapes = ", ".join(f"{t.device.type} {tuple(t.shape)}" for t in given)
                raise MixedDevicesError(f"{func}: {shapes}")

    def _content(self, func: Any, name: str, args: Any) -> Any:
        """Results of operators that need to know the content of a tensor, or None."""
        if func is _ATEN._local_scalar_dense.default:  # noqa: SLF001
            kind = args[0].dtype
            return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1
        if name == "nonzero":
            return args[0].new_empty((self._held(args[0]), args[0].ndim), dtype=torch.int64)
        if name == "bincount":
            return args[0].new_empty(args[2] if len(args) > 2 else 1, dtype=torch.int64)
        return None

    def _held(self, mask: Tensor) -> int:
        return max(1, round(self._inside * mask.numel()))

    def _spread(self, indices: Any) -> list[Any]:
        """Replace masks among the indices of an indexing by the places they hold."""
        spread: list[Any] = []
        for index in indices:
            if _is_mask(index):
                spread += [
                    index.new_empty(self._held(index), dtype=torch.int64)
                    for _ in range(index.ndim)
                ]
            else:
                spread.append(index)
        return spread

    def _count(self, func: Any, name: str, inputs: Any, result: Any) -> None:
        given, args, kwargs = inputs
        aliases = [output.alias_info for output in func._schema.returns]  # noqa: SLF001
        is_view = bool(aliases) and all(a is not None and not a.is_write for a in aliases)
        if is_view or name.startswith(_FREE) or func.namespace == "prim":
            return
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        rule = flop_registry.get(func.overloadpacket)
        flops = int(rule(*args, **kwargs, out_val=result)) if rule else 0
        # Memory that is handed over for the result is written and not read.
        outs = {argument.name for argument in func._schema.arguments if argument.is_out}  # noqa: SLF001
        handed = tree_leaves([value for key, value in kwargs.items() if key in outs])
        read = [tensor for tensor in given if not any(tensor is other for other in handed)]
        moved = sum(_bytes(tensor) for tensor in [*read, *made])
        itemsize = made[0].element_size() if made else 4
        self.counts.launches.append(Launch(name, moved, flops, itemsize))


class _FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Never asks for a context on the device: there is none."""

    avoid_device_init = True


@contextmanager
def fake_gpu(*, inside: float = 1 / 3) -> Iterator[FakeGpu]:
    """Open a block in which `device` is a GPU without content, and count what it is asked to do.

    Parameters
    ----------
    inside : float
        Share of the voxels that a mask is taken to hold.
    """
    _register()
    gpu = FakeGpu(inside)
    # In one thread: PyTorch starts those of devices at its first backward pass, which may have
    # been before this device was known.
    with (
        torch.autograd.set_multithreading_enabled(False),
        _FakeMode(allow_non_fake_inputs=True),
        gpu,
    ):
        yield gpu


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def _register() -> None:
    """Tell PyTorch that there is another kind of device; it stays known in this process."""
    _setup_privateuseone_for_python_backend(_NAME, backend_module=_Backend())


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in {torch.bool, torch.uint8}


def _device_of(result: Any) -> str:
    kinds = [leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    return kinds[0] if kinds else ""


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor in memory: what is expanded lies there once."""
    size = tensor.element_size()
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= n if stride else 1
    return size
