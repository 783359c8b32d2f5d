"""A run in five phases: validate its recipe, resolve it, open its data, train, and evaluate.

:func:`run` calls each phase once, and writes the report if the request asks for one. A :class:`Request` states what to
run; programs that train on other machines give it their own ``training`` and ``opening``.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage.base.files import read_tensors
from fedvisage.base.imports import pause_garbage_collection
from fedvisage.base.processes import use_threads
from fedvisage.base.progress import Reporter, Say
from fedvisage.federation.protections.dp import figures_of
from fedvisage.federation.record.attendance import absences, attendance_of
from fedvisage.federation.record.ledger import LEDGER, REPEATED, ROUNDS, LedgerTotals, stream_lines, totals_of
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.report.tracking.reporting import report_to_trackers
from fedvisage.runs.directory import METRICS, REPORT, RunDirectory, peak_rss_mb, snapshot_path
from fedvisage.runs.engine import LocalEngine
from fedvisage.runs.layout import with_chosen_settings
from fedvisage.runs.request import Request
from fedvisage.runs.train import open_site_workers, train_over_transport
from fedvisage.runs.workers import SCRATCH, WorkerPool
from fedvisage.tasks import saved_model
from fedvisage.tasks.catalogue import Setup, set_up, task_of
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.seal import write_sealed
from fedvisage.tasks.task import TrainingResult


def run(request: Request, reporter: Reporter) -> Metrics:
    """Train and evaluate a model by a recipe, write all files of the run into its directory, and return the metrics.

    A finished run is not repeated: its metrics are returned.
    """
    directory = RunDirectory(request.out)
    pool = WorkerPool(request.recipe.runtime.workers, request.engine or LocalEngine(request.out / SCRATCH))
    # No byte of the result depends on the number of workers, so the run's files do not mention it.
    runtime = request.recipe.runtime.model_copy(update={"workers": None})
    recipe = directory.with_recorded_values(request.recipe.model_copy(update={"runtime": runtime}))
    request = replace(request, recipe=recipe)
    with report_to_trackers(recipe, request.out, reporter) as trackers:
        metrics = directory.finished_metrics(recipe, request.find_method(), request.resume)
        if metrics is not None:
            reporter.say(f"{request.out} is finished already; nothing to do")
        else:
            request.validate(reporter.say)
            setup = resolve(request, reporter)
            data, overlap = open_data(request, setup, pool, reporter)
            with directory.hold(), report_nondeterminism():
                # Another process may have finished the run while this one opened its data.
                metrics = directory.finished_metrics(setup.recipe, setup.method, resume=True)
                if metrics is None:
                    directory.record_start(setup, data, overlap, pool.wait(setup.recipe, request.cache))
                    trained = train_model(request, setup, data, pool, reporter)
                    metrics = evaluate(setup, request.out, data, trained, pool, reporter.say)
        trackers.finish(metrics)
    if request.report and not (directory / REPORT).exists():
        with pause_garbage_collection():  # imported late, because these load the plotting libraries
            from fedvisage.report.page import write_report
            from fedvisage.report.tracking.tensorboard import write_events

        use_threads(request.recipe.runtime.threads)  # again, for the libraries that were just loaded
        write_events(request.out)
        write_report(request.out, request.cache)
    return metrics


def resolve(request: Request, reporter: Reporter) -> Setup:
    """Fill in the values that the recipe leaves open, and return the setup of the run."""
    method = request.find_method()
    setup = set_up(task_of(method).fill_recipe(request.recipe, request.cache, reporter), method)
    return set_up(with_chosen_settings(setup), method)


def open_data(request: Request, setup: Setup, pool: WorkerPool, reporter: Reporter) -> tuple[RunData, dict[str, Any]]:
    """Open the data of this machine, and check it; return it with the overlap between its sets."""
    if request.training is None:  # worker processes load their modules while this process opens the data
        pool.start(setup.recipe, setup.method, request.wire is LocalTransport, reporter.say)
    if request.opening is None:
        data = setup.task.open(setup.recipe, setup.method, request.cache, reporter)
    else:
        data = request.opening(setup, request.cache, reporter)
    return data, request.check_data(data, reporter.say)


def train_model(request: Request, setup: Setup, data: RunData, pool: WorkerPool, reporter: Reporter) -> TrainingResult:
    """Train on this machine or elsewhere, from the latest checkpoint if there is one; save and return the model."""
    shutil.rmtree(request.out / SCRATCH, ignore_errors=True)  # of a run that was killed
    if request.training is None:
        first = setup.task.pretrain(setup.recipe, data, setup.compute, request.cache, reporter)
        site_workers, schemas = open_site_workers(setup, request.out, data, reporter)
        with pool.wire(request.wire) as make_transport:
            trained = train_over_transport(
                setup, request.out, make_transport(site_workers), schemas, reporter, first=first
            )
    else:
        trained = request.training(setup, request.out, data, reporter)
    if data.training_crops:
        saved_model.save_settings(request.out, replace(trained.saved, crops=data.training_crops))
    return trained


def evaluate(setup: Setup, out: Path, data: RunData, trained: TrainingResult, pool: WorkerPool, say: Say) -> Metrics:
    """Evaluate the model on the target, write and return the metrics, and report the sites that were absent."""
    totals, bytes_sent = totals_of(stream_lines(out / LEDGER)), dict[str, Any]()
    for way, count in totals.bytes.items():
        bytes_sent[f"bytes_{way}"] = count
    if totals.repeated:  # an interrupted run also reports the bytes that were sent again
        bytes_sent[REPEATED] = {f"bytes_{way}": count for way, count in totals.repeated.items()}
    sections = {
        **_training_metrics(setup, out, data, trained, totals),
        **setup.task.evaluate(setup.scorer(), trained, data, out),
        **_snapshot_metrics(setup, out, trained, data),
        **bytes_sent,
        "seconds": round(sum(row["seconds"] for row in stream_lines(out / ROUNDS)), 3),
        "peak_rss_mb": peak_rss_mb(pool.peaks_kb),
    }
    metrics = Metrics.of(sections)
    write_sealed(out, metrics)
    for sentence in absences(metrics):
        say(f"note: {sentence}")
    return read_metrics(out / METRICS)


def _training_metrics(
    setup: Setup, out: Path, data: RunData, trained: TrainingResult, totals: LedgerTotals
) -> dict[str, Any]:
    """Return the description of a run's training in metrics.json: its names, rounds, attendance and privacy."""
    recipe, method, attendance = setup.recipe, setup.method, attendance_of(stream_lines(out / ROUNDS))
    metrics: dict[str, Any] = {
        "method": method.name,
        "task": setup.task.name,
        "sites": sorted(recipe.data.sites),
        "target": recipe.data.target_name if data.target is not None else None,
        "seed": recipe.runtime.seed,
        "rounds": trained.rounds,
    }
    if attendance.counted:  # a run that adopted the members of another run had no rounds of its own
        metrics["attendance"] = attendance.as_json()
    if trained.shortcuts:
        metrics["shortcuts"] = trained.shortcuts
    if trained.ended:
        metrics["ended"] = trained.ended
    if privacy := figures_of(recipe, method, trained.rounds, totals.privacy):
        metrics["privacy"] = privacy
    return metrics


def _snapshot_metrics(setup: Setup, out: Path, trained: TrainingResult, data: RunData) -> dict[str, Any]:
    """Return the target metrics of each saved round; there are none without a target and benchmarks.

    Only simulations can evaluate snapshots, because a federation does not see its target. The metrics select nothing,
    and they need no threshold, because the sites choose thresholds only for the finished model.
    """
    every = setup.recipe.evaluation.snapshots
    if every is None or (data.target is None and not data.benchmarks):
        return {}
    evaluation = setup.recipe.evaluation.model_copy(update={"resamples": 0, "published": None})
    scorer = replace(setup, recipe=setup.recipe.model_copy(update={"evaluation": evaluation})).scorer()
    figures = []
    for number in range(every, trained.rounds + 1, every):
        path = snapshot_path(out, number)
        if path.exists():  # a run that adopted the model of another run has none
            saved = replace(trained.saved, finished=read_tensors(path)[0])
            figures.append(Metrics.of({"round": number, **setup.task.evaluate_snapshot(scorer, saved, data)}))
    return {"by_round": figures} if figures else {}
