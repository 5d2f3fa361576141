"""Studies derived from studies: ladders of tuning protocols, reruns, refined search spaces, followed trials."""
