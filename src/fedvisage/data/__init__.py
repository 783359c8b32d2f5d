"""Prepared sets: one on-disk format for every dataset, what writes it and what reads it."""
