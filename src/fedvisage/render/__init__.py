"""Synthetic people: rendered faces, presentation attacks, and prepared sets made of them."""
