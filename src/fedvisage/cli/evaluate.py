"""The verb ``evaluate``: for a finished run's model on a prepared set, or for exported models, as on a device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.cli.options import (
    NOTHING,
    App,
    AsJson,
    AtEach,
    Cache,
    Int8,
    LogFormat,
    MixedCrops,
    Out,
    Overlap,
    Quiet,
    Verify,
    interruptible,
    note,
    open_noted,
    print_json,
    reporter,
    say,
    with_options,
)
from fedvisage.tasks.checks import Checks

if TYPE_CHECKING:
    from fedvisage.base.progress import Reporter

app = App()

FRAMES = 10
"""Frames of a presentation that are evaluated by default."""

Result = tuple[dict[str, Any], list[str]]
"""The figures of an evaluation for programs, and as lines for people."""


@dataclass(frozen=True)
class RunOptions:
    """The options for the model of a finished run."""

    run: Annotated[
        Path | None,
        typer.Argument(
            help="The directory of a finished run or of an export; not with --pipeline.", show_default=False
        ),
    ] = None
    adapt: Annotated[
        str | None,
        typer.Option(
            help="Adapt the model to the images first, without their labels: gated, paper, online, episodic or none;"
            " default: the recipe's setting.",
            show_default=False,
        ),
    ] = None
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Recognition: a list of pairs of the set's images, such as LFW's pairs.txt; pairs with missing images"
            " are left out and counted.",
            show_default=False,
        ),
    ] = None
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SET",
            help="Recognition: a set to evaluate on with the lists in its directory; repeatable. Without --data, only "
            "these are evaluated.",
            show_default=False,
        ),
    ] = None
    allow_mixed_crops: MixedCrops = False
    allow_overlap: Overlap = False
    verify: Verify = False


@dataclass(frozen=True)
class PipelineOptions:
    """The options for exported models, evaluated together on presentations."""

    pad: Annotated[
        Path | None,
        typer.Option(help="With --pipeline: the exported model that detects attacks.", show_default=False),
    ] = None
    recognition: Annotated[
        Path | None,
        typer.Option(help="With --pipeline: the exported model that recognises people.", show_default=False),
    ] = None
    iso30107: Annotated[
        bool,
        typer.Option("--iso30107", help="With --pipeline and --out: write a report as defined by ISO/IEC 30107-3."),
    ] = False
    kind: Annotated[
        str,
        typer.Option(help="With --pipeline: dataset (fedvisage data kinds); default: detected from file names."),
    ] = ""
    split: Annotated[
        str, typer.Option(help="With --pipeline: one of the dataset's own splits, such as test; default: all.")
    ] = ""
    frames: Annotated[
        int | None,
        typer.Option(
            help=f"With --pipeline: frames of each presentation; default: {FRAMES}.", min=1, show_default=False
        ),
    ] = None
    enlarge: Annotated[
        bool,
        typer.Option("--enlarge", help="With --pipeline: also evaluate faces that are smaller than the model's crops."),
    ] = False
    int8: Int8 = False


@dataclass(frozen=True)
class CommonOptions:
    """The options of both kinds of evaluation: the data, and the output."""

    data: Annotated[
        str | None,
        typer.Option(
            help="Prepared set (or synth: line) to evaluate on; default: the recipe's target. With --pipeline: the "
            "folder of a dataset as it was downloaded, or of your own videos and images.",
            show_default=False,
        ),
    ] = None
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline", help="Evaluate exported models together, as a device runs them, on presentations."),
    ] = False
    at: AtEach = None
    out: Out = None
    cache: Cache = CACHE
    as_json: AsJson = False
    quiet: Quiet = False
    log_format: LogFormat = "text"


@app.command("evaluate")
@with_options()
def evaluate(common: CommonOptions, of_run: RunOptions, of_pipeline: PipelineOptions) -> None:
    """Evaluate a finished model on a prepared set, or with --pipeline exported models together, as on a device.

    Thresholds are those that were chosen at the sites, or with --at on their averaged error rates.
    """
    progress = reporter(common.quiet, common.log_format, aside=True)
    if common.pipeline:
        _refuse_any(of_run, "applies to a run; leave out this option or --pipeline")
        figures, lines = _evaluate_pipeline(of_pipeline, common, progress)
    else:
        _refuse_any(of_pipeline, "requires --pipeline")
        figures, lines = _evaluate_run(of_run, common, progress)
    if common.as_json:
        print_json(figures)
    else:
        say(*lines)


def _refuse_any(options: RunOptions | PipelineOptions, reason: str) -> None:
    """Refuse options of the other kind of evaluation, which would have no effect."""
    for field in fields(options):
        if getattr(options, field.name):
            raise UserError("RUN" if field.name == "run" else f"--{field.name.replace('_', '-')}", reason)


def _evaluate_pipeline(options: PipelineOptions, common: CommonOptions, progress: Reporter) -> Result:
    """Evaluate exported models together on the presentations of a dataset."""
    from fedvisage.runs.assess_pipeline import AssessmentOptions, assess_dataset

    request = AssessmentOptions(
        data=common.data,
        pad=options.pad,
        recognition=options.recognition,
        kind=options.kind,
        split=options.split,
        frames=options.frames or FRAMES,
        enlarge=options.enlarge,
        int8=options.int8,
        at=tuple(common.at or ()),
        report=options.iso30107,
        out=common.out,
    )
    with interruptible(NOTHING):
        assessment = assess_dataset(request, progress)
    return assessment.values, assessment.lines()


def _evaluate_run(options: RunOptions, common: CommonOptions, progress: Reporter) -> Result:
    """Evaluate the model of a finished run on a set, by default the run's target, and on benchmarks."""
    if options.run is None:
        raise UserError("RUN", "is missing; name a run, or give --pipeline to evaluate exported models")
    if options.pairs is not None and options.benchmark and common.data is None:
        raise UserError("--pairs", "applies to the set of --data; the lists of a benchmark are in its directory")
    if len(common.at or []) > 1:
        raise UserError("--at", "names several operating points, and a run has one model; give one")
    from fedvisage.device.exported import is_export
    from fedvisage.runs.evaluate import evaluate
    from fedvisage.starts.published import locate_detector
    from fedvisage.tasks.catalogue import summary
    from fedvisage.tasks.finished_model import open_model
    from fedvisage.tasks.opened import named_benchmarks

    checks = Checks(options.allow_mixed_crops, options.allow_overlap, options.verify)
    at = common.at[0] if common.at else None
    if is_export(locate_detector(options.run)):
        figures = _evaluate_export(options, common, checks, at)
        return figures, summary(figures)
    model = open_model(options.run, options.adapt, options.pairs, at=at)
    note(*model.notices)
    figures = evaluate(
        model,
        common.data,
        common.cache,
        common.out,
        benchmarks=named_benchmarks(options.benchmark or []),
        checks=checks,
        say=note,
        course=progress,
    )
    return figures, summary(figures)


def _evaluate_export(options: RunOptions, common: CommonOptions, checks: Checks, at: str | None) -> dict[str, Any]:
    """Evaluate an exported or fused detector on a set."""
    from fedvisage.runs.score_set import evaluate_export

    assert options.run is not None
    for name in ("adapt", "pairs", "benchmark"):
        if getattr(options, name):
            raise UserError(f"--{name}", "applies to a run; leave it out, or name the run")
    if common.data is None:
        raise UserError("--data", "is missing; an export has no target, so name a prepared set")
    model = open_noted(options.run)
    model = model if at is None else model.at(at)
    return evaluate_export(model, common.data, common.cache, common.out, checks=checks, say=note)
