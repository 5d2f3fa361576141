"""Kernels for GPUs that run many trials at once, each with an XLA reference beside it."""
