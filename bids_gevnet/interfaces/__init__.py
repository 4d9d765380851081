"""Nipype interfaces: files in, files out, each a thin shell around a function."""
