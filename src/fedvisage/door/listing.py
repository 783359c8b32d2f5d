"""The lists: methods by name, and the models that algorithms can train."""

from __future__ import annotations

from fedvisage import extensions
from fedvisage.federation.method import Method
from fedvisage.methods import MODELS, all_methods, model_named
from fedvisage.methods.model import Model


def methods() -> dict[str, Method]:
    """Return all methods by name, those of other packages among them."""
    return all_methods()


def models() -> dict[str, Model]:
    """Return the models that algorithms can train, by name, those of other packages among them."""
    return MODELS | {name: model_named(name) for name in extensions.names("models")}
