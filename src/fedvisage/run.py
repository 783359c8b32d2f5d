"""A run: from a recipe to a run directory. The one place that wires data, sites, transport, server and judgement."""

from __future__ import annotations

import copy
import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedvisage import environment, evaluation, model
from fedvisage import recipe as recipes
from fedvisage.errors import UserError
from fedvisage.federation.checkpoint import Checkpoints, recipe_digest
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.ledger import JsonLines, read_lines
from fedvisage.federation.message import digest_of
from fedvisage.federation.method import Message, Method
from fedvisage.federation.scoring import Scorer, members_of
from fedvisage.federation.server import Server
from fedvisage.federation.store import SiteStore
from fedvisage.federation.transport import LocalTransport
from fedvisage.federation.turn import SiteDesk, Workspace
from fedvisage.files import needing_room, read_tensors, sweep, write_atomically, write_tensors
from fedvisage.gather import Gathered, gather
from fedvisage.methods import find
from fedvisage.metrics.scores import write_scores
from fedvisage.nn.precision import Compute, choose
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.rejudge import summary
from fedvisage.report.page import write_report
from fedvisage.report.tensorboard import write_events
from fedvisage.settings import Federation
from fedvisage.streams import scoped
from fedvisage.training import Course

RECIPE, ENVIRONMENT, METRICS, SCORES, FEATURES = (
    "recipe.yaml", "environment.json", "metrics.json", "scores.csv", "features.safetensors",
)  # fmt: skip
JUDGING = ("threshold", "level", "batch", "resamples", "features", "adapt")
DATA = "data.json"
LEDGER, ROUNDS, REPORT = "ledger.jsonl", "rounds.jsonl", "report.html"


def run_and_report(recipe: Recipe, out: Path, cache: Path, console: Console, *, resume: bool = False) -> dict[str, Any]:
    """Run a recipe, write its report, and print the headline figures."""
    metrics = run(recipe, out, cache, Reporter(console), resume=resume)
    if not (out / REPORT).exists():
        write_events(out)
        write_report(out)
    if metrics["user"] is not None:
        console.print(summary(metrics), markup=False, soft_wrap=True)
    console.print(f"report: {out / REPORT}", markup=False, soft_wrap=True)
    return metrics


def run(
    recipe: Recipe, out: Path, cache: Path, reporter: Reporter, *, resume: bool = False, trained: Path | None = None
) -> dict[str, Any]:
    """Train and judge what a recipe says, and return the figures; everything lies in ``out`` afterwards.

    ``trained`` names a finished run whose members are judged instead of training the same ones again.
    """
    done = _finished(out, recipes.text_of(recipe), resume)
    if done is not None:
        reporter.say(f"{out} is finished already; nothing to do")
        return done
    torch.set_num_threads(recipe.runtime.threads)
    compute = choose(recipe.runtime.device, recipe.runtime.precision)
    method = find(recipe.method.name)
    _check_fits(recipe, method)
    data = gather(recipe, method, cache, recipe.runtime.threads, reporter.say)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out), needing_room(out), ExitStack() as stack:
        if (done := _finished(out, recipes.text_of(recipe), resume=True)) is not None:
            return done  # by another process, while this one gathered its data
        sweep(out)
        _write_once(out / RECIPE, recipes.text_of(recipe))  # first: it makes the directory a run
        _write_or_compare(out / DATA, {**data.digests, **_start_digest(recipe)})
        _write_once(out / ENVIRONMENT, _json(environment.describe(compute, recipe.runtime.threads)))
        ledger, rounds = (stack.enter_context(closing(JsonLines(out / name))) for name in (LEDGER, ROUNDS))
        server = _server(recipe, out, data, compute, ledger)
        checkpoints = Checkpoints(out / "checkpoints", recipe_digest(recipes.text_of(recipe)))
        course = Course(server, checkpoints, ledger, rounds, reporter)
        finished = course.train() if trained is None else _adopt(trained, server)
        metrics = _judge(out, server, finished, data, compute)
        ledger.flush()
        rounds.flush()
        write_atomically(out / METRICS, _json({**metrics, **_costs(out)}).encode())
    return json.loads((out / METRICS).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _check_fits(recipe: Recipe, method: Method) -> None:
    """Refuse options that this method would have to ignore."""
    if method.pooled and recipe.federation != Federation():
        raise UserError("recipe.federation", f"{method.name} merges all sites into one; leave this section out")
    if method.pooled and recipe.training.batch.per_site:
        raise UserError("recipe.training.batch.per_site", f"{method.name} merges all sites into one; leave this out")
    if recipe.evaluation.features and method.features is None:
        raise UserError("recipe.evaluation.features", f"{method.name} has no features to show; leave this out")


def _server(recipe: Recipe, out: Path, data: Gathered, compute: Compute, ledger: JsonLines) -> Server:
    method = find(recipe.method.name)
    workspace = Workspace(method, recipe, compute)
    desks = [
        SiteDesk(name, site.train, site.heldout, SiteStore(out / "sites" / name), workspace)
        for name, site in data.sites.items()
    ]
    with scoped(recipe.runtime.seed, "initial weights"):
        net = method.network(recipe)
    compute.place(net)
    server = Server(method, recipe, net, Exchange(recipe, LocalTransport(desks), workspace.schemas, ledger), compute)
    if recipe.training.start is not None:
        server.load(model.start_weights(Path(recipe.training.start), server.tensors(*net)))
    return server


def _adopt(trained: Path, server: Server) -> Message:
    """Take over the members of a finished run of which only the judging differs."""
    saved = model.load(trained)
    theirs, own = saved.recipe, recipes.tree_of(server.recipe)
    if _training_of(theirs) != _training_of(own) or find(theirs["method"]["name"]).server is not server.method.server:
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
        tree["evaluation"].pop(key)
    return tree


def _judge(out: Path, server: Server, finished: Message, data: Gathered, compute: Compute) -> dict[str, Any]:
    """Choose thresholds at the sites, write the model, score the user, and return what goes into metrics.json."""
    recipe, method = server.recipe, server.method
    histograms = evaluation.collect_histograms(server, finished)
    thresholds = evaluation.choose_thresholds(method, recipe, histograms)
    scatter = evaluation.collect_scatter(server, finished)
    saved = model.SavedModel(recipes.tree_of(recipe), finished, thresholds, scatter)
    model.save(out, saved)
    metrics: dict[str, Any] = {
        "method": method.name,
        "task": method.task,
        "sites": sorted(recipe.data.sites),
        "user": recipe.data.user_name if data.user is not None else None,
        "seed": recipe.runtime.seed,
        "rounds": server.round,
    }
    if data.user is not None:
        scorer = Scorer(method, recipe, compute)
        judged = evaluation.judge(scorer, saved, data.user, recipe.data.user_name)
        write_scores(out / SCORES, judged.scores)
        metrics |= judged.figures
        if recipe.evaluation.features:
            _write_features(out, scorer, finished, data, recipe)
    return metrics | {"sites_heldout": evaluation.heldout_table(histograms, thresholds)}


def _write_features(out: Path, scorer: Scorer, finished: Message, data: Gathered, recipe: Recipe) -> None:
    """Keep features of some images of every set for the t-SNE figures: possible in a simulation only.

    Where a run has one model a site, they are those of the first site's.
    """
    member, weights = next(iter(sorted(members_of(finished).items())))
    scorer.load(weights)
    views = {name: site.heldout for name, site in data.sites.items()}
    views |= {recipe.data.user_name: data.user} if data.user is not None else {}
    features, labels, sites = evaluation.features_of(scorer, views, recipe)
    meta = json.dumps({"sites": list(views), "model": member})
    write_tensors(out / FEATURES, {"features": features, "label": labels, "site": sites}, meta)


def _costs(out: Path) -> dict[str, Any]:
    """Add up what the run took; bytes are counted from the ledger."""
    ledger, rounds = read_lines(out / LEDGER), read_lines(out / ROUNDS)
    return {
        "bytes_up": sum(row["bytes"] for row in ledger if row["direction"] == "up"),
        "bytes_down": sum(row["bytes"] for row in ledger if row["direction"] == "down"),
        "seconds": round(sum(row["seconds"] for row in rounds), 3),
        "peak_rss_mb": environment.peak_rss_mb(),
    }


def _finished(out: Path, text: str, resume: bool) -> dict[str, Any] | None:
    """Return a finished run's figures; refuse a directory that is in use for something else."""
    if not out.exists() or (out.is_dir() and all(path.name.startswith(".") for path in out.iterdir())):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file; --out names a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "holds no run that could be resumed")
    if (out / RECIPE).read_text(encoding="utf-8") != text:
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Hold the run directory, so that a process that outlived its run cannot write into it beside another."""
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(str(out), "is in use by another process") from error
        yield


def _write_once(path: Path, text: str) -> None:
    if not path.exists():
        write_atomically(path, text.encode())


def _write_or_compare(path: Path, digests: dict[str, str]) -> None:
    """Record what the data was, and refuse to go on with other data than a run began with."""
    if not path.exists():
        write_atomically(path, _json(digests).encode())
    found = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(name for name in found.keys() | digests.keys() if found.get(name) != digests.get(name))
    if changed:
        raise UserError(changed[0], f"is not the data that the run in {path.parent} began with; start anew elsewhere")


def _start_digest(recipe: Recipe) -> dict[str, str]:
    start = recipe.training.start
    return {} if start is None else {"training.start": digest_of(read_tensors(Path(start))[0])}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
