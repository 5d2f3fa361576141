"""Analysis of finished trials: numpy and scipy only, no training."""
