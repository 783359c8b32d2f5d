"""The verbs ``evaluate``, for the model of a run or an export, and ``evaluate-pipeline``, for exports on a device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from fedvisage.base.arguments import Range
from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.cli.options import (
    NOTHING,
    App,
    AsJson,
    At,
    AtEach,
    Cache,
    Int8,
    Out,
    ProgressOptions,
    interruptible,
    note,
    open_noted,
    print_json,
    say,
    with_options,
)
from fedvisage.tasks.checks import Checks

app = App()


@app.command()
@with_options()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run or of an export.")],
    data: Annotated[
        str | None, typer.Option(help="Prepared set (or synth: line) to evaluate on; default: the recipe's target.")
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            help="Adapt the model to the images first, without their labels: gated, statistics, paper, online, episodic"
            " or none; default: the recipe's setting."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Recognition: a list of pairs of the set's images, such as LFW's pairs.txt; pairs with missing images"
            " are left out and counted."
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SET",
            help="Recognition: a set to evaluate on with the lists in its directory; repeatable. Without --data, only "
            "these are evaluated.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Compare error rates between the groups of a column, such as tone; age=30,60 divides numbers.",
        ),
    ] = None,
    at: At = None,
    out: Out = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
    *,
    checks: Checks,
    progress: ProgressOptions,
) -> None:
    """Evaluate a finished model on a prepared set.

    Thresholds are those that were chosen at the sites, or with --at on their averaged error rates.
    """
    if pairs is not None and benchmark and data is None:
        raise UserError("--pairs", "applies to the set of --data; the lists of a benchmark are in its directory")
    from fedvisage.device.exported import is_export
    from fedvisage.report.groups import tables_by_group
    from fedvisage.report.tables import markdown
    from fedvisage.runs.evaluate import evaluate as evaluate_model
    from fedvisage.runs.evaluate import evaluate_export
    from fedvisage.starts.published import locate_detector
    from fedvisage.tasks.catalogue import summary
    from fedvisage.tasks.finished_model import open_model
    from fedvisage.tasks.opened import named_benchmarks

    reporter = progress.reporter(aside=True)
    if is_export(locate_detector(run)):
        for name, value in (("--adapt", adapt), ("--pairs", pairs), ("--benchmark", benchmark)):
            if value:
                raise UserError(name, "applies to a run; leave it out, or name the run")
        if data is None:
            raise UserError("--data", "is missing; an export has no target, so name a prepared set")
        exported = open_noted(run)
        exported = exported if at is None else exported.at(at)
        figures = evaluate_export(exported, data, cache, out, by=by, checks=checks, say=note)
    else:
        model = open_model(run, adapt, pairs, at=at)
        note(*model.notices)
        sets = named_benchmarks(benchmark or [])
        figures = evaluate_model(
            model, data, cache, out, benchmarks=sets, by=by, checks=checks, say=note, course=reporter
        )
    if as_json:
        print_json(figures)
    else:
        say(*summary(figures), *map(markdown, tables_by_group(figures.part("by"))))


@dataclass(frozen=True)
class PipelineOptions:
    """Models, data and output of ``evaluate-pipeline``."""

    pad: Path | None = None
    """The exported model that detects attacks."""
    recognition: Path | None = None
    """The exported model that recognises people."""
    data: str | None = None
    """The folder of a dataset as it was downloaded, or of your own videos and images."""
    kind: str = ""
    """Dataset (fedvisage data kinds); default: detected from file names."""
    split: str = ""
    """One of the dataset's own splits, such as test; default: all."""
    frames: Annotated[int, Range(1)] = 10
    """Frames of each presentation."""
    enlarge: bool = False
    """Also evaluate faces that are smaller than the model's crops."""
    by: str | None = None
    """Compare error rates between the groups of an attribute in file names, such as device."""
    iso30107: bool = False
    """With --out: write a report as defined by ISO/IEC 30107-3."""
    int8: Int8 = False
    at: AtEach = None
    out: Out = None


@app.command("evaluate-pipeline")
@with_options()
def evaluate_pipeline(options: PipelineOptions, as_json: AsJson = False, *, progress: ProgressOptions) -> None:
    """Evaluate exported models together, as a device runs them, on the presentations of a dataset."""
    from fedvisage.runs.assess_pipeline import assess_dataset

    with interruptible(NOTHING):
        assessment = assess_dataset(**asdict(options), progress=progress.reporter(aside=True))
    if as_json:
        print_json(assessment.values)
    else:
        say(*assessment.lines())
