"""Synthetic people: rendered faces, presentation attacks, and prepared sets made of them."""

ON_REAL_PRINTS = (
    "simulated attacks do not replace real ones: a detector trained on them had an AUC of 0.37 on real prints, worse"
    " than chance"
)
"""Warning wherever the program offers simulated attacks, or a model that may have been trained on them."""
