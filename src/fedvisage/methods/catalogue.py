"""The lists: methods by name, algorithms, and the models that they train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from fedvisage import extensions
from fedvisage.errors import UserError, choice
from fedvisage.federation.method import Method
from fedvisage.methods import (
    centralised,
    colour_texture,
    conventional,
    depth_only,
    distillation,
    federated_texture,
    fedface,
    fedfr,
    fedgpad,
    fedma,
    fedpad,
    fedsis,
    fedstackfpad,
    festa,
    fine_tune,
    fused,
    pooled,
    pretrained,
    privacyface,
    privacyface_fedface,
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
from fedvisage.methods.models import adapters, face, resnet18, timm, vgg
from fedvisage.methods.models import vit as plain_vit
from fedvisage.methods.models import vit_h as hybrid

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
        timm.MODEL,
        adapters.MODEL,
        *face.MODELS.values(),
    )
}

FOR_FACES = ("fedavg",)
"""Algorithms whose bare name stands for recognition; FedAvg on FedPAD's network has FedPAD's name."""


@cache
def on(algorithm: str, model: str) -> Method:
    """Return an algorithm on a model; the same one each time."""
    return ALGORITHMS[algorithm](model_named(model))


def method_named(name: str) -> Method | None:
    """Return a method of the list, or of another package's; None if nobody has one of that name."""
    method: Method | None = METHODS.get(name) or extensions.load("methods", name, Method)
    return method


def all_methods() -> dict[str, Method]:
    """Return all methods by name, those of other packages among them."""
    return METHODS | {name: method for name in extensions.names("methods") if (method := method_named(name))}


def model_named(name: str) -> Model:
    """Return a model of the list, or of another package's."""
    model: Model | None = MODELS.get(name) or extensions.load("models", name, Model)
    if model is None:
        known = [*MODELS, *extensions.names("models")]
        raise UserError("recipe.method.model", f"{name!r} is no model{choice(name, known)}")
    return model


def _on_hybrid(algorithm: str, title: str) -> Method:
    """Return a baseline of FedSIS's Table 1 under its own name."""
    return replace(on(algorithm, "vit-h"), name=f"{algorithm}-vit-h", title=f"{title} (ViT-H)", paper=plain_vit.PAPER)


def _bare(algorithm: str) -> Method:
    """Return an algorithm on the model that its bare name stands for."""
    method = on(algorithm, face.MODEL.name if algorithm in FOR_FACES else "resnet18")
    return replace(method, title="FedAvg (recognition)", paper=face.PAPER) if algorithm in FOR_FACES else method


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(single.METHOD, fused.METHOD, fedpad.METHOD),
        *(_bare(name) for name in ALGORITHMS if name not in FOR_FACES),
        *(fedgpad.METHOD, fedma.METHOD, fedstackfpad.METHOD, pooled.METHOD, colour_texture.METHOD, depth_only.METHOD),
        federated_texture.METHOD,
        *(vit.METHOD, vit_h.METHOD, vit_h_is.METHOD),
        *(_on_hybrid("fedavg", "FedAvg"), _on_hybrid("fedprox", "FedProx"), _on_hybrid("moon", "MOON")),
        *(festa.METHOD, fedsis.METHOD, pretrained.METHOD, *map(_bare, FOR_FACES), fedface.METHOD, fedfr.METHOD),
        *(centralised.METHOD, fine_tune.METHOD, distillation.METHOD),
        *(privacyface.METHOD, conventional.METHOD, privacyface_without_noise.METHOD, privacyface_naive.METHOD),
        *(privacyface_local.METHOD, privacyface_global.METHOD, privacyface_fedface.METHOD),
    )
}
