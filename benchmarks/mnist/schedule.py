"""The learning rate over a training: one cycle, up and then down."""

import math


def one_cycle(done: float, warm: float = 0.25, start: float = 0.04) -> float:
    """Learning rate as a fraction of its highest: up for a part of the training, then down to 0.

    Half a cosine each way. Smith and Topin 2018: few epochs with a high rate in the middle.

    Parameters
    ----------
    done : float
        Part of the training that is over, 0 to 1.
    warm : float
        Part in which the rate goes up.
    start : float
        Fraction at the beginning.
    """
    if done < warm:
        return start + (1 - start) * (1 - math.cos(math.pi * done / warm)) / 2
    return (1 + math.cos(math.pi * (done - warm) / (1 - warm))) / 2
