"""Diffusion series as arrays: gradients, shells, motion, masks, registration."""
