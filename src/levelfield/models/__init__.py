"""Networks and their functions in JAX: one module per built-in workload, and the layers that they share."""
