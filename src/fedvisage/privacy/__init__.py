"""Differential privacy: mechanisms as pure functions, and what they cost."""
