"""Weights of other projects as starts: read from their files, renamed by tables, checked, written with their origin."""
