"""The finished model as files: weights in safetensors, and beside them all that is needed to predict with them."""

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
from fedvisage.federation.declared import Declared
from fedvisage.federation.method import TaskName
from fedvisage.federation.server import members_of
from fedvisage.federation.wire.message import Message, digest_of
from fedvisage.metrics.threshold import Threshold
from fedvisage.recipe import Recipe

WEIGHTS, SETTINGS = "model.safetensors", "model.json"
FORMAT = 3
AGAIN = "put back the two model files that a run wrote"


@dataclass(frozen=True)
class Words:
    """How the settings of a task's models are put."""

    normalisation: str
    output: str
    score: str


WORDS: dict[TaskName, Words] = {
    "pad": Words(
        "values / 255; hue, saturation and value scaled to [0, 1]",
        "a logit; its sigmoid is the probability that the face is live",
        "logit",
    ),
    "recognition": Words(
        "values / 255; the network takes them to [-1, 1]. Aligned by five points, see faces/align.py",
        "a feature; two faces are called one person if the cosine of their features is at least the threshold",
        "similarity",
    ),
}


@dataclass(frozen=True)
class SavedModel:
    """A finished model: the recipe that it follows, its weights, its thresholds by member, and the sites' scatter.

    A site's scatter says how far its held-out batches lie from each other; adaptation takes that for chance.
    """

    recipe: dict[str, Any]
    finished: Message
    thresholds: dict[str, Threshold]
    scatter: dict[str, float]
    task: TaskName = "pad"
    crops: tuple[CropRecord, ...] = ()
    """In which ways the sets that it was trained on were cropped, as far as that was known where it was written."""
    on_training: Mapping[str, Threshold] = field(default_factory=dict)
    """Thresholds from the scores of training, by which papers print figures; no decision goes by them."""


def save(run: Path, saved: SavedModel) -> None:
    """Write weights and settings; the settings name the weights' digest. A model that overflowed is none."""
    if name := first_unsound(saved.finished):
        raise RunFailed(f"{name} of the finished model is no number, or infinite: train with a smaller learning rate")
    write_tensors(run / WEIGHTS, saved.finished)
    save_settings(run, saved)


def save_settings(run: Path, saved: SavedModel) -> None:
    """Write the settings alone, of a model whose weights lie there."""
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
        **({"crops": [one.model_dump() for one in saved.crops]} if saved.crops else {}),
        "recipe": recipe,
    }
    write_json(run / SETTINGS, settings)


def _by_member(thresholds: Mapping[str, Threshold], score: str) -> dict[str, Any]:
    return {
        name: {score: t.value, "rule": t.rule, "far": t.far, "frr": t.frr} for name, t in sorted(thresholds.items())
    }


def load(directory: Path) -> SavedModel:
    """Read a model back and check that weights and settings belong together, and that every number is one."""
    path = directory / SETTINGS
    if not path.exists():
        raise UserError(str(path), "does not exist; give the directory of a finished run")
    settings = read_json(path, AGAIN)
    try:
        if settings["format"] != FORMAT:
            raise UserError(str(path), f"has format {settings['format']}, this version reads {FORMAT}: run again")
        recipe, digest = dict(settings["recipe"]), settings["weights_sha256"]
        scatter = {str(name): float(value) for name, value in settings["heldout_scatter"].items()}
        task: TaskName = "recognition" if settings.get("task") == "recognition" else "pad"
        crops = _crops(settings.get("crops", []))
        thresholds, on_training = (
            {name: _threshold(t, WORDS[task].score) for name, t in found.items()}
            for found in (settings["thresholds"], settings.get("thresholds_on_training", {}))
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is not the settings of a model ({_what(error)}); {AGAIN}") from error
    finished, _ = read_tensors(directory / WEIGHTS)
    if digest_of(finished) != digest:
        raise UserError(str(directory / WEIGHTS), f"is damaged: its digest is not the one in {SETTINGS}")
    if name := first_unsound(finished):
        raise UserError(str(directory / WEIGHTS), f"{name} has values that are no numbers, or infinite; {AGAIN}")
    return SavedModel(recipe, finished, thresholds, scatter, task, crops, on_training)


def first_unsound(weights: Message) -> str:
    """Return the name of the first tensor with a value that is no number, or infinite; empty when there is none."""
    unsound = (name for name, one in sorted(weights.items()) if one.is_floating_point() and not one.isfinite().all())
    return next(unsound, "")


def _threshold(said: Mapping[str, Any], score: str) -> Threshold:
    """Read a threshold, a number, and its error rates, shares or nothing."""
    rates = [None if said[name] is None else float(said[name]) for name in ("far", "frr")]
    if not all(rate is None or 0 <= rate <= 1 for rate in rates):
        raise ValueError("a threshold's far or frr is no share")
    return Threshold(float(said[score]), str(said["rule"]), *rates)


def _crops(said: Any) -> tuple[CropRecord, ...]:
    """Read how crops were made."""
    try:
        return tuple(CropRecord.model_validate(one) for one in said)
    except ValidationError as error:
        raise ValueError(f"crops: {error.errors(include_url=False)[0]['msg']}") from error


def _what(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


# Whether a model's weights are those of the network that its recipe describes, told before the network is built.
#
# A model is a file from anywhere. The network is first built without memory for its weights, so that a recipe which
# asks
# for one that is far too large costs nothing.


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
