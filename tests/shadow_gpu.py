"""A GPU in name only: tensors are the CPU's, with their numbers, and say that they are elsewhere.

For code whose path depends on numbers, which `bids_gevnet.fake_gpu` does not have. Calls of
PyTorch from Python are seen, and nothing below them: tensors made with ``device=SHADOW``, or from
those, are marked; a call that takes marked and unmarked ones is an error, as is handing a marked
one to NumPy. The backward pass is not looked at.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bids_gevnet.fake_gpu import MixedDevicesError, fake_gpu

with fake_gpu() as _gpu:
    SHADOW = _gpu.device
_MARK = "_in_the_shadow"
_COPIES = {"copy_", "__setitem__"}


class ShadowGpu(TorchFunctionMode):
    """Inside, `SHADOW` is a device; `calls` counts what it was asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        given = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        marked = [tensor for tensor in given if hasattr(tensor, _MARK)]
        if func == Tensor.device.__get__:
            return SHADOW if marked else func(*args)
        if name in {"numpy", "__array__"} and marked:
            raise MixedDevicesError(f"{name} of a tensor on the device")
        if name == "cpu":
            return args[0].clone() if marked else func(*args)
        places = _places([*args, *options.values()])
        if name in {"to", "as_tensor", "tensor"} or "device" in options:
            there = places[-1] == SHADOW if places else bool(marked)
            args, options = _on_cpu(list(args)), _on_cpu(options)
            return self._result(func(*args, **options), marked=there)
        host = [tensor for tensor in given if not hasattr(tensor, _MARK) and tensor.ndim]
        if marked and host and name not in _COPIES:
            raise MixedDevicesError(f"{name}: {[tuple(t.shape) for t in given]}")
        return self._result(func(*args, **options), marked=bool(marked))

    def _result(self, result: Any, *, marked: bool) -> Any:
        self.calls += marked

        def mark(tensor: Tensor) -> Tensor:
            if marked == hasattr(tensor, _MARK):
                return tensor
            other = tensor.detach() if not tensor.requires_grad else tensor.view_as(tensor)
            if marked:
                setattr(other, _MARK, True)
            return other

        with torch._C.DisableTorchFunction():
            return tree_map_only(Tensor, mark, result)


def _places(values: list[Any]) -> list[torch.device]:
    """Devices among arguments, or of the tensor that says where to go."""
    found = [torch.device(v) for v in values if isinstance(v, torch.device)]
    found += [torch.device(v) for v in values if isinstance(v, str) and v == str(SHADOW)]
    if not found and len(values) == 2 and all(isinstance(v, Tensor) for v in values):
        found = [SHADOW if hasattr(values[1], _MARK) else torch.device("cpu")]  # x.to(other)
    return found


def _on_cpu(values: Any) -> Any:
    """Replace the device that there is not by the one that there is."""

    def replace(value: Any) -> Any:
        is_shadow = isinstance(value, torch.device | str) and str(value) == str(SHADOW)
        return torch.device("cpu") if is_shadow else value

    if isinstance(values, dict):
        return {key: replace(value) for key, value in values.items()}
    return [replace(value) for value in values]
