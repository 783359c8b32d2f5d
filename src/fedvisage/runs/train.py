"""Training over a transport, from the first order to the saved model: what happens where the server is."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.errors import UserError
from fedvisage.federation.account import promise_of
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.method import Message
from fedvisage.federation.record.checkpoint import FOLDER, Checkpoints, recipe_digest
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.server import Server
from fedvisage.federation.wire.schema import Schema
from fedvisage.federation.wire.transport import Transport
from fedvisage.methods import find, options
from fedvisage.metrics.personalised import OfSite
from fedvisage.metrics.threshold import Histogram
from fedvisage.nn.precision import Compute
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.runs.course import Course
from fedvisage.streams import scoped
from fedvisage.tasks import model
from fedvisage.tasks.asking import collect_histograms
from fedvisage.tasks.pad import judge as evaluation
from fedvisage.tasks.recognition import judge as recognition
from fedvisage.tasks.recognition.pretraining import start

LEDGER, ROUNDS, METRICS = "ledger.jsonl", "rounds.jsonl", "metrics.json"
JUDGING = ("threshold", "level", "batch", "resamples", "features", "adapt", "recognition")


@dataclass(frozen=True)
class Trained:
    """What a federation leaves: the finished model, the rounds that it took, and the sites' held-out figures."""

    saved: model.SavedModel
    rounds: int
    heldout: dict[str, Any]
    personal: dict[str, dict[str, OfSite]] = field(default_factory=dict)
    """Recognition: how well the sites' own models know their people, by model and site."""
    ended: dict[str, str] = field(default_factory=dict)
    """Why there were fewer rounds than the recipe wants, a cause and a reason; empty: there were not."""


def federate(
    recipe: Recipe,
    out: Path,
    transport: Transport,
    schemas: Mapping[str, Schema],
    compute: Compute,
    reporter: Reporter,
    *,
    adopted: Path | None = None,
    first: Message | None = None,
    files: Mapping[str, Path] | None = None,
) -> Trained:
    """Train over a transport from where the run directory stands, choose thresholds at the sites, save the model.

    ``adopted`` names a finished run whose members are taken over instead of training the same ones again; ``first``
    holds pre-trained parts to start from, and ``files`` this machine's copies of files that the recipe does not name by
    their paths.
    """
    with ExitStack() as stack:
        ledger, rounds = (stack.enter_context(closing(JsonLines(out / name))) for name in (LEDGER, ROUNDS))
        releases = Releases(out / "released")
        exchange = Exchange(recipe, transport, schemas, ledger, promise_of(recipe, find(recipe.method.name)))
        server = _server(recipe, exchange, compute, releases, first or {}, files or {})
        checkpoints = Checkpoints(out / FOLDER, recipe_digest(recipes.text_of(recipe)))
        course = Course(find(recipe.method.name), server, checkpoints, ledger, rounds, reporter)
        finished = course.train() if adopted is None else _adopt(adopted, server)
        trained = replace(_settle(server, finished), ended=_why_ended(server))
        model.save(out, trained.saved)
        ledger.flush()
        rounds.flush()
    return trained


def _why_ended(server: Server) -> dict[str, str]:
    """Say for ``metrics.json`` why a run is shorter than its recipe."""
    if server.ended:
        return {"cause": "budget", "reason": server.ended}
    if server.stopped and server.round < server.recipe.training.rounds:
        return {"cause": "early-stop", "reason": "the sites' held-out EER had not improved for a while"}
    return {}


def _server(
    recipe: Recipe, exchange: Exchange, compute: Compute, releases: Releases, first: Message, files: Mapping[str, Path]
) -> Server:
    method = find(recipe.method.name)
    with scoped(recipe.runtime.seed, "initial weights"):
        net = method.network(recipe)
    start(net, first)
    compute.place(net)
    server = Server(method, recipe, net, exchange, compute, releases, files)
    if recipe.training.start is not None:
        server.load(model.start_weights(server.file(recipe.training.start), server.tensors(*net)))
    return server


def _settle(server: Server, finished: Message) -> Trained:
    """Ask the sites about the finished model, and choose thresholds from what they say."""
    histograms = collect_histograms(server, finished)
    if server.method.task == "recognition":
        return _settle_recognition(server, finished, histograms)
    thresholds = evaluation.choose_thresholds(server.method, server.recipe, histograms)
    scatter = evaluation.collect_scatter(server, finished)
    saved = model.SavedModel(recipes.tree_of(server.recipe), finished, thresholds, scatter)
    return Trained(saved, server.round, evaluation.heldout_table(histograms, thresholds))


def _settle_recognition(server: Server, finished: Message, histograms: Mapping[str, Histogram]) -> Trained:
    """Choose the threshold of a yes or no, and ask the sites about their own models if they have anybody to reject."""
    recipe, method = server.recipe, server.method
    thresholds = recognition.choose_thresholds(method, recipe, histograms)
    saved = model.SavedModel(recipes.tree_of(recipe), finished, thresholds, {}, method.task)
    judged = not method.pooled and (recipe.data.public is not None or recognition.pools(recipe))
    personal = recognition.collect_personal(server, finished) if judged else {}
    return Trained(saved, server.round, recognition.heldout_table(histograms), personal)


def _adopt(trained: Path, server: Server) -> Message:
    """Take over the members of a finished run of which only the judging differs."""
    saved = model.load(trained)
    theirs = recipes.tree_of(recipes.validate(saved.recipe, options()))  # keys that came later have their defaults
    own = recipes.tree_of(server.recipe)
    if (
        _training_of(theirs) != _training_of(own)
        or find(theirs["method"]["name"]).server is not find(own["method"]["name"]).server
    ):
        raise UserError(str(trained), f"was not trained as {server.method.name} would train here")
    server.round = int(json.loads((trained / METRICS).read_text(encoding="utf-8"))["rounds"])
    server.exchange.ledger.cut(0)  # a killed attempt may have left lines
    server.exchange.close_training(server.round)
    return saved.finished


def _training_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return what of a recipe decides the trained weights: all but names and how the result is judged."""
    tree = copy.deepcopy(recipe)
    tree.pop("title")
    tree["method"].pop("name")
    for key in JUDGING:
        tree["evaluation"].pop(key, None)
    return tree
