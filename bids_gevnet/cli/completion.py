"""Completion of a command line by the tab key, asked for by the shell through argcomplete."""

import argparse
import os


def complete(*parsers: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what could come next, and end; do nothing if none does.

    Parameters
    ----------
    *parsers : ArgumentParser
        Whose options the program takes together.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        together = argparse.ArgumentParser(
            parents=parsers, add_help=False, conflict_handler="resolve"
        )
        argcomplete.autocomplete(together)
