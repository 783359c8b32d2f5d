"""Losses as pure functions, one paper's idea a file."""
