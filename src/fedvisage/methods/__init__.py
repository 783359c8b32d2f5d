"""The list of methods: papers and baselines by name, and any algorithm on any model.

A paper that defines network and algorithm as one is a file here and a line in ``METHODS``. An algorithm is a function
of a model: ``method: {name: fedprox, model: vit-h}`` is FedProx on ViT-H, and ``{name: fedprox}`` is FedProx on the
model that its name stands for in the field's tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import Any

from fedvisage import extensions
from fedvisage.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods import (
    centralised,
    colour_texture,
    conventional,
    depth_only,
    distillation,
    fedface,
    fedfr,
    fedgpad,
    fedma,
    fedpad,
    fedsis,
    festa,
    fine_tune,
    fused,
    pooled,
    pretrained,
    privacyface,
    privacyface_global,
    privacyface_local,
    privacyface_naive,
    privacyface_without_noise,
    single,
    vit,
    vit_h,
    vit_h_is,
)
from fedvisage.methods.algorithms.afl import afl
from fedvisage.methods.algorithms.fedadam import fedadam, fedyogi
from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.algorithms.fedbn import fedbn
from fedvisage.methods.algorithms.fednova import fednova
from fedvisage.methods.algorithms.fedprox import fedprox
from fedvisage.methods.algorithms.moon import moon
from fedvisage.methods.algorithms.scaffold import scaffold
from fedvisage.methods.model import Model
from fedvisage.methods.models import face, resnet18, timm, vgg
from fedvisage.methods.models import vit as plain_vit
from fedvisage.methods.models import vit_h as hybrid
from fedvisage.recipe import MethodOptions

ALGORITHMS: dict[str, Callable[[Model], Method]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "moon": moon,
    "fedbn": fedbn,
    "afl": afl,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "scaffold": scaffold,
    "fednova": fednova,
}

MODELS: dict[str, Model] = {
    model.name: model
    for model in (resnet18.MODEL, plain_vit.MODEL, hybrid.MODEL, vgg.MODEL, timm.MODEL, *face.MODELS.values())
}

FOR_FACES = ("fedavg",)
"""Algorithms whose bare name stands for recognition; FedAvg on FedPAD's network has FedPAD's name."""


@cache
def on(algorithm: str, model: str) -> Method:
    """Return an algorithm on a model; the same one each time."""
    return ALGORITHMS[algorithm](model_named(model))


def method_named(name: str) -> Method | None:
    """Return a method of the list, or of another package's; None if nobody has one of that name."""
    found: Method | None = METHODS.get(name) or extensions.load("methods", name, Method)
    return found


def all_methods() -> dict[str, Method]:
    """Return all methods by name, those of other packages among them."""
    return METHODS | {name: found for name in extensions.names("methods") if (found := method_named(name))}


def model_named(name: str) -> Model:
    """Return a model of the list, or of another package's."""
    found: Model | None = MODELS.get(name) or extensions.load("models", name, Model)
    if found is None:
        known = [*MODELS, *extensions.names("models")]
        raise UserError("recipe.method.model", f"{name!r} is no model{_choice(name, known)}")
    return found


def _on_hybrid(algorithm: str, title: str) -> Method:
    """Return a baseline of FedSIS's Table 1 under its own name."""
    return replace(on(algorithm, "vit-h"), name=f"{algorithm}-vit-h", title=f"{title} (ViT-H)", paper=plain_vit.PAPER)


def _bare(algorithm: str) -> Method:
    """Return an algorithm on the model that its bare name stands for."""
    found = on(algorithm, face.MODEL.name if algorithm in FOR_FACES else "resnet18")
    return replace(found, title="FedAvg (recognition)", paper=face.PAPER) if algorithm in FOR_FACES else found


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(single.METHOD, fused.METHOD, fedpad.METHOD),
        *(_bare(name) for name in ALGORITHMS if name not in FOR_FACES),
        *(fedgpad.METHOD, fedma.METHOD, pooled.METHOD, colour_texture.METHOD, depth_only.METHOD),
        *(vit.METHOD, vit_h.METHOD, vit_h_is.METHOD),
        *(_on_hybrid("fedavg", "FedAvg"), _on_hybrid("fedprox", "FedProx"), _on_hybrid("moon", "MOON")),
        *(festa.METHOD, fedsis.METHOD, pretrained.METHOD, *map(_bare, FOR_FACES), fedface.METHOD, fedfr.METHOD),
        *(centralised.METHOD, fine_tune.METHOD, distillation.METHOD),
        *(privacyface.METHOD, conventional.METHOD, privacyface_without_noise.METHOD, privacyface_naive.METHOD),
        *(privacyface_local.METHOD, privacyface_global.METHOD),
    )
}


def find(section: Mapping[str, Any] | MethodOptions) -> Method:
    """Return the method that a recipe's section ``method`` names, alone or with a model."""
    tree = section.model_dump() if isinstance(section, MethodOptions) else section
    name = tree.get("name")
    method = method_named(name) if isinstance(name, str) else None
    if method is None or not isinstance(name, str):
        known = [*METHODS, *extensions.names("methods")]
        raise UserError("recipe.method.name", f"{name!r} is no method{_choice(str(name), known)}")
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
    return find(tree).options.model_validate(tree)


def _model_of(tree: Mapping[str, Any]) -> str | None:
    """Return the model that a section names: by ``model``, or, for an algorithm, by the name of its network."""
    if tree.get("model") is not None:
        return str(tree["model"])
    network = tree.get("network")
    named = network.get("name") if isinstance(network, Mapping) else None
    if not isinstance(named, str) or tree["name"] not in ALGORITHMS:
        return None
    if named not in MODELS:
        raise UserError("recipe.method.network.name", f"{named!r} is no model{_choice(named, list(MODELS))}")
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


def _choice(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; choose one of {', '.join(sorted(known))}"


class _List(ModuleType):
    """So that ``fedvisage.methods()`` is the list of methods, although the room has that name."""

    def __call__(self) -> dict[str, Method]:
        return all_methods()


sys.modules[__name__].__class__ = _List
