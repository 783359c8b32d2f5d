"""A run: from a recipe to a run directory. The one place that wires data, sites, transport, server and judgement."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.errors import UserError
from fedvisage.federation.account import figures_of
from fedvisage.federation.compatible import check_protection
from fedvisage.federation.desk import SiteDesk, Workspace
from fedvisage.federation.local import LocalTransport
from fedvisage.federation.members import members_of
from fedvisage.federation.method import Message, Method, Task
from fedvisage.federation.record.checkpoint import generations_of
from fedvisage.federation.record.ledger import privacy_of, read_lines
from fedvisage.federation.record.store import Shelf, SiteStore
from fedvisage.federation.wire.message import digest_of
from fedvisage.federation.wire.schema import Schema
from fedvisage.files import locked, needing_room, read_tensors, sweep, write_atomically, write_tensors
from fedvisage.methods import find, options
from fedvisage.metrics.scores import write_scores
from fedvisage.nn.precision import Compute, choose
from fedvisage.progress import Reporter
from fedvisage.recipe import Federation, Recipe
from fedvisage.report.page import write_report
from fedvisage.report.tensorboard import write_events
from fedvisage.runs import environment
from fedvisage.runs.rejudge import summary
from fedvisage.runs.train import LEDGER, METRICS, ROUNDS, Trained, federate
from fedvisage.tasks.opened import Gathered, Gathering
from fedvisage.tasks.pad import judge as evaluation
from fedvisage.tasks.pad.data import gather
from fedvisage.tasks.recognition import judge as recognition
from fedvisage.tasks.recognition.data import PUBLIC, check_recognition, gather_identities, settled
from fedvisage.tasks.recognition.pretraining import pretrained
from fedvisage.tasks.scoring import Scorer

RECIPE, ENVIRONMENT, SCORES, FEATURES = "recipe.yaml", "environment.json", "scores.csv", "features.safetensors"
DATA, REPORT, SITES = "data.json", "report.html", "sites"

GATHERING: Mapping[Task, Gathering] = {"pad": gather, "recognition": gather_identities}

Training = Callable[[Recipe, Path, Gathered, Compute, Reporter], Trained]
"""How a run trains: with all sites in this process, with other machines, or not at all."""


def run_and_report(
    recipe: Recipe,
    out: Path,
    cache: Path,
    console: Console,
    *,
    resume: bool = False,
    training: Training | None = None,
    gathering: Gathering | None = None,
) -> dict[str, Any]:
    """Run a recipe, write its report, and print the headline figures."""
    metrics = run(recipe, out, cache, Reporter(console), resume=resume, training=training, gathering=gathering)
    if not (out / REPORT).exists():
        write_events(out)
        write_report(out)
    if metrics["user"] is not None:
        console.print(summary(metrics), markup=False, soft_wrap=True)
    console.print(f"report: {out / REPORT}", markup=False, soft_wrap=True)
    return metrics


def run(
    recipe: Recipe,
    out: Path,
    cache: Path,
    reporter: Reporter,
    *,
    resume: bool = False,
    training: Training | None = None,
    gathering: Gathering | None = None,
) -> dict[str, Any]:
    """Train and judge what a recipe says, and return the figures; everything lies in ``out`` afterwards.

    ``training`` says where the sites are (by default in this process), ``gathering`` whose data is opened here.
    """
    method = find(recipe.method.name)
    if method.task == "recognition":
        recipe = settled(recipe, cache, recipe.runtime.threads, reporter.say)
    done = _finished(out, recipe, resume)
    if done is not None:
        reporter.say(f"{out} is finished already; nothing to do")
        return done
    if (warning := method.warning(recipe)) is not None:
        reporter.say(f"warning: {warning}")
    torch.set_num_threads(recipe.runtime.threads)
    compute = choose(recipe.runtime.device, recipe.runtime.precision)
    _check_fits(recipe, method)
    data = (gathering or GATHERING[method.task])(recipe, method, cache, recipe.runtime.threads, reporter.say)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out), needing_room(out):
        if (done := _finished(out, recipe, resume=True)) is not None:
            return done  # by another process, while this one gathered its data
        sweep(out)
        _write_once(out / RECIPE, recipes.text_of(recipe))  # first: it makes the directory a run
        _write_or_compare(out / DATA, {**data.digests, **_start_digest(recipe)})
        _write_once(out / ENVIRONMENT, _json(environment.describe(compute, recipe.runtime.threads)))
        if recipe.training.pretrain is not None and training is None:
            data = replace(data, first=_first(recipe, data, compute, cache, reporter))
        trained = (training or train_here)(recipe, out, data, compute, reporter)
        metrics = _judge(out, recipe, trained, data, compute)
        write_atomically(out / METRICS, _json({**metrics, **_costs(out)}).encode())
    return json.loads((out / METRICS).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _check_fits(recipe: Recipe, method: Method) -> None:
    """Refuse options that this method would have to ignore."""
    if method.pooled and recipe.federation != Federation():
        raise UserError("recipe.federation", f"{method.name} merges all sites into one; leave this section out")
    if method.pooled and recipe.training.batch.per_site:
        raise UserError("recipe.training.batch.per_site", f"{method.name} merges all sites into one; leave this out")
    check_protection(recipe, method)
    noised = method.noised(recipe)  # this also refuses settings under which noise would protect nothing
    if recipe.privacy.epsilon is not None and not (method.releases or noised):
        raise UserError("recipe.privacy", f"{method.name} releases nothing that noise protects; leave this section out")
    if method.task == "recognition":
        check_recognition(recipe)
    elif recipe.data.public is not None or recipe.training.pretrain is not None or recipe.evaluation.recognition:
        raise UserError("recipe.method", f"{method.name} detects attacks; data.public, training.pretrain and "
                        "evaluation.recognition are for recognition")  # fmt: skip
    if recipe.evaluation.features and method.features is None:
        raise UserError("recipe.evaluation.features", f"{method.name} has no features to show; leave this out")


def train_here(recipe: Recipe, out: Path, data: Gathered, compute: Compute, reporter: Reporter) -> Trained:
    """Train with all sites in this process."""
    desks, schemas = _desks(recipe, out, data, compute)
    return federate(recipe, out, LocalTransport(desks), schemas, compute, reporter, first=data.first)


def adopting(trained: Path) -> Training:
    """Judge the members of a finished run, and its sites' own models, instead of training the same ones again."""

    def adopt(recipe: Recipe, out: Path, data: Gathered, compute: Compute, reporter: Reporter) -> Trained:
        desks, schemas = _desks(recipe, out, data, compute)
        generations = generations_of(trained) if data.people is not None else {}
        for desk in desks:
            desk.store.take_over(trained / SITES / desk.name, generations.get(desk.name, 0))
        return federate(recipe, out, LocalTransport(desks), schemas, compute, reporter, adopted=trained)

    return adopt


def _desks(recipe: Recipe, out: Path, data: Gathered, compute: Compute) -> tuple[list[SiteDesk], Mapping[str, Schema]]:
    workspace = Workspace(find(recipe.method.name), recipe, compute)
    public = data.people.public if data.people else None
    strangers = data.people.strangers if data.people else {}
    shelf = Shelf()
    desks = [
        SiteDesk(
            name,
            site.train,
            site.heldout,
            SiteStore(out / SITES / name, shelf),
            workspace,
            public=public,
            strangers=strangers.get(name),
        )
        for name, site in data.sites.items()
    ]
    return desks, workspace.schemas


def _judge(out: Path, recipe: Recipe, trained: Trained, data: Gathered, compute: Compute) -> dict[str, Any]:
    """Score the user, and return what goes into metrics.json."""
    method, saved = find(recipe.method.name), trained.saved
    metrics: dict[str, Any] = {
        "method": method.name,
        "task": method.task,
        "sites": sorted(recipe.data.sites),
        "user": recipe.data.user_name if data.user is not None else None,
        "seed": recipe.runtime.seed,
        "rounds": trained.rounds,
    }
    if trained.ended:
        metrics["ended"] = trained.ended
    if privacy := figures_of(recipe, method, trained.rounds, privacy_of(read_lines(out / LEDGER))):
        metrics["privacy"] = privacy
    if method.task == "recognition":
        return metrics | _judge_recognition(out, recipe, trained, data, compute)
    if data.user is not None:
        scorer = Scorer(method, recipe, compute)
        judged = evaluation.judge(scorer, saved, data.user, recipe.data.user_name)
        write_scores(out / SCORES, judged.scores)
        metrics |= judged.figures
        if recipe.evaluation.features:
            _write_features(out, scorer, saved.finished, data, recipe)
    return metrics | {"sites_heldout": trained.heldout}


def _judge_recognition(out: Path, recipe: Recipe, trained: Trained, data: Gathered, compute: Compute) -> dict[str, Any]:
    """Judge the generic model on the user's set, and put the sites' figures beside it."""
    method, saved = find(recipe.method.name), trained.saved
    scorer = Scorer(method, recipe, compute)
    found = trained.personal
    if method.pooled and data.people is not None:
        found = recognition.personal_of_merged(scorer, saved.finished, data.people)
    figures = recognition.judge(out, scorer, saved.finished, data.user, saved.thresholds)
    return {
        **recognition.threshold_figures(recipe, saved.thresholds),
        **figures,
        "personalised": recognition.personal_figures(recipe, found),
        "steps_per_epoch": _steps_per_epoch(out, recipe),
        "sites_heldout": trained.heldout,
        "counted": data.people.counted if data.people else {},
    }


def _steps_per_epoch(out: Path, recipe: Recipe) -> float | None:
    """Return the mean number of training steps of an epoch at a site, where the method counts them."""
    counts = [count for row in read_lines(out / ROUNDS) for count in (row.get("steps") or {}).values()]
    return float(np.mean(counts)) / recipe.training.local.epochs if counts and recipe.training.local.epochs else None


def _first(recipe: Recipe, data: Gathered, compute: Compute, cache: Path, reporter: Reporter) -> Message:
    """Return the pre-trained parts."""
    if data.people is None or data.people.public is None:
        raise UserError("recipe.training.pretrain", "needs data.public, the identities to pre-train on")
    return pretrained(recipe, data.people.public, data.digests[PUBLIC], compute, cache, reporter.say)


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


def _finished(out: Path, recipe: Recipe, resume: bool) -> dict[str, Any] | None:
    """Return a finished run's figures; refuse a directory that is in use for something else."""
    if not out.exists() or (out.is_dir() and all(path.name.startswith(".") for path in out.iterdir())):
        return None  # a run that was killed before it wrote its recipe leaves hidden files only
    if not out.is_dir():
        raise UserError(str(out), "is a file; --out names a directory")
    if not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the run in it")
    if not (out / RECIPE).exists():
        raise UserError(str(out), "holds no run that could be resumed")
    if not _says(out / RECIPE, recipe):
        raise UserError(str(out), "was started with another recipe; resume with that recipe, or give another --out")
    path = out / METRICS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _says(path: Path, recipe: Recipe) -> bool:
    """Tell whether a file says what a recipe says; keys that came later than the file have their defaults."""
    if path.read_text(encoding="utf-8") == recipes.text_of(recipe):
        return True
    try:
        return recipes.load(path, [], options()) == recipe
    except UserError:
        return False


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
