"""Weights of other projects as starts: read, renamed by tables, checked, and written with their origin."""
