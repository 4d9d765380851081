"""Nipype graphs, one builder a file."""
