"""Stop on SIGTERM and Ctrl-C with one sentence and the exit code that a shell expects."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bids_gevnet.child_processes import STOP_SIGNALS
from bids_gevnet.errors import StoppedError

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
        before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
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
