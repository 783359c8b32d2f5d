"""Pure functions of scores: error rates, thresholds and confidence intervals."""
