r"""What a training minimises, and the figure that its learning curve shows beside that.

Classes: cross entropy, and the share of hits. Numbers: with z = (y - m) / s the number y
standardised by mean and standard deviation of the training scans,

.. math:: L = (f(x) - z)^2, \qquad \text{and the absolute error } s \, |f(x) - z|

in the unit of y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Judge = Callable[[Tensor, Tensor], Tensor]

ACCURACY = "accuracy"
ERROR = "error"


@dataclass(frozen=True)
class Objective:
    """A loss and a figure of each sample.

    Parameters
    ----------
    figure : str
        What the figure is called in the learning curve: "accuracy", or "error".
    losses, figures : callable
        (n, outputs) scores and (n,) truth to (n,) values.
    """

    figure: str
    losses: Judge
    figures: Judge


CLASSES = Objective(
    ACCURACY,
    lambda scores, labels: F.cross_entropy(scores, labels, reduction="none"),
    lambda scores, labels: (scores.argmax(1) == labels).float(),
)


def numbers(spread: float) -> Objective:
    """Judge standardised numbers; `spread` is their standard deviation in the number's unit.

    Examples
    --------
    >>> import torch
    >>> judge = numbers(5.0)
    >>> judge.losses(torch.tensor([[1.0]]), torch.tensor([3.0])).item()
    4.0
    >>> judge.figures(torch.tensor([[1.0]]), torch.tensor([3.0])).item()
    10.0
    """
    return Objective(
        ERROR,
        lambda scores, truth: (scores[:, 0] - truth).square(),
        lambda scores, truth: spread * (scores[:, 0] - truth).abs(),
    )
