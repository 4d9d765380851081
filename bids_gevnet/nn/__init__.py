"""Gauge equivariant layers and the networks made of them."""
