"""Prepared sets: one on-disk format for every dataset, with its writer and readers."""
