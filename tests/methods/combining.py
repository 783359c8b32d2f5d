"""Recipes of any algorithm on any model, small enough for tests."""

from typing import Any

from tests.toy import FACES, NETWORK, Sets, tree

from fedvisage.methods import MODELS

TINY = "test_efficientnet"
"""Of timm's architectures, one that it has for tests: 0.1 million weights, with BatchNorm."""

TRANSFORMER = "test_vit"
"""The same with blocks of a transformer."""

FOR_SGD = ("scaffold", "fednova")


def small(model: str) -> dict[str, Any]:
    """Return what a recipe says of a model's network so that it is narrow."""
    actual = MODELS[model].options.model_fields["network"].annotation
    known = getattr(actual, "model_fields", {})
    sizes = {key: value for key, value in (NETWORK | FACES | {"arch": TINY}).items() if key in known}
    if model in ("adapters", "text-anchored"):
        sizes |= {"arch": TRANSFORMER, "rank": 2}
    if MODELS[model].task == "recognition":
        sizes["name"] = model
        if model != "timm-embedding":
            del sizes["arch"]
    return sizes


def combined(sets: Sets, algorithm: str, model: str, **changes: Any) -> dict[str, Any]:
    """Return a recipe of two rounds; sites step by SGD, so that all algorithms can be compared."""
    bare = "fedavg" if MODELS[model].task == "recognition" else "fedpad"
    actual = tree(sets, bare)
    actual["method"] = {"name": algorithm, "model": model, "network": small(model)}
    actual["training"] |= {"rounds": 2, "optimizer": {"name": "sgd", "lr": 0.02}}
    actual["training"].pop("pretrain", None)
    for key, value in changes.items():
        *parents, last = key.split("__")
        section = actual
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return actual
