"""Runs from a recipe to a run directory: the one module that connects data, sites, transport, server and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import (
    check_weights,
    disk_full_is_failure,
    json_text,
    lock_directory,
    read_json,
    remove_unfinished,
)
from fedvisage.base.processes import use_threads
from fedvisage.base.progress import Reporter, Say
from fedvisage.data.crops import CropRecord
from fedvisage.data.overlap import OVERLAP, TARGET, find_overlap, refuse_overlap
from fedvisage.federation.method import Method
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.protections.dp import figures_of
from fedvisage.federation.record.attendance import absences, attendance_of
from fedvisage.federation.record.ledger import LEDGER, REPEATED, ROUNDS, privacy_of, read_lines
from fedvisage.federation.record.store import SiteStore, StateCache, generations_of
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.schema import Schema
from fedvisage.methods import find
from fedvisage.methods.origin import origin_of
from fedvisage.recipe import Federation, Recipe
from fedvisage.recipe.data import named_weights
from fedvisage.report.tracking.reporting import report_to_trackers
from fedvisage.report.tracking.tensorboard import write_events
from fedvisage.runs import directory
from fedvisage.runs import train as training
from fedvisage.runs.directory import (
    DATA,
    ENVIRONMENT,
    METRICS,
    RECIPE,
    REPORT,
    SITES,
    close_settings,
    finished_metrics,
    recorded_settings,
    snapshot_metrics,
    start_digest,
    undo_failed_start,
    write_once,
    write_or_compare,
)
from fedvisage.runs.layout import with_chosen_settings
from fedvisage.runs.workers import LocalEngine, open_engine, remove_messages, without_workers
from fedvisage.runs.workers import Wire as Wire
from fedvisage.tasks import saved_model
from fedvisage.tasks.catalogue import Setup, set_up, task_of
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import RunData, check_entries, check_same_crops, verify_sets
from fedvisage.tasks.recognition.benchmarks import check_unseen
from fedvisage.tasks.seal import write_sealed
from fedvisage.tasks.task import Task, TrainingResult

# Checks before a run: missing files, unsuitable options, and overlaps between datasets.


def check_files(recipe: Recipe, whole: bool) -> None:
    """Refuse missing or invalid sets and weights, before anything is written, rendered or opened.

    Without ``whole``, the check skips the sites' data and all weights except those of ``training.start``.
    """
    checked = recipe if whole else recipe.model_copy(update={"data": recipe.data.model_copy(update={"sites": {}})})
    check_entries(checked)
    for place, path in named_weights(recipes.tree_of(recipe)).items():
        if whole or place[:2] == ("training", "start"):
            check_weights(Path(path), ".".join(("recipe", *place)))


def check_fits(setup: Setup) -> None:
    """Refuse options that the method cannot follow."""
    recipe, method = setup.recipe, setup.method
    if method.pooled and recipe.federation != Federation():
        raise UserError("recipe.federation", f"{method.name} merges all sites into one; leave this section out")
    if method.pooled and recipe.training.batch.per_site:
        raise UserError("recipe.training.batch.per_site", f"{method.name} merges all sites into one; leave this out")
    check_protection(recipe, method)
    noised = method.noised(recipe)  # also refuses settings under which the noise would protect nothing
    if recipe.privacy.epsilon is not None and not (method.releases or noised):
        raise UserError("recipe.privacy", f"{method.name} releases nothing that noise protects; leave this section out")
    setup.task.check(recipe, method)
    method.check(recipe)
    if recipe.training.server_optimizer is not None and not method.steps_at_server:
        raise UserError("recipe.training.server_optimizer", f"{method.name} has no step towards one mean; leave it out")
    if recipe.training.l2sp is not None and not method.pulls:
        raise UserError("recipe.training.l2sp", f"{method.name} does not hold its sites near a start; leave it out")
    _check_parts(recipe, method)
    if recipe.evaluation.features and method.features is None:
        raise UserError("recipe.evaluation.features", f"{method.name} has no features to show; leave this out")


def check_same_source(environment: Path, now: Mapping[str, Any]) -> None:
    """Refuse to continue a run with a method whose source differs from the one passed in at its start."""
    if not environment.exists():
        return
    recorded = read_json(environment)
    if recorded.get("method") != now.get("method") and "method" in recorded:
        raise UserError(
            str(environment),
            "the run began with another method, which was passed in from Python; pass in "
            "the same one, or use a new directory",
        )


def _check_parts(recipe: Recipe, method: Method) -> None:
    """Refuse micro-batches for a loss that depends on a whole batch."""
    if recipe.training.micro_batch is None:
        return
    if not method.accumulates:
        raise UserError(
            "recipe.training.micro_batch",
            f"{method.name} looks at a batch as a whole; leave it out, and set training.batch to what fits",
        )
    if getattr(recipe.method, "sampled_classes", None) is not None:
        raise UserError(
            "recipe.training.micro_batch",
            "and method.sampled_classes, which draws classes for a whole "
            "batch, do not go together; leave one of them out",
        )


def check_overlap(data: RunData, recipe: Recipe, out: Path, cache: Path, checks: Checks, say: Say) -> dict[str, Any]:
    """Return the overlap between datasets; refuse it unless it is allowed now or was when the run began."""
    allowed_before = (out / OVERLAP).exists() and read_json(out / OVERLAP).get("allowed") is True
    allowed = checks.allow_overlap or allowed_before
    overlap = find_overlap(data.places, cache, say)
    for line in refuse_overlap(overlap, allowed, recipe.data.user_name):
        say(f"note: {line}")
    record = overlap.as_json(allowed)
    if data.benchmarks:
        trained_on = {place: views for place, views in data.places.items() if place != TARGET}
        record["benchmarks"] = check_unseen(
            data.benchmarks, trained_on, training_crops(data), cache, say, replace(checks, allow_overlap=allowed)
        )
    return record


def training_crops(data: RunData) -> tuple[CropRecord, ...]:
    """Return the distinct crop records of the training data. Only a run has both the sets and the model."""
    records = [data.crops[place] for place in sorted(data.crops) if place != "data.user"]
    return tuple(dict.fromkeys(record for record in records if record is not None))


Training = Callable[[Setup, Path, RunData, Reporter], TrainingResult]
"""The training of a run: with all sites in this process, with other machines, or not at all."""

Opening = Callable[[Task, Recipe, Method, Path, Say], RunData]
"""The function that opens the data of a run in this process: of all sites, or of some."""


def run_and_report(
    recipe: Recipe,
    out: Path,
    cache: Path,
    reporter: Reporter,
    *,
    method: Method | None = None,
    resume: bool = False,
    wire: Wire = LocalTransport,
    training: Training | None = None,
    opening: Opening | None = None,
    checks: Checks = USUAL,
) -> dict[str, Any]:
    """Run a recipe, write its report, and return the metrics."""
    metrics = run(
        recipe,
        out,
        cache,
        reporter,
        method=method,
        resume=resume,
        wire=wire,
        training=training,
        opening=opening,
        checks=checks,
    )
    if not (out / REPORT).exists():
        from fedvisage.report.page import write_report  # imported late, as it loads the plotting libraries

        use_threads(recipe.runtime.threads)  # again, for the libraries that were just loaded
        write_events(out)
        write_report(out, cache)
    return metrics


def run(
    recipe: Recipe,
    out: Path,
    cache: Path,
    reporter: Reporter,
    *,
    method: Method | None = None,
    resume: bool = False,
    wire: Wire = LocalTransport,
    training: Training | None = None,
    opening: Opening | None = None,
    checks: Checks = USUAL,
) -> dict[str, Any]:
    """Train and evaluate a model by a recipe, write all files into ``out``, and return the metrics.

    ``method`` replaces the method of the recipe. The sites are in this process, behind the transport that ``wire``
    makes, unless ``training`` trains elsewhere. ``opening`` opens the data of this process. ``checks`` lists the faults
    that are allowed: sets with different crops, and images that both the target and a site, or two sites, hold.
    """
    workers, recipe = recipe.runtime.workers, without_workers(recipe)
    with report_to_trackers(recipe, out, reporter) as trackers, open_engine(workers) as crew:
        metrics = _run(
            recipe,
            out,
            cache,
            reporter,
            method or find(recipe.method),
            resume,
            wire,
            training,
            opening,
            checks,
            crew,
        )
        trackers.finish(metrics)
    return metrics


def _run(
    recipe: Recipe,
    out: Path,
    cache: Path,
    reporter: Reporter,
    method: Method,
    resume: bool,
    wire: Wire,
    training: Training | None,
    opening: Opening | None,
    checks: Checks,
    crew: LocalEngine,
) -> dict[str, Any]:
    """Check a recipe, open its data, train and evaluate, and write the run directory."""
    task = task_of(method)
    unfinished = not (out / METRICS).exists()  # a finished run needs no data any more
    if unfinished and recipe.data.public is not None:  # `task.filled` may render the public set
        check_files(recipe, whole=opening is None)
    recipe = close_settings(task.filled(recipe, cache, reporter), recorded_settings(out))
    metrics_before = finished_metrics(out, recipe, resume)
    if metrics_before is not None:
        reporter.say(f"{out} is finished already; nothing to do")
        return metrics_before
    if (warning := method.warning(recipe)) is not None:
        reporter.say(f"warning: {warning}")
    setup = set_up(recipe, method)
    check_fits(setup)
    if unfinished:
        check_files(recipe, whole=opening is None)
    if checks.verify:
        verify_sets(recipe.data.entries, cache, reporter.say)
    if training is None:
        crew.start(recipe, method, wire is LocalTransport, reporter.say)
    data = (opening or _open_all_data)(task, recipe, method, cache, reporter)
    check_same_crops(data.crops, checks.allow_mixed_crops)
    overlap = check_overlap(data, recipe, out, cache, checks, reporter.say)
    digests = {**data.digests, **start_digest(recipe)}
    # The layout and number format are part of the resolved recipe, which is written first.
    recipe = with_chosen_settings(setup)
    setup = set_up(recipe, method)
    out.mkdir(parents=True, exist_ok=True)
    with lock_directory(out), disk_full_is_failure(out), undo_failed_start(out):
        if (metrics_before := finished_metrics(out, recipe, resume=True)) is not None:
            return metrics_before  # another process finished the run while this one opened its data
        remove_unfinished(out)
        remove_messages(out)
        write_once(out / RECIPE, recipes.text_of(recipe))  # first, as it marks the directory as a run
        write_or_compare(out / DATA, digests)
        write_once(out / OVERLAP, json_text(overlap))
        surroundings = _environment_record(setup, crew)
        check_same_source(out / ENVIRONMENT, surroundings)
        write_once(out / ENVIRONMENT, json_text(surroundings))
        if training is None:
            data = replace(data, first=task.first(recipe, data, setup.compute, cache, reporter))
        trained = (training or _local_training(wire, crew))(setup, out, data, reporter)
        if crops := training_crops(data):
            saved_model.save_settings(out, replace(trained.saved, crops=crops))
        metrics = {**_evaluate_model(setup, out, trained, data), **_costs(out, crew)}
        write_sealed(out, metrics)
    for sentence in absences(metrics):
        reporter.say(f"note: {sentence}")
    return read_json(out / METRICS)


def _environment_record(setup: Setup, crew: LocalEngine) -> dict[str, Any]:
    """Return the environment record of a run.

    A method that was passed in is recorded by its modules and the digest of its source. The record also has the number
    of worker processes, if any, although no byte of the result depends on it.
    """
    environment = directory.describe(setup.compute, setup.recipe.runtime.threads)
    environment |= {"workers": len(crew.lanes)} if crew.lanes else {}
    origin = origin_of(setup.method, setup.recipe.method)
    return environment | ({"method": origin} if origin else {})


def _open_all_data(task: Task, recipe: Recipe, method: Method, cache: Path, say: Say) -> RunData:
    """Open all data of a recipe."""
    return task.open(recipe, method, cache, say)


def _local_training(wire: Wire, crew: LocalEngine) -> Training:
    """Return a training with all sites on this machine: in this process, or in worker processes."""

    def train(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        desks, schemas = _open_workers(setup, out, data, reporter)
        with crew.wire(wire, out) as make_transport:
            return training.train(setup, out, make_transport(desks), schemas, reporter, first=data.first)

    return train


def adoption(trained: Path) -> Training:
    """Return a training that adopts the members of a finished run, and its sites' own models, without new rounds."""

    def adopt(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        desks, schemas = _open_workers(setup, out, data, reporter)
        generations = generations_of(trained) if data.people is not None else {}
        for desk in desks:
            desk.store.take_over(trained / SITES / desk.name, generations.get(desk.name, 0))
        return training.train(setup, out, LocalTransport(desks), schemas, reporter, adopted=trained)

    return adopt


def _open_workers(
    setup: Setup, out: Path, data: RunData, reporter: Reporter
) -> tuple[list[SiteWorker], Mapping[str, Schema]]:
    workspace, shelf = setup.workspace(), StateCache()
    workspace.on_batch = reporter.batch
    public = data.people.public if data.people else None
    strangers = data.people.strangers if data.people else {}
    desks = [
        SiteWorker(
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


def _evaluate_model(setup: Setup, out: Path, trained: TrainingResult, data: RunData) -> dict[str, Any]:
    """Evaluate the model, and return the content of metrics.json except costs."""
    recipe, method = setup.recipe, setup.method
    metrics: dict[str, Any] = {
        "method": method.name,
        "task": setup.task.name,
        "sites": sorted(recipe.data.sites),
        "user": recipe.data.user_name if data.user is not None else None,
        "seed": recipe.runtime.seed,
        "rounds": trained.rounds,
    }
    attendance = attendance_of(read_lines(out / ROUNDS))
    if attendance.counted:  # a run that adopted the members of another run had no rounds of its own
        metrics["attendance"] = attendance.as_json()
    if trained.ended:
        metrics["ended"] = trained.ended
    if privacy := figures_of(recipe, method, trained.rounds, privacy_of(read_lines(out / LEDGER))):
        metrics["privacy"] = privacy
    return metrics | setup.task.judge(setup.scorer(), trained, data, out) | snapshot_metrics(setup, out, trained, data)


def _costs(out: Path, crew: LocalEngine) -> dict[str, Any]:
    """Return the sums of bytes and seconds, and the peak memory of a run.

    Bytes are those of the whole ledger. An interrupted run also reports the bytes that were sent again.
    """
    ledger, rounds = read_lines(out / LEDGER), read_lines(out / ROUNDS)
    repeated = [row for row in ledger if row.get(REPEATED)]
    return {
        **_bytes_of(ledger),
        **({REPEATED: _bytes_of(repeated)} if repeated else {}),
        "seconds": round(sum(row["seconds"] for row in rounds), 3),
        "peak_rss_mb": directory.peak_rss_mb(crew.pids),
    }


def _bytes_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Add up the bytes of ledger lines by direction."""
    return {f"bytes_{way}": sum(row["bytes"] for row in lines if row["direction"] == way) for way in ("up", "down")}
