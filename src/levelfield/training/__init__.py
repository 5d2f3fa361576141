"""Training in JAX: the vectorized loop and the checks before it. Besides it, only models/ and executors/ import JAX."""
