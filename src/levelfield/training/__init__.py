"""Training: update rules, schedules and the vectorised loop. With workloads/, the only code that imports JAX."""
