"""Federated learning for faces, where the faces never leave their owners."""

__version__ = "0.1.0"
