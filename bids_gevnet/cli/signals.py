"""Stop on SIGTERM and Ctrl-C with one sentence and the exit code that a shell expects."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from bids_gevnet.errors import StoppedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `StoppedError` at the first signal inside the block; end at once at the second.

    Outside of the main thread, where Python allows no handlers, nothing changes.
    """
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        raise StoppedError("stopped by a signal; the same command resumes", number)

    try:
        before = {number: signal.signal(number, stop) for number in _SIGNALS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
