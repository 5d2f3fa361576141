"""Training: update rules, schedules and the vectorised loop. Besides it, workloads/ and the local executor use JAX."""
