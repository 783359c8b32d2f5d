"""The catalogue of methods: methods by name, algorithms, and the models that they train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from textwrap import fill
from typing import Any, NoReturn, TypeVar

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.federation.method import Method
from fedvisage.methods.algorithms.afl import afl
from fedvisage.methods.algorithms.ditto import ditto
from fedvisage.methods.algorithms.fedadam import fedadam, fedyogi
from fedvisage.methods.algorithms.fedala import fedala
from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.algorithms.fedbabu import fedbabu
from fedvisage.methods.algorithms.fedbn import fedbn
from fedvisage.methods.algorithms.feddyn import feddyn
from fedvisage.methods.algorithms.fednova import fednova
from fedvisage.methods.algorithms.fedprox import fedprox
from fedvisage.methods.algorithms.fedrep import fedrep
from fedvisage.methods.algorithms.ga import ga
from fedvisage.methods.algorithms.moon import moon
from fedvisage.methods.algorithms.mrmtl import mrmtl
from fedvisage.methods.algorithms.scaffold import scaffold
from fedvisage.methods.models import adapters, face, minifasnet, resnet18, text_anchored, timm, vgg
from fedvisage.methods.models import vit as transformers
from fedvisage.methods.models.model import Model
from fedvisage.methods.pad import (
    colour_texture,
    depth_only,
    feddf,
    federated_texture,
    fedgpad,
    fedma,
    fedpad,
    fedsis,
    fedsr,
    fedstackfpad,
    festa,
    mixstyle,
    ssdg,
    vit_h_is,
)
from fedvisage.methods.recognition import fedface, fedfr, fedfr_baselines, privacyface, privacyface_baselines
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
    "feddyn": feddyn,
    "ditto": ditto,
    "fedrep": fedrep,
    "fedbabu": fedbabu,
    "fedala": fedala,
    "mrmtl": mrmtl,
    "ga": ga,
}

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        resnet18.MODEL,
        transformers.MODEL,
        transformers.VIT_H,
        vgg.MODEL,
        minifasnet.MODEL,
        timm.MODEL,
        adapters.MODEL,
        text_anchored.MODEL,
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
    return METHODS.get(name) or extensions.load("methods", name, Method)


def all_methods() -> dict[str, Method]:
    """Return all methods by name, including those of other packages."""
    return METHODS | extensions.load_all("methods", METHODS, Method)


Entry = TypeVar("Entry", Method, Model)


class Catalogue(dict[str, Entry]):
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


def listed_methods() -> Catalogue[Method]:
    """Return all methods by name, as Python callers receive them."""
    return Catalogue(all_methods())


def model_named(name: str) -> Model:
    """Return a model of the list or of another package."""
    model: Model | None = MODELS.get(name) or extensions.load("models", name, Model)
    if model is None:
        names = [*MODELS, *extensions.names("models")]
        raise UserError("recipe.method.model", f"unknown model {name!r}{choice_hint(name, names)}")
    return model


def _on_hybrid(algorithm: str, title: str, advice: str) -> Method:
    """Return a baseline of FedSIS's Table 1 under its own name."""
    method = on(algorithm, "vit-h")
    return replace(method, name=f"{algorithm}-vit-h", title=f"{title} (ViT-H)", paper=transformers.PAPER, advice=advice)


@dataclass(frozen=True)
class Group:
    """Methods for one purpose: the condition of the reader, and the methods."""

    condition: str
    methods: tuple[Method, ...]


GROUPS = {
    "Attack detection by averaging": Group(
        "Several sites have live and attack images.",
        (
            *(fedpad.METHOD, fedgpad.METHOD, fedma.METHOD),
            *(on(name, "resnet18") for name in ALGORITHMS if name not in FOR_FACES),
        ),
    ),
    "Attack detection for unseen cameras": Group(
        "The target's cameras differ from those of all sites.",
        (mixstyle.METHOD, ssdg.METHOD, fedsr.METHOD, feddf.METHOD),
    ),
    "Attack detection without training networks": Group(
        "Sites have weak machines, slow lines or few images.",
        (federated_texture.METHOD, fedstackfpad.METHOD),
    ),
    "Attack detection by split learning": Group(
        "The server has a large machine, and sites are online for every batch.",
        (
            *(fedsis.METHOD, festa.METHOD),
            _on_hybrid("fedavg", "FedAvg", "The averaged baseline on the same transformer; no traffic within a round."),
            _on_hybrid("fedprox", "FedProx", "As fedavg-vit-h with fedprox's proximal term."),
            _on_hybrid("moon", "MOON", "As fedavg-vit-h with moon's contrastive term."),
        ),
    ),
    "Baselines of attack detection": Group(
        "You want to measure the gain of a federation.",
        (
            *(fedpad.SINGLE, fedpad.FUSED, fedpad.POOLED, colour_texture.METHOD, depth_only.METHOD),
            *(vit_h_is.VIT, vit_h_is.VIT_H, vit_h_is.METHOD),
        ),
    ),
    "Recognition by averaging": Group(
        "Sites have people, and there is a public set of other people.",
        (
            replace(
                on("fedavg", face.MODEL.name),
                title="FedAvg (recognition)",
                paper=face.PAPER,
                advice="Start here: FedAvg on a face network; class centres stay at the sites; two people per site.",
            ),
            *(fedfr.METHOD, fedfr_baselines.FINE_TUNE, fedfr_baselines.DISTILLATION, fedface.METHOD),
        ),
    ),
    "Recognition with noisy clusters": Group(
        "Sites have many people, and each may release noisy group centres.",
        (
            *(privacyface.METHOD, privacyface_baselines.CONVENTIONAL, privacyface_baselines.WITHOUT_NOISE),
            *(privacyface_baselines.NAIVE, privacyface_baselines.FEDFACE),
        ),
    ),
    "Baselines of recognition": Group(
        "You want to measure the gain of a federation.",
        (
            *(fedfr_baselines.PRETRAINED, privacyface_baselines.LOCAL),
            *(fedfr_baselines.CENTRALISED, privacyface_baselines.GLOBAL),
        ),
    ),
}
"""The methods, grouped by the reader's data and aim."""

METHODS: dict[str, Method] = {method.name: method for group in GROUPS.values() for method in group.methods}


def advice_lines(methods: Mapping[str, Method]) -> Iterator[str]:
    """Yield methods with their advice, group by group; methods of other packages come last."""
    width = max(map(len, methods))
    groups = {title: [method.name for method in group.methods] for title, group in GROUPS.items()}
    groups["Other packages"] = sorted(methods.keys() - METHODS.keys())
    for title, names in groups.items():
        if lines := [f"  {name:<{width}}  {methods[name].advice}".rstrip() for name in names if name in methods]:
            yield from (title, *lines, "")


# Reading a recipe's section ``method``: the method that it names, alone or with a model, and its validated options.


def find(section: Mapping[str, Any] | MethodOptions) -> Method:
    """Return the method that a recipe's section ``method`` names, alone or with a model."""
    tree, model = _separate_model(section.model_dump() if isinstance(section, MethodOptions) else section)
    name = tree.get("name")
    names = [*METHODS, *extensions.names("methods", METHODS)]
    if not isinstance(name, str):
        problem = "is missing" if name is None else f"must be the name of a method, got {name!r}"
        raise UserError("recipe.method.name", f"{problem}{choice_hint('', names)}")
    if (method := method_named(name)) is None:
        hint = choice_hint(name, names)
        own = "A method of your own needs an entry point (docs/extending.md#registration)"
        raise UserError("recipe.method.name", f"unknown method {name!r}{hint}{'' if hint[-1] == '?' else '.'} {own}")
    if model is None:
        return method
    if name not in ALGORITHMS:
        raise UserError(
            "recipe.method.model",
            f"chooses the network of an algorithm ({', '.join(ALGORITHMS)}); leave it out with {name}",
        )
    return on(name, model)


def read_method(section: Mapping[str, Any]) -> MethodOptions:
    """Validate a recipe's section ``method`` against the options of the method that it names."""
    options, (tree, _) = find(section).options, _separate_model(section)
    network, field = tree.get("network"), options.model_fields.get("network")
    keys = getattr(field.annotation, "model_fields", {}) if field is not None else {}
    if isinstance(network, Mapping) and "norm" in network and "norm" not in keys:
        problem = "replaces the BatchNorm of ResNet-18 only: other networks keep theirs, on which their papers' weights"
        raise UserError("recipe.method.network.norm", f"{problem} depend; leave it out, or use model: resnet18")
    return read_section(options, tree, "recipe.method")


def reader_of(method: Method | None) -> Callable[[Mapping[str, Any]], MethodOptions]:
    """Return the reader of a recipe's section ``method``, for a method that replaces the recipe's own one, or None."""
    return read_method if method is None else partial(read_section, method.options, root="recipe.method")


def _separate_model(section: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a section with the name of its model in ``model`` and all settings in ``network``, and that name.

    ``model: {name: timm, arch: …}`` states both at once. ``network: {name: timm, arch: …}`` is the form of earlier
    recipes; only the network of a face backbone keeps its name.
    """
    tree, network, model = dict(section), section.get("network", {}), section.get("model")
    # Other types are left to the validation of the section.
    if not isinstance(network, Mapping) or not isinstance(tree.get("name"), str):
        return tree, None if model is None else str(model)
    settings = dict(model) if isinstance(model, Mapping) else {"name": None if model is None else str(model)}
    if model is not None and not isinstance(settings.get("name"), str):
        raise UserError("recipe.method.model", f"needs a name: one of {', '.join(MODELS)}")
    name = settings["name"]
    if name not in MODELS:
        del settings["name"]
    for key in (key for key in network.keys() & settings.keys() if network[key] != settings[key]):
        place = "method.model" if key == "name" else f"method.model.{key}"
        problem = f"is {network[key]!r}, but {place} is {settings[key]!r}; leave one of them out"
        raise UserError(f"recipe.method.network.{key}", problem)
    network = {**settings, **network}
    if name is None:
        name = network.get("name")
        if tree["name"] not in ALGORITHMS or not isinstance(name, str):
            return tree, None
        if name not in MODELS:
            raise UserError("recipe.method.network.name", f"unknown model {name!r}{choice_hint(name, MODELS)}")
        if name in face.MODELS:
            return tree, None if tree["name"] in FOR_FACES else name
    tree["model"] = name
    if name in MODELS and name not in face.MODELS:
        del network["name"]
    return (tree | {"network": network} if network else tree), name
