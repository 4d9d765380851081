"""Stop on SIGTERM and Ctrl-C with one sentence and the exit code that a shell expects."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bids_gevnet.errors import StoppedError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_AGAIN_S = 0.1


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

    print_unraisable = sys.unraisablehook

    def stop_again(unraisable: "sys.UnraisableHookArgs") -> None:
        """Send a signal again that came where Python lets no exception out, as in `__del__`."""
        if not isinstance(unraisable.exc_value, StoppedError):
            print_unraisable(unraisable)
            return
        arguments = (os.getpid(), received.pop())
        again = threading.Timer(_AGAIN_S, os.kill, arguments)
        again.daemon = True
        again.start()

    try:
        before = {number: signal.signal(number, stop) for number in _SIGNALS}
    except ValueError:
        yield
        return
    sys.unraisablehook = stop_again
    try:
        yield
    finally:
        sys.unraisablehook = print_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def holding_signals() -> Iterator[None]:
    """Let the signals that stop the program wait until the end of the block.

    A mask would not do: the system hands a signal to any thread, and Python answers in the main
    one. No other thread is ever interrupted by an answer, so nothing changes there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: waiting.append(received))
        for number in _SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in waiting:
            signal.raise_signal(received)
