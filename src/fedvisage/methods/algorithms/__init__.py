"""Algorithms that train any model, one per file."""
