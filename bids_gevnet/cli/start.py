"""The console script `bids_gevnet`: from its first lines on, a signal gets a sentence."""

import os
import signal
import sys

_SENTENCE = "bids_gevnet: stopped by a signal before anything was done\n"


def main() -> int:
    """Run the command line; return its exit code."""

    def stop(number: int, _frame: object) -> None:
        sys.stderr.write(_SENTENCE)
        sys.stderr.flush()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    from bids_gevnet.cli.run import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
