"""The lists: methods by name, and the models that algorithms can train."""

from __future__ import annotations

from fedvisage.federation.method import Method
from fedvisage.methods import METHODS, MODELS
from fedvisage.methods.model import Model


def methods() -> dict[str, Method]:
    """Return all methods by name."""
    return dict(METHODS)


def models() -> dict[str, Model]:
    """Return the models that algorithms can train, by name."""
    return dict(MODELS)
