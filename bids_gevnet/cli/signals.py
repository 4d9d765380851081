"""Stop on SIGTERM and Ctrl-C with one sentence and the exit code that a shell expects."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from bids_gevnet.child_processes import STOP_SIGNALS
from bids_gevnet.errors import StoppedError

_AGAIN_S = 0.1
_STOPPED = "stopped by a signal; the same command resumes"


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raise `StoppedError` at the first signal inside the block; end at once at the second.

    Outside of the main thread, where Python allows no handlers, nothing changes.
    """
    received: list[int] = []
    inside = True

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        error = StoppedError(_STOPPED, number)
        watched.append(weakref.ref(error, stop_again))
        try:
            raise error
        finally:
            del error  # the traceback holds this frame: it would keep the error alive

    watched: list[weakref.ref[StoppedError]] = []

    def stop_again(_: object) -> None:
        """Send a signal again whose error has gone without ending the block.

        Libraries swallow it with a bare `except`, and Python in `__del__`.
        """
        if inside:
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), received.pop()))
            again.daemon = True
            again.start()

    print_unraisable = sys.unraisablehook

    def keep_silent(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, StoppedError):
            print_unraisable(unraisable)

    try:
        before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    except ValueError:
        yield
        return
    sys.unraisablehook = keep_silent
    try:
        yield
    except Exception as error:
        if received:  # Python itself makes another error of ours, as where a class is created
            raise StoppedError(_STOPPED, received[0]) from error
        raise
    finally:
        inside = False
        sys.unraisablehook = print_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)
