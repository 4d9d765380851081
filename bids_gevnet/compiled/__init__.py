"""Kernels in C++ for the CPU, loaded with ctypes where they were compiled; see `library`."""
