"""Training over a transport, from the first order to the saved model: what happens where the server is."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.errors import UserError
from fedvisage.federation.account import promise_of
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.record.checkpoint import FOLDER, Checkpoints, recipe_digest
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, JsonLines
from fedvisage.federation.record.releases import Releases
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message, load_parts
from fedvisage.federation.wire.schema import Schema
from fedvisage.federation.wire.transport import Transport
from fedvisage.files import json_text, read_json
from fedvisage.methods import find, read_method
from fedvisage.progress import Reporter
from fedvisage.runs.course import Course
from fedvisage.runs.directory import METRICS, START, write_once
from fedvisage.runs.snapshots import kept_in, whole
from fedvisage.streams import scoped
from fedvisage.tasks import model, statistics
from fedvisage.tasks.counts import write_counts
from fedvisage.tasks.setup import Setup
from fedvisage.tasks.start import started
from fedvisage.tasks.task import Trained

JUDGING = ("threshold", "level", "batch", "resamples", "features", "adapt", "recognition", "snapshots")


def train(
    setup: Setup,
    out: Path,
    transport: Transport,
    schemas: Mapping[str, Schema],
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
    recipe, method = setup.recipe, setup.method
    with ExitStack() as stack:
        ledger, rounds = (stack.enter_context(closing(JsonLines(out / name))) for name in (LEDGER, ROUNDS))
        exchange = Exchange(recipe, transport, schemas, ledger, promise_of(recipe, method))
        server = _server(setup, exchange, Releases(out / "released"), first or {}, files or {})
        _begin_from_file(server, out, reporter)
        checkpoints = Checkpoints(out / FOLDER, recipe_digest(recipes.text_of(recipe)))
        course = Course(method, server, checkpoints, ledger, rounds, reporter, kept_in(out, recipe))
        finished = course.train() if adopted is None else _adopt(adopted, setup, server)
        if statistics.wanted(recipe):
            finished = statistics.with_exact_statistics(server, setup.scorer(), finished)
        trained = replace(setup.task.settle(server, finished), ended=_why_ended(server))
        trained = replace(trained, saved=replace(trained.saved, finished=whole(server, trained.saved.finished)))
        write_counts(out, trained.counts)
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


def _server(setup: Setup, exchange: Exchange, releases: Releases, first: Message, files: Mapping[str, Path]) -> Server:
    """Build the server's network, which begins with the pre-trained parts that it has, or with a file's weights."""
    recipe, method, compute = setup.recipe, setup.method, setup.compute
    with scoped(recipe.runtime.seed, "initial weights"):
        net = method.network(recipe)
    load_parts(net, {name: value for name, value in first.items() if name.split(".")[0] in net})
    compute.place(net)
    method.fix(net, recipe, files)
    server = Server(method, recipe, net, exchange, compute, releases, files)
    return server


def _begin_from_file(server: Server, out: Path, reporter: Reporter) -> None:
    """Put the weights that the recipe starts from into the network, and say what fits."""
    start = server.recipe.training.starts_from
    if start is None:
        return
    begun = started(server.file(start.file), start, server.tensors(*server.net))
    server.load(begun.weights)
    server.start = {name: begun.weights[name] for name in begun.taken}
    if not (out / START).exists():
        for line in begun.lines():
            reporter.say(line)
    write_once(out / START, json_text(begun.as_json()))


def _adopt(trained: Path, setup: Setup, server: Server) -> Message:
    """Take over the members of a finished run of which only the judging differs."""
    saved = model.load(trained)
    theirs = recipes.validate(saved.recipe, read_method)  # keys that came later have their defaults
    counted = statistics.wanted(setup.recipe)  # after training, and again for a model that has them already
    alike = training_of(recipes.tree_of(theirs), counted) == training_of(recipes.tree_of(setup.recipe), counted)
    if not alike or find(theirs.method).server is not setup.method.server:
        raise UserError(str(trained), f"was not trained as {setup.method.name} would train here")
    server.round = int(read_json(trained / METRICS)["rounds"])
    server.exchange.ledger.mark_repeated(0)  # an attempt that was killed may have left lines
    server.exchange.close_training(server.round)
    return saved.finished


def training_of(recipe: dict[str, Any], counted: bool) -> dict[str, Any]:
    """Return what of a recipe decides the trained weights: all but names, and how and on whom the result is judged.

    Where BatchNorm's statistics are ``counted`` exactly after training, it does not matter whether they were before.
    """
    tree = copy.deepcopy(recipe)
    tree.pop("title")
    for key in ("report", "tracking"):
        tree.pop(key, None)
    tree["method"].pop("name")
    for key in ("user", "user_name", "user_split"):
        tree["data"].pop(key, None)
    if tree["training"].get("statistics") in (("averaged", "exact") if counted else ("averaged",)):
        tree["training"].pop("statistics")
    for key in JUDGING:
        tree["evaluation"].pop(key, None)
    return tree
