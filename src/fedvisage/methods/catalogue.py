"""The catalogue of methods: methods by name, algorithms, and the models that they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from textwrap import fill
from typing import Any, NoReturn, TypeVar

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.federation.method import Method
from fedvisage.methods.algorithms.afl import afl
from fedvisage.methods.algorithms.fedadam import fedadam, fedyogi
from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.algorithms.fedbn import fedbn
from fedvisage.methods.algorithms.fednova import fednova
from fedvisage.methods.algorithms.fedprox import fedprox
from fedvisage.methods.algorithms.moon import moon
from fedvisage.methods.algorithms.scaffold import scaffold
from fedvisage.methods.models import adapters, face, minifasnet, resnet18, timm, vgg
from fedvisage.methods.models import vit as plain_vit
from fedvisage.methods.models import vit_h as hybrid
from fedvisage.methods.models.model import Model
from fedvisage.methods.pad import (
    colour_texture,
    depth_only,
    federated_texture,
    fedgpad,
    fedma,
    fedpad,
    fedsis,
    fedstackfpad,
    festa,
    fused,
    pooled,
    single,
    vit,
    vit_h,
    vit_h_is,
)
from fedvisage.methods.recognition import (
    centralised,
    conventional,
    distillation,
    fedface,
    fedfr,
    fine_tune,
    pretrained,
    privacyface,
    privacyface_fedface,
    privacyface_global,
    privacyface_local,
    privacyface_naive,
    privacyface_without_noise,
)
from fedvisage.recipe import MethodOptions, read_section

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
    for model in (
        resnet18.MODEL,
        plain_vit.MODEL,
        hybrid.MODEL,
        vgg.MODEL,
        minifasnet.MODEL,
        timm.MODEL,
        adapters.MODEL,
        *face.MODELS.values(),
    )
}

FOR_FACES = ("fedavg",)
"""Algorithms whose bare name means face recognition; FedAvg on FedPAD's network has the name FedPAD."""


@cache
def on(algorithm: str, model: str) -> Method:
    """Return an algorithm on a model; the same object each time."""
    return ALGORITHMS[algorithm](model_named(model))


def method_named(name: str) -> Method | None:
    """Return a method of the list or of another package; None for an unknown name."""
    method: Method | None = METHODS.get(name) or extensions.load("methods", name, Method)
    return method


def all_methods() -> dict[str, Method]:
    """Return all methods by name, including those of other packages."""
    return METHODS | {name: method for name in extensions.names("methods") if (method := method_named(name))}


Entry = TypeVar("Entry", Method, Model)


class Listing(dict[str, Entry]):
    """Methods or models by name; it prints their names, and an unknown name is a ``UserError``."""

    def __repr__(self) -> str:
        """Return the names by task, in a few lines."""
        lines = []
        for task in ("pad", "recognition"):
            names = [name for name, entry in self.items() if entry.task == task]
            lines.append(fill(f"{task}: {', '.join(names)}", 100, subsequent_indent="  ", break_on_hyphens=False))
        return "\n".join(lines)

    def __missing__(self, name: str) -> NoReturn:
        """Raise an error with the nearest name."""
        raise UserError(repr(name), f"is the name of no method or model in this list{choice_hint(str(name), self)}")


def listed_methods() -> Listing[Method]:
    """Return all methods by name, as Python callers receive them."""
    return Listing(all_methods())


def model_named(name: str) -> Model:
    """Return a model of the list or of another package."""
    model: Model | None = MODELS.get(name) or extensions.load("models", name, Model)
    if model is None:
        names = [*MODELS, *extensions.names("models")]
        raise UserError("recipe.method.model", f"unknown model {name!r}{choice_hint(name, names)}")
    return model


def _on_hybrid(algorithm: str, title: str) -> Method:
    """Return a baseline of FedSIS's Table 1 under its own name."""
    return replace(on(algorithm, "vit-h"), name=f"{algorithm}-vit-h", title=f"{title} (ViT-H)", paper=plain_vit.PAPER)


def _with_implied_model(algorithm: str) -> Method:
    """Return an algorithm on the model that its bare name implies."""
    method = on(algorithm, face.MODEL.name if algorithm in FOR_FACES else "resnet18")
    return replace(method, title="FedAvg (recognition)", paper=face.PAPER) if algorithm in FOR_FACES else method


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(single.METHOD, fused.METHOD, fedpad.METHOD),
        *(_with_implied_model(name) for name in ALGORITHMS if name not in FOR_FACES),
        *(fedgpad.METHOD, fedma.METHOD, fedstackfpad.METHOD, pooled.METHOD, colour_texture.METHOD, depth_only.METHOD),
        federated_texture.METHOD,
        *(vit.METHOD, vit_h.METHOD, vit_h_is.METHOD),
        *(_on_hybrid("fedavg", "FedAvg"), _on_hybrid("fedprox", "FedProx"), _on_hybrid("moon", "MOON")),
        *(
            festa.METHOD,
            fedsis.METHOD,
            pretrained.METHOD,
            *map(_with_implied_model, FOR_FACES),
            fedface.METHOD,
            fedfr.METHOD,
        ),
        *(centralised.METHOD, fine_tune.METHOD, distillation.METHOD),
        *(privacyface.METHOD, conventional.METHOD, privacyface_without_noise.METHOD, privacyface_naive.METHOD),
        *(privacyface_local.METHOD, privacyface_global.METHOD, privacyface_fedface.METHOD),
    )
}


# Reading a recipe's section ``method``: the method that it names, alone or with a model, and its validated options.


def find(section: Mapping[str, Any] | MethodOptions) -> Method:
    """Return the method that a recipe's section ``method`` names, alone or with a model."""
    tree = section.model_dump() if isinstance(section, MethodOptions) else section
    name = tree.get("name")
    names = [*METHODS, *extensions.names("methods")]
    if not isinstance(name, str):
        problem = "is missing" if name is None else f"must be the name of a method, got {name!r}"
        raise UserError("recipe.method.name", f"{problem}{choice_hint('', names)}")
    if (method := method_named(name)) is None:
        hint = f"{choice_hint(name, names)}; a method of your own needs an entry point (docs/extending.md#registration)"
        raise UserError("recipe.method.name", f"unknown method {name!r}{hint}")
    if (model := _model_of(tree)) is None:
        return method
    if name not in ALGORITHMS:
        raise UserError(
            "recipe.method.model",
            f"{name} has a network of its own; leave model out, or use one of {', '.join(ALGORITHMS)}",
        )
    return on(name, model)


def read_method(section: Mapping[str, Any]) -> MethodOptions:
    """Validate a recipe's section ``method`` against the options of the method that it names."""
    name = section.get("name")
    tree = _expand_model(section) if isinstance(name, str) else dict(section)
    return read_section(find(tree).options, tree, "recipe.method")


def _model_of(tree: Mapping[str, Any]) -> str | None:
    """Return the model that a section names: by ``model`` or, for an algorithm, by the name of its network."""
    if tree.get("model") is not None:
        return str(tree["model"])
    network = tree.get("network")
    named = network.get("name") if isinstance(network, Mapping) else None
    if not isinstance(named, str) or tree["name"] not in ALGORITHMS:
        return None
    if named not in MODELS:
        raise UserError("recipe.method.network.name", f"unknown model {named!r}{choice_hint(named, MODELS)}")
    return None if tree["name"] in FOR_FACES and named in face.MODELS else named


def _expand_model(section: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``model: {name: timm, arch: …}`` into a model name and its network section.

    A backbone's name is also the name of its network.
    """
    tree = dict(section)
    if not isinstance(tree.get("network", {}), Mapping):
        return tree
    network = dict(tree.get("network", {}))
    if isinstance(tree.get("model"), Mapping):
        settings = dict(tree["model"])
        if not isinstance(settings.get("name"), str):
            raise UserError("recipe.method.model", f"needs a name: one of {', '.join(MODELS)}")
        tree["model"] = settings.pop("name")
        for key in (key for key in network.keys() & settings.keys() if network[key] != settings[key]):
            raise _stated_twice_error(key, network[key], f"method.model.{key}", settings[key])
        network |= settings
    # Any other type of ``model`` is left to the validation of the section.
    if not isinstance(tree.get("model"), str | None):
        return tree
    named = network.get("name")
    if tree.get("model") is None and tree.get("name") in ALGORITHMS and isinstance(named, str) and named in MODELS:
        tree |= {} if named in face.MODELS else {"model": named}
    elif tree.get("model") in MODELS and named not in (None, tree["model"]):
        raise _stated_twice_error("name", named, "method.model", tree["model"])
    # Only the network of a backbone repeats the model's name.
    model = tree.get("model")
    if named is not None and named == model:
        del network["name"]
    if model in face.MODELS:
        network = {"name": model, **network}
    return tree | ({"network": network} if network else {})


def _stated_twice_error(key: str, here: object, other: str, there: object) -> UserError:
    return UserError(f"recipe.method.network.{key}", f"is {here!r}, but {other} is {there!r}; leave one of them out")
