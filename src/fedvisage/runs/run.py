"""A run in five phases: validate its recipe, resolve it, open its data, train, and evaluate.

:func:`run` calls each phase once, and writes the report if the request asks for one. A :class:`Request` states what to
run; programs that train on other machines give it their own ``training`` and ``opening``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedvisage.base.imports import pause_garbage_collection
from fedvisage.base.processes import use_threads
from fedvisage.base.progress import Reporter, Say
from fedvisage.federation.protections.dp import figures_of
from fedvisage.federation.record.attendance import Attendance, absences, attendance_of
from fedvisage.federation.record.ledger import LEDGER, REPEATED, ROUNDS, LedgerTotals, stream_lines, totals_of
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods.origin import origin_of
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.nn.compute import report_nondeterminism
from fedvisage.report.tracking.reporting import report_to_trackers
from fedvisage.runs import directory
from fedvisage.runs.checks import check_opened_data, validate
from fedvisage.runs.directory import (
    METRICS,
    REPORT,
    finished_metrics,
    hold_directory,
    record_start,
    with_recorded_values,
)
from fedvisage.runs.layout import with_chosen_settings
from fedvisage.runs.local_training import open_site_workers
from fedvisage.runs.request import Request
from fedvisage.runs.snapshots import snapshot_metrics
from fedvisage.runs.train import train_over_transport
from fedvisage.runs.workers import WorkerPool, remove_scratch, without_workers
from fedvisage.tasks import saved_model
from fedvisage.tasks.catalogue import Setup, set_up, task_of
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.seal import write_sealed
from fedvisage.tasks.task import TrainingResult


def run(request: Request, reporter: Reporter) -> Metrics:
    """Train and evaluate a model by a recipe, write all files of the run into its directory, and return the metrics.

    A finished run is not repeated: its metrics are returned.
    """
    out, pool = request.out, WorkerPool(request.recipe.runtime.workers, request.out)
    # No byte of the result depends on the number of workers, so the run's files do not mention it.
    request = replace(request, recipe=without_workers(request.recipe))
    with report_to_trackers(request.recipe, out, reporter) as trackers:
        request = replace(request, recipe=with_recorded_values(request.recipe, out))
        metrics = finished_metrics(out, request.recipe, request.resume)
        if metrics is not None:
            reporter.say(f"{out} is finished already; nothing to do")
        else:
            validate(request, reporter.say)
            setup = resolve(request, reporter)
            data, overlap = open_data(request, setup, pool, reporter)
            with hold_directory(out), report_nondeterminism():
                # Another process may have finished the run while this one opened its data.
                metrics = finished_metrics(out, setup.recipe, resume=True)
                if metrics is None:
                    record_start(out, setup.recipe, data.digests, overlap, _environment(setup, pool))
                    trained = train_model(request, setup, data, pool, reporter)
                    metrics = evaluate(request, setup, data, trained, pool, reporter.say)
        trackers.finish(metrics)
    if request.report and not (out / REPORT).exists():
        with pause_garbage_collection():  # imported late, because these load the plotting libraries
            from fedvisage.report.page import write_report
            from fedvisage.report.tracking.tensorboard import write_events

        use_threads(request.recipe.runtime.threads)  # again, for the libraries that were just loaded
        write_events(out)
        write_report(out, request.cache)
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
    return data, check_opened_data(request, data, reporter.say)


def train_model(request: Request, setup: Setup, data: RunData, pool: WorkerPool, reporter: Reporter) -> TrainingResult:
    """Train on this machine or elsewhere, from the latest checkpoint if there is one; save and return the model."""
    remove_scratch(request.out)  # of a run that was killed
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


def evaluate(
    request: Request, setup: Setup, data: RunData, trained: TrainingResult, pool: WorkerPool, say: Say
) -> Metrics:
    """Evaluate the model on the target, write and return the metrics, and report the sites that were absent."""
    totals = totals_of(stream_lines(request.out / LEDGER))
    sections = {
        **_training_metrics(setup, data, trained, totals, attendance_of(stream_lines(request.out / ROUNDS))),
        **setup.task.evaluate(setup.scorer(), trained, data, request.out),
        **snapshot_metrics(setup, request.out, trained, data),
        **_costs(totals, sum(row["seconds"] for row in stream_lines(request.out / ROUNDS)), pool),
    }
    metrics = Metrics.of(sections)
    write_sealed(request.out, metrics)
    for sentence in absences(metrics):
        say(f"note: {sentence}")
    return read_metrics(request.out / METRICS)


def _environment(setup: Setup, pool: WorkerPool) -> dict[str, Any]:
    """Return the environment record of a run.

    A method that was passed in is recorded by its modules and the digest of its source. The record also has the number
    of worker processes, if any, although no byte of the result depends on it.
    """
    environment = directory.describe(setup.compute, setup.recipe.runtime.threads)
    environment |= {"workers": len(pool.workers)} if pool.workers else {}
    origin = origin_of(setup.method, setup.recipe.method)
    return environment | ({"method": origin} if origin else {})


def _training_metrics(
    setup: Setup, data: RunData, trained: TrainingResult, totals: LedgerTotals, attendance: Attendance
) -> dict[str, Any]:
    """Return the description of a run's training in metrics.json: its names, rounds, attendance and privacy."""
    recipe, method = setup.recipe, setup.method
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
    if trained.ended:
        metrics["ended"] = trained.ended
    if privacy := figures_of(recipe, method, trained.rounds, totals.privacy):
        metrics["privacy"] = privacy
    return metrics


def _costs(totals: LedgerTotals, seconds: float, pool: WorkerPool) -> dict[str, Any]:
    """Return the sums of bytes and seconds, and the peak memory of a run.

    Bytes are those of the whole ledger. An interrupted run also reports the bytes that were sent again.
    """
    return {
        **_as_figures(totals.bytes),
        **({REPEATED: _as_figures(totals.repeated)} if totals.repeated else {}),
        "seconds": round(seconds, 3),
        "peak_rss_mb": directory.peak_rss_mb(pool.peaks_kb),
    }


def _as_figures(bytes_by_direction: Mapping[str, int]) -> dict[str, int]:
    return {f"bytes_{direction}": count for direction, count in bytes_by_direction.items()}
