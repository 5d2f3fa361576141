"""Training in JAX: the vectorized loop and the checks before it."""
