"""Command lines: parse, check, run."""
