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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = _Stop()
    before = {number: signal.signal(number, stop.raise_error) for number in STOP_SIGNALS}
    print_unraisable = sys.unraisablehook

    def keep_silent(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, StoppedError):
            print_unraisable(unraisable)

    sys.unraisablehook = keep_silent
    try:
        yield
    except Exception as error:
        if stop.received:  # Python makes another error of ours, for one where a class is created
            raise StoppedError(_STOPPED, stop.received[0]) from error
        raise
    finally:
        stop.ended = True
        sys.unraisablehook = print_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_again() -> None:
    """Raise the error of a signal once more, where somebody has taken it for a failure.

    Nipype does, of a stage that runs in this process, and begins with the next one.
    """
    stop = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(stop, _Stop) and stop.answered is not None:
        stop.ended = True
        stop.received = [stop.answered]
        raise StoppedError(_STOPPED, stop.answered)


class _Stop:
    """What signals do inside a block."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.answered: int | None = None
        self.ended = False
        self._watched: list[weakref.ref[StoppedError]] = []

    def raise_error(self, number: int, _frame: object) -> None:
        """Answer a signal."""
        self.received.append(number)
        if len(self.received) > 1:
            os._exit(128 + number)
        self.answered = number
        error = StoppedError(_STOPPED, number)
        self._watched.append(weakref.ref(error, self._send_again))
        try:
            raise error
        finally:
            del error  # the traceback holds this frame, which would keep the error alive

    def _send_again(self, _: object) -> None:
        """Send a signal again whose error is gone although the block goes on.

        Libraries swallow it with a bare `except`, and Python in `__del__`.
        """
        if not self.ended:
            again = threading.Timer(_AGAIN_S, self._kill, (self.received.pop(),))
            again.daemon = True
            again.start()

    def _kill(self, number: int) -> None:
        if not self.ended:
            os.kill(os.getpid(), number)
