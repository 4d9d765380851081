"""``python -m bids_gevnet.learn.train.launch ...``: torchrun without its tracebacks.

It takes the arguments of torchrun. Whoever starts it says what was stopped, or what failed and
left its error, and how to resume.
"""

from __future__ import annotations

import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def main() -> int:
    """Run torchrun; return the exit code."""
    logging.disable(logging.ERROR)  # torchrun's, of every signal and process
    try:
        torchrun()
    except SignalException as stop:
        return 128 + int(stop.sigval)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        if code < 0:
            why = ", most likely because memory ran out" if code == -signal.SIGKILL else ""
            sys.stderr.write(f"A training process was ended by signal {-code}{why}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
