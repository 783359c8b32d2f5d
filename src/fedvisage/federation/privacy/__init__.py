"""Differential privacy: mechanisms as pure functions, and accounting."""
