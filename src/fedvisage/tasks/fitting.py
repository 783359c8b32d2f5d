"""Whether a model's weights are those of the network that its recipe describes, told before the network is built.

A model is a file from anywhere. The network is first built without memory for its weights, so that a recipe which asks
for one that is far too large costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedvisage.errors import UserError
from fedvisage.federation.declared import Declared
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.tasks.model import SETTINGS, WEIGHTS


def check_fits(directory: Path, finished: Message, method: Declared, recipe: Recipe) -> None:
    """Refuse a model whose weights have a tensor too many, too few, or of another shape or type than the network's."""
    outline = _outline(directory / SETTINGS, method, recipe)
    expected = {
        f"{part}.{name}": value
        for part, module in outline.items()
        if part in method.finished
        for name, value in module.state_dict().items()
    } | method.beside(outline)
    path, members = directory / WEIGHTS, members_of(finished)
    if not members or (method.members == "one" and set(members) != {""}):
        raise UserError(str(path), f"does not hold one model, as method {method.name} makes")
    for member, weights in sorted(members.items()):
        if problem := _problem(weights, expected):
            of = f"of {member}: " if member else ""
            raise UserError(str(path), f"{of}{problem}; these weights are not of the network in model.json's recipe")


def _outline(settings: Path, method: Declared, recipe: Recipe) -> nn.ModuleDict:
    """Return the network with shapes and types, and without values where it can be built so."""
    try:
        with torch.device("meta"):
            return method.network(recipe)
    except NotImplementedError:  # of networks that look at their first weights
        return method.network(recipe)
    except (RuntimeError, ValueError, ArithmeticError, AssertionError) as error:
        raise UserError(str(settings), f"describes a network that cannot be built: {error}") from error


def _problem(found: Message, expected: Message) -> str:
    if lacking := sorted(expected.keys() - found.keys()):
        return f"lacks {lacking[0]}"
    if extra := sorted(found.keys() - expected.keys()):
        return f"has {extra[0]}, unknown to the network"
    for name, value in expected.items():
        have, want = ((str(one.dtype).removeprefix("torch."), tuple(one.shape)) for one in (found[name], value))
        if have != want:
            return f"{name} is {have[0]} {have[1]}, the network's is {want[0]} {want[1]}"
    return ""
