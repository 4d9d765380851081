"""State of a training run between two steps: one safetensors file, replaced as a whole.

Tensors are the network's (``model.<name>``) and Adam's (``adam.<parameter>.<moment>``); the rest,
as JSON, stands in the file's metadata: position, learning curve so far, the digest of the job, so
that a checkpoint of another job is never taken for this one's, and a hash of the content, so that
a damaged one is never resumed from. No pickle is involved.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bids_gevnet.bids.writing import replacing

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

log = logging.getLogger("bids_gevnet.learn")


@dataclass
class Position:
    """Where a training run is.

    Parameters
    ----------
    epoch, step : int
        The next step to do, within its epoch.
    loss_sum, correct, seen : float
        Sums over the epoch's steps so far; `correct` is that of the objective's figure.
    curve : list of dict
        Rows of the learning curve, one per finished epoch.
    trace : list of list of float
        Epoch, step, loss_sum, correct and seen at each checkpoint within an epoch.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: float = 0.0
    seen: float = 0.0
    curve: list[dict[str, float | int | None]] = field(default_factory=list)
    trace: list[list[float]] = field(default_factory=list)

    def note(self) -> None:
        """Add the sums so far to the trace."""
        self.trace.append([self.epoch, self.step, self.loss_sum, self.correct, self.seen])


def save_checkpoint(
    path: Path, network: nn.Module, optimiser: torch.optim.Adam, position: Position, digest: str
) -> None:
    """Write everything that a run needs to go on."""
    from safetensors.torch import save_file

    tensors = {f"model.{name}": value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"adam.{name}.{moment}"] = value
    tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    text = json.dumps(asdict(position))
    metadata = {"digest": digest, "position": text, "sha256": _hash_content(text, tensors)}
    with replacing(path) as part:
        save_file(tensors, part, metadata)


def load_checkpoint(
    path: Path, network: nn.Module, optimiser: torch.optim.Adam, digest: str
) -> Position | None:
    """Bring network and optimiser back to where a run was.

    Returns
    -------
    position : Position or None
        None if there is no whole checkpoint of this job; then nothing is changed.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as content:
            metadata = content.metadata() or {}
            if metadata.get("digest") != digest:
                return None
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        if _hash_content(metadata["position"], tensors) != metadata["sha256"]:
            raise ValueError("its content is not what was written")  # noqa: TRY301
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        log.warning(
            "the checkpoint %s is damaged (%s), so this training starts from the beginning",
            path,
            error,
        )
        return None
    model = {k.removeprefix("model."): v for k, v in tensors.items() if k[:6] == "model."}
    network.load_state_dict(model)
    _load_moments(network, optimiser, tensors)
    return Position(**json.loads(metadata["position"]))


def _hash_content(position: str, tensors: dict[str, torch.Tensor]) -> str:
    import torch

    content = hashlib.sha256(position.encode())
    for name in sorted(tensors):
        content.update(name.encode())
        content.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _load_moments(
    network: nn.Module, optimiser: torch.optim.Adam, tensors: dict[str, Any]
) -> None:
    for name, parameter in network.named_parameters():
        moments = {
            moment: tensors[f"adam.{name}.{moment}"]
            for moment in ("step", "exp_avg", "exp_avg_sq")
            if f"adam.{name}.{moment}" in tensors
        }
        for moment, value in moments.items():
            # Adam keeps its step count on the CPU, the moments beside the parameter.
            where = value if moment == "step" else value.to(parameter.device)
            optimiser.state[parameter][moment] = where
