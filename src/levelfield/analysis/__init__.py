"""Analysis of finished trials: statistics only, no training."""
