"""The files of a finished model: weights in safetensors, and a JSON file with everything else that prediction needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json, read_tensors, write_json, write_tensors
from fedvisage.data.crops import CropRecord
from fedvisage.faces.cropping import MARGIN, record_of
from fedvisage.federation.method import RESULT, START, Method, TaskName
from fedvisage.federation.server import members_of
from fedvisage.federation.wire.message import Message, digest_of
from fedvisage.methods import MODELS
from fedvisage.methods.models.model import constant_weights
from fedvisage.metrics.operating_point import ErrorCurves, read_curves
from fedvisage.metrics.threshold import FIXED, Threshold
from fedvisage.recipe import Recipe
from fedvisage.starts.start import origin_of
from fedvisage.tasks.seal import SETTINGS, WEIGHTS

FORMAT = 3
AGAIN = "restore the two model files that the run wrote"


@dataclass(frozen=True)
class SettingsTexts:
    """The texts of a task in the settings file of its models."""

    normalisation: str
    output: str
    score: str


WORDS: dict[TaskName, SettingsTexts] = {
    "pad": SettingsTexts(
        "values / 255; hue, saturation and value scaled to [0, 1]",
        "a logit; its sigmoid is the probability that the face is live",
        "logit",
    ),
    "recognition": SettingsTexts(
        "values / 255; the network takes them to [-1, 1]. Aligned by five points, see faces/align.py",
        "a feature; two faces are called one person if the cosine of their features is at least the threshold",
        "similarity",
    ),
}


@dataclass(frozen=True)
class SavedModel:
    """A finished model: its recipe, its weights, its thresholds by member, and the sites' scatter.

    A site's scatter is the distance between its held-out batches; adaptation treats distances of that size as chance.
    """

    recipe: dict[str, Any]
    finished: Message
    thresholds: dict[str, Threshold]
    scatter: dict[str, float]
    task: TaskName = "pad"
    crops: tuple[CropRecord, ...] = ()
    """The crop records of the training sets, as far as the run knew them."""
    on_training: Mapping[str, Threshold] = field(default_factory=dict)
    """Thresholds from scores of training images, for metrics by the rules of papers; decisions do not use them."""
    origin: Mapping[str, Any] | None = None
    """A converted start's metadata about its source and licence; None for a trained model."""
    curves: ErrorCurves | None = None
    """The sites' averaged error rates, for operating points that are chosen later."""


def save(run: Path, saved: SavedModel) -> None:
    """Write weights and settings, which contain the digest of the weights; raise an error for non-finite weights."""
    if name := first_nonfinite(saved.finished):
        raise RunFailed(f"{name} of the finished model is NaN or infinite: train with a smaller learning rate")
    write_tensors(run / WEIGHTS, saved.finished)
    save_settings(run, saved)


def save_settings(run: Path, saved: SavedModel) -> None:
    """Write only the settings of a model, next to its weights."""
    recipe = saved.recipe
    words = WORDS[saved.task]
    settings = {
        "format": FORMAT,
        **({} if saved.task == "pad" else {"task": saved.task}),
        "weights_sha256": digest_of(saved.finished),
        "input": {
            "size": recipe["input"]["size"],
            "colour_order": "RGB",
            "channels": recipe["input"]["colour"],
            "normalisation": words.normalisation,
        },
        "output": words.output,
        "thresholds": _by_member(saved.thresholds, words.score),
        **({"thresholds_on_training": _by_member(saved.on_training, words.score)} if saved.on_training else {}),
        "heldout_scatter": dict(sorted(saved.scatter.items())),
        **({"curves": saved.curves.model_dump(mode="json")} if saved.curves is not None else {}),
        **({"crops": [crop.model_dump() for crop in saved.crops]} if saved.crops else {}),
        "recipe": recipe,
    }
    write_json(run / SETTINGS, settings)


def _by_member(thresholds: Mapping[str, Threshold], score: str) -> dict[str, Any]:
    return {
        name: {score: t.value, "rule": t.rule, "far": t.far, "frr": t.frr} for name, t in sorted(thresholds.items())
    }


GIVE = "give the directory of a finished run or of an export"


def load(directory: Path) -> SavedModel:
    """Read a model, and check that weights and settings belong together and that all weights are finite."""
    path = directory / SETTINGS
    if not directory.is_dir():
        raise UserError(str(directory), f"directory not found; {GIVE}")
    if (directory / "cells").is_dir():
        raise UserError(str(directory), "is a study; give one of the runs in its folder cells")
    if not path.exists():
        raise UserError(str(path), f"does not exist; {GIVE}")
    settings = read_json(path, AGAIN)
    try:
        if settings["format"] != FORMAT:
            raise UserError(str(path), f"has format {settings['format']}, this version reads {FORMAT}: run again")
        recipe, digest = dict(settings["recipe"]), settings["weights_sha256"]
        scatter = {str(name): float(value) for name, value in settings["heldout_scatter"].items()}
        task: TaskName = "recognition" if settings.get("task") == "recognition" else "pad"
        crops = tuple(CropRecord.model_validate(record) for record in settings.get("crops", []))
        curves = read_curves(settings.get("curves"))
        thresholds, on_training = (
            {name: _threshold(t, WORDS[task].score) for name, t in entries.items()}
            for entries in (settings["thresholds"], settings.get("thresholds_on_training", {}))
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is not the settings of a model ({_what(error)}); {AGAIN}") from error
    finished, _ = read_tensors(directory / WEIGHTS)
    if digest_of(finished) != digest:
        raise UserError(str(directory / WEIGHTS), f"is damaged: its digest is not the one in {SETTINGS}")
    if name := first_nonfinite(finished):
        raise UserError(str(directory / WEIGHTS), f"{name} has NaN or infinite values; {AGAIN}")
    return SavedModel(recipe, finished, thresholds, scatter, task, crops, on_training, curves=curves)


def load_start(path: Path) -> SavedModel:
    """Read a converted start as a model without training; a detector decides at even odds."""
    finished, about = read_tensors(path)
    origin = origin_of(about)
    name = "" if origin is None else origin["network"].get("name")
    if origin is None or name not in MODELS:
        raise UserError(
            str(path), "is not a whole network from `fedvisage model convert`; give a run's directory, or such a file"
        )
    pad = MODELS[name].task == "pad"
    recipe: dict[str, Any] = {
        "method": {"name": "fedavg", "network": origin["network"]},
        "data": {"sites": {"published": "unknown"}},
        "training": {"rounds": 1},
        "evaluation": {"threshold": "fixed"} if pad else {},
    }
    try:
        recipe["input"] = {key: origin["input"][key] for key in ("size", "colour")}
        crop = record_of("face", aligned=not pad, margin=float(origin["input"].get("margin", MARGIN)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(str(path), f"has invalid metadata ({_what(error)}); convert the weights again") from error
    thresholds = {"": Threshold(FIXED, "fixed", None, None)} if pad else {}
    return SavedModel(recipe, finished, thresholds, {}, MODELS[name].task, (crop,), origin=origin)


def first_nonfinite(weights: Message) -> str:
    """Return the name of the first tensor with NaN or infinite values, or an empty text."""
    unsound = (
        name for name, tensor in sorted(weights.items()) if tensor.is_floating_point() and not tensor.isfinite().all()
    )
    return next(unsound, "")


def _threshold(values: Mapping[str, Any], score: str) -> Threshold:
    """Read a threshold and its error rates, which are shares or missing."""
    far, frr = (None if values[name] is None else float(values[name]) for name in ("far", "frr"))
    if not all(rate is None or 0 <= rate <= 1 for rate in (far, frr)):
        raise ValueError("a threshold's far or frr is not in [0, 1]")
    return Threshold(float(values[score]), str(values["rule"]), far, frr)


def _what(error: Exception) -> str:
    if isinstance(error, ValidationError):  # of crop records or curves
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def check_fits(directory: Path, finished: Message, method: Method, recipe: Recipe) -> None:
    """Refuse a model whose weights do not match the names, shapes and types of its network's tensors.

    A model file may come from any source. The network is first built without memory for its weights, so that a recipe
    with a far too large network costs nothing.
    """
    outline = _outline(directory / SETTINGS, method, recipe)
    expected = {
        f"{part}.{name}": value
        for part, module in outline.items()
        if part in method.finished
        for name, value in module.state_dict().items()
    } | constant_weights(outline)
    path, members = directory / WEIGHTS, members_of(finished)
    accepted = {START, RESULT} if recipe.training.keep == "average" else {""}
    if not members or (not method.several_models and set(members) != accepted):
        raise UserError(str(path), f"does not contain a single model, which method {method.name} requires")
    for member, weights in sorted(members.items()):
        if problem := _problem(weights, expected):
            owner = f"of {member}: " if member else ""
            raise UserError(
                str(path), f"{owner}{problem}; these weights do not belong to the network of the recipe in model.json"
            )


def _outline(settings: Path, method: Method, recipe: Recipe) -> nn.ModuleDict:
    """Return the network with shapes and types, and if possible without values."""
    try:
        with torch.device("meta"):
            return method.network(recipe)
    except NotImplementedError:  # the network reads its initial weights
        return method.network(recipe)
    except (RuntimeError, ValueError, ArithmeticError, AssertionError) as error:
        raise UserError(str(settings), f"describes a network that cannot be built: {error}") from error


def _problem(weights: Message, expected: Message) -> str:
    if lacking := sorted(expected.keys() - weights.keys()):
        return f"lacks {lacking[0]}"
    if extra := sorted(weights.keys() - expected.keys()):
        return f"has {extra[0]}, which is unknown to the network"
    for name, value in expected.items():
        have, want = (
            (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in (weights[name], value)
        )
        if have != want:
            return f"{name} is {have[0]} {have[1]}, but the network expects {want[0]} {want[1]}"
    return ""
