"""Processes that this program starts: none of them outlives it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What asks a program to stop."""


def end_with_parent() -> None:
    """End this process when the one that started it does, however that ends.

    To be called first in a process of a pool, which would wait for work for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def hand_on(number: int, handlers: Mapping[signal.Signals, Any]) -> None:
    """Let the program's own answer to a signal follow that of a stage which has ended.

    Whoever runs the stages may swallow what a stage raises, and begin with the next one.

    Parameters
    ----------
    number : int
        The signal; one that the program does not answer is handed on as SIGTERM.
    handlers : mapping
        By signal, what was there before the stage put its own in its place. Nothing is done
        where it was Python's or the system's: then the stage is the program.
    """
    for each in (signal.Signals(number), signal.SIGTERM):
        handler = handlers.get(each)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.raise_signal(each)
            return


@contextmanager
def holding_signals() -> Iterator[None]:
    """Let the signals that stop a program wait until the end of the block.

    For blocks that start a process: one whose parent ends before it was told what to do complains
    on the terminal, or waits for ever.

    A mask would not do: the system hands a signal to any thread, and Python answers in the main
    one. No other thread is ever interrupted by an answer, so nothing changes there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: waiting.append(received))
        for number in STOP_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in waiting:
            signal.raise_signal(received)
