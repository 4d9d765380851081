"""Spherical grids: points, frames, transport, quadrature, harmonics, resampling."""
