"""Starts from other projects' weights: files are read, renamed by tables, checked, and written with their origin."""
