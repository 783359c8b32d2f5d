"""A recipe's section ``method``: which method it names, alone or with a model, and its options, validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage import extensions
from fedvisage.errors import UserError, choice
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, FOR_FACES, METHODS, MODELS, method_named, on
from fedvisage.methods.models import face
from fedvisage.recipe import MethodOptions, read_section


def find(section: Mapping[str, Any] | MethodOptions) -> Method:
    """Return the method that a recipe's section ``method`` names, alone or with a model."""
    tree = section.model_dump() if isinstance(section, MethodOptions) else section
    name = tree.get("name")
    known = [*METHODS, *extensions.names("methods")]
    if not isinstance(name, str):
        wrong = "is missing" if name is None else f"must be the name of a method, got {name!r}"
        raise UserError("recipe.method.name", f"{wrong}{choice('', known)}")
    if (method := method_named(name)) is None:
        raise UserError("recipe.method.name", f"{name!r} is no method{choice(name, known)}")
    if (model := _model_of(tree)) is None:
        return method
    if name not in ALGORITHMS:
        raise UserError("recipe.method.model", f"{name} has a network of its own; leave model out, or use one of "
                        f"{', '.join(ALGORITHMS)}")  # fmt: skip
    return on(name, model)


def read_method(section: Mapping[str, Any]) -> MethodOptions:
    """Validate a recipe's section ``method`` by the options of the method that it names."""
    name = section.get("name")
    tree = _spelled_out(section) if isinstance(name, str) else dict(section)
    return read_section(find(tree).options, tree, "recipe.method")


def _model_of(tree: Mapping[str, Any]) -> str | None:
    """Return the model that a section names: by ``model``, or, for an algorithm, by the name of its network."""
    if tree.get("model") is not None:
        return str(tree["model"])
    network = tree.get("network")
    named = network.get("name") if isinstance(network, Mapping) else None
    if not isinstance(named, str) or tree["name"] not in ALGORITHMS:
        return None
    if named not in MODELS:
        raise UserError("recipe.method.network.name", f"{named!r} is no model{choice(named, MODELS)}")
    return None if tree["name"] in FOR_FACES and named in face.MODELS else named


def _spelled_out(section: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``model: {name: timm, arch: …}`` into a model's name and its network; a backbone's name is its network's."""
    tree = dict(section)
    if not isinstance(tree.get("network", {}), Mapping):
        return tree
    network = dict(tree.get("network", {}))
    if isinstance(tree.get("model"), Mapping):
        given = dict(tree["model"])
        if not isinstance(given.get("name"), str):
            raise UserError("recipe.method.model", f"needs a name: one of {', '.join(MODELS)}")
        tree["model"] = given.pop("name")
        for key in (key for key in network.keys() & given.keys() if network[key] != given[key]):
            raise _twice(key, network[key], f"method.model.{key}", given[key])
        network |= given
    if not isinstance(tree.get("model"), str | None):
        return tree
    named = network.get("name")
    if tree.get("model") is None and tree.get("name") in ALGORITHMS and isinstance(named, str) and named in MODELS:
        tree |= {} if named in face.MODELS else {"model": named}
    elif tree.get("model") in MODELS and named not in (None, tree["model"]):
        raise _twice("name", named, "method.model", tree["model"])
    model = tree.get("model")
    if named is not None and named == model:
        del network["name"]
    if model in face.MODELS:
        network = {"name": model, **network}
    return tree | ({"network": network} if network else {})


def _twice(key: str, here: object, other: str, there: object) -> UserError:
    return UserError(f"recipe.method.network.{key}", f"is {here!r}, and {other} is {there!r}; leave one of them out")
