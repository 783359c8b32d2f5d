"""Recipes of paper size have the hyper-parameters that the papers print."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedvisage as fv
from fedvisage.methods import find
from fedvisage.nn.adapters import LowRank
from fedvisage.recipe.evaluation import Adapt

FEDSIS: dict[str, Any] = {  # §4.2, benchmark 1: the same for all transformers
    "input.size": 224, "training.rounds": 200, "training.local.epochs": 1, "training.batch.default": 6,
    "training.optimizer.name": "adam", "training.optimizer.lr": 1e-6, "training.optimizer.weight_decay": 1e-6,
    "method.network.width": 768, "method.network.depth": 12, "method.network.heads": 12,
}  # fmt: skip
PRIVACYFACE: dict[str, Any] = {  # §4.1: the same for all methods beside PrivacyFace
    "input.size": 112, "training.rounds": 10, "training.batch.default": 512, "training.optimizer.name": "sgd",
    "training.optimizer.lr": 1e-3, "training.optimizer.weight_decay": 5e-4, "training.optimizer.momentum": 0.0,
    "method.network.name": "iresnet18", "method.network.embedding": 512,
}  # fmt: skip
FOLDER = Path(__file__).parents[2] / "recipes" / "paper"
PRINTED: dict[str, dict[str, Any]] = {
    "fedpad": {  # §IV-A4
        "input.size": 256, "training.local.epochs": 3, "training.batch.default": 64,
        "training.optimizer.name": "adam", "training.optimizer.lr": 1e-2, "method.weight": "uniform",
    },
    "fedgpad": {  # §IV-A4 and Algorithm 2; a batch of 16 is read as 16 of each class
        "input.size": 256, "training.local.batches": 1, "training.batch.default": 32, "training.sampling": "balanced",
        "training.optimizer.name": "adam", "training.optimizer.lr": 1e-2, "training.optimizer.state": "fresh",
    },
    "fedsis": FEDSIS | {
        "method.unify_every": 10, "method.inference.draws": 1, "method.inference.blocks": "sampled",
    },
    "vit": FEDSIS, "vit-h": FEDSIS, "festa": FEDSIS | {"method.unify_every": 10},
    "vit-h-is": FEDSIS | {"method.inference.draws": 1, "method.inference.blocks": "sampled"},
    "fedavg-vit-h": FEDSIS | {"training.rounds": 20, "training.local.epochs": 10},  # averaged after ten epochs
    "fedfr": {  # "Implementation Details"
        "input.size": 112, "training.rounds": 30, "training.local.epochs": 4, "training.optimizer.name": "sgd",
        "training.optimizer.lr": 1e-3, "training.optimizer.weight_decay": 5e-4, "method.scale": 30.0,
        "method.weight": "examples",
        "method.margin": 0.4, "method.hard_negatives": 0.4, "method.cosface": 1.0, "method.contrast.weight": 5.0,
        "method.contrast.temperature": 0.5, "method.customisation.weight": 10.0, "method.customisation.balance": 0.7,
        "method.customisation.exponent": 3.0, "method.network.name": "sphere64", "method.network.embedding": 512,
    },
    "privacyface": PRIVACYFACE | {
        "method.rho": 1.3, "method.minimum": 512, "method.queries": 1, "method.epsilon": 1.0, "method.loss": "arcface",
        "method.public_identities": 100,
    },
    "privacyface-without-noise": PRIVACYFACE | {
        "method.rho": 1.3, "method.minimum": 512, "method.queries": 1, "method.public_identities": 100,
    },
    "conventional": PRIVACYFACE | {"method.public_identities": 100, "method.loss": "arcface"},
    "fedface-groups": PRIVACYFACE | {  # A.3: the values that FedFace's authors recommend
        "method.spreadout.weight": 10.0, "method.spreadout.margin": 0.9,
    },
    "pretrained": PRIVACYFACE,
    "fedavg-recognition": {  # FedFR's baseline, "Implementation Details"
        "input.size": 112, "training.rounds": 30, "training.local.epochs": 4, "training.optimizer.name": "sgd",
        "training.optimizer.lr": 1e-3, "training.optimizer.weight_decay": 5e-4, "method.scale": 30.0,
        "method.margin": 0.4, "method.network.name": "sphere64", "method.network.embedding": 512,
    },
    "foundpad": {  # WACV Workshops 2025, "Implementation Details"; 40 epochs are 40 rounds of one
        "input.size": 224, "training.rounds": 40, "training.local.epochs": 1, "training.batch.default": 512,
        "training.optimizer.lr": 1e-3, "method.network.rank": 8, "method.network.on": ("attention",),
        "training.augment.brightness": 0.1, "training.augment.contrast": 0.1, "training.augment.saturation": 0.1,
        "training.augment.hue": 0.1, "training.augment.gamma.least": 0.8, "training.augment.gamma.most": 1.8,
    },
}  # fmt: skip
VALUES = [(recipe, key, value) for recipe, values in PRINTED.items() for key, value in values.items()]


@pytest.mark.parametrize(("recipe", "key", "value"), VALUES, ids=[f"{name} {key}" for name, key, _ in VALUES])
def test_a_recipe_has_the_printed_value(recipe: str, key: str, value: object) -> None:
    actual: Any = fv.load(FOLDER / f"{recipe}.yaml")
    for name in key.split("."):
        actual = getattr(actual, name)
    assert actual == value


def test_delta_of_privacyface_follows_from_seven_thousand_people() -> None:
    recipe = fv.load(FOLDER / "privacyface.yaml")
    assert recipe.method.delta == pytest.approx(7000**-1.1, rel=0.01)  # type: ignore[attr-defined]


def test_adapters_of_foundpad_are_scaled_by_alpha_over_the_root_of_the_rank() -> None:
    recipe = fv.load(FOLDER / "foundpad.yaml")
    with torch.device("meta"):
        net = find(recipe.method).network(recipe)
    adapters = [piece for piece in net.modules() if isinstance(piece, LowRank)]
    assert [piece.scale for piece in adapters] == pytest.approx([8 / 8**0.5] * len(adapters))
    assert len(adapters) == 2 * 12, "qkv and output of the attention of each block"


def test_adaptation_steps_at_the_printed_rate() -> None:
    assert Adapt().lr == 5e-3
