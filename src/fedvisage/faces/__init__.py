"""Pixels of faces: rendering, finding, aligning."""
