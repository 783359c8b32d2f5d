"""Which weights of a run are exported, as what, and what torch says of crops with them."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.datasets.importers.cropping import record_of
from fedvisage.device.config import Description, OperatingPoint
from fedvisage.errors import UserError
from fedvisage.federation.declared import Member
from fedvisage.federation.members import members_of
from fedvisage.federation.wire.message import Message, digest_of, load_parts
from fedvisage.files import json_key
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.inputs import prepare
from fedvisage.streams import torch_rng
from fedvisage.tasks.finished import FinishedModel
from fedvisage.tasks.scoring import as_logits, mean_score
from fedvisage.version import VERSION

PRIVATE = ("data",)
"""Sections of a recipe that name places of the machine that trained."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The members that become one graph, by which name, and their threshold."""

    weights: list[Message]
    name: str
    threshold: Threshold | None


def choose(model: FinishedModel, name: str) -> Chosen:
    """Return what of a run is exported: its model, all whose scores are averaged, or the one that is named."""
    members, method = members_of(model.saved.finished), model.setup.method
    if method.members == "each":
        if name not in members:
            raise UserError("--member", f"this run has one model a site; choose one of {', '.join(sorted(members))}")
        members = {name: members[name]}
    elif name:
        raise UserError("--member", "this run has one model; leave --member out")
    threshold = model.thresholds.get(name)
    if threshold is None and model.task == "pad":
        raise UserError("threshold", "the model was judged with target-eer, an oracle; a device needs one of the sites")
    return Chosen([one for _, one in sorted(members.items())], name, threshold)


def described(model: FinishedModel, chosen: Chosen) -> Description:
    """Return what the graph will say of itself."""
    method, threshold = model.setup.method, chosen.threshold
    return Description(
        task=method.task,
        method=method.name,
        member=chosen.name,
        size=model.recipe.input.size,
        model_sha256=digest_of(model.saved.finished),
        recipe_sha256=hashlib.sha256(json_key(model.saved.recipe).encode()).hexdigest(),
        threshold=None if threshold is None else point_of(threshold),
        crop=record_of("face", aligned=method.task == "recognition"),
        trained_on=model.saved.crops,
        drawn=method.spread is not None,
        version=VERSION,
    )


def point_of(threshold: Threshold) -> OperatingPoint:
    """Return a threshold as a device reads it."""
    return OperatingPoint(value=threshold.value, rule=threshold.rule, far=threshold.far, frr=threshold.frr)


def reference(model: FinishedModel, chosen: Chosen, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return torch's logits or unit embeddings of crops (N×S×S×3), in float32 on the processor."""
    method, recipe = model.setup.method, model.recipe
    user = method.user if method.as_graph is None or method.spread is None else method.as_graph
    net = copy.deepcopy(model.scorer.net).cpu().eval()
    ready = prepare(torch.from_numpy(crops).permute(0, 3, 1, 2), recipe.input.colour, torch.device("cpu"))
    found = []
    for weights in chosen.weights:
        load_parts(net, weights)
        with torch.inference_mode():
            found.append(user(Member(net, ready, torch_rng(recipe.runtime.seed, "inference"), recipe)).float())
    if method.task == "recognition":
        return np.asarray(torch.nn.functional.normalize(found[0].double()).numpy())
    logits = [as_logits(one) for one in found]
    return mean_score(logits) if len(logits) > 1 else logits[0]
