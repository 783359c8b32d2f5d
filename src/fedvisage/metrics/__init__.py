"""Pure functions of scores: error rates, thresholds and their uncertainty."""
