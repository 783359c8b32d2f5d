"""Losses as pure functions, one paper's idea per file."""
