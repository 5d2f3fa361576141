"""Custom kernels for GPUs, in which each program of the grid works on one trial.

``levelfield.kernels.pallas`` decides whether they can be used and is the only module that depends on the toolchain.
Each of the others holds kernels and, beside them, the same computation in plain JAX, which tests compare them with.
Nothing depends on the kernels: without them, JAX differentiates and batches the workload's loss.
"""
