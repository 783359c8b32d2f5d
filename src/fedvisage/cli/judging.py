"""The verb that judges: a finished run on a prepared set, or exported models together on presentations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.cli.options import (
    NOTHING,
    AsJson,
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
    print_json,
    reporter,
    say,
)
from fedvisage.datasets.cache import CACHE
from fedvisage.errors import UserError
from fedvisage.tasks.checks import Checks

FRAMES = 10
"""How many frames of a presentation are judged, unless it is said."""

app = typer.Typer()


@app.command("evaluate")
def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="The directory of a finished run; none with --pipeline.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Prepared set (or synth: line) to judge on; default: the recipe's user. With --pipeline: the folder of"
            " a dataset as it was downloaded, or of your own videos and pictures.",
            show_default=False,
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            help="Adapt the model to the images first, without their labels: gated, paper, online, episodic or none;"
            " default: what the recipe says.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Recognition: a list of pairs of the set's images, such as LFW's pairs.txt; pairs of images"
            " that the set has not are left out and counted.",
            show_default=False,
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SET",
            help="Recognition: a set to judge on by the lists that lie beside it; may be given several times. Without"
            " --data nothing else is judged.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline", help="Judge exported models together, as a device runs them, on presentations."),
    ] = False,
    pad: Annotated[
        Path | None,
        typer.Option(help="With --pipeline: the exported model that tells attacks.", show_default=False),
    ] = None,
    recognition: Annotated[
        Path | None,
        typer.Option(help="With --pipeline: the exported model that recognises people.", show_default=False),
    ] = None,
    iso30107: Annotated[
        bool,
        typer.Option("--iso30107", help="With --pipeline and --out: a report in the terms of ISO/IEC 30107-3."),
    ] = False,
    kind: Annotated[
        str,
        typer.Option(help="With --pipeline: which dataset (fedvisage data kinds); default: what its names say."),
    ] = "",
    split: Annotated[
        str, typer.Option(help="With --pipeline: one of the dataset's own splits, such as test; default: all.")
    ] = "",
    frames: Annotated[
        int | None,
        typer.Option(help="With --pipeline: frames of each presentation; default: 10.", min=1, show_default=False),
    ] = None,
    enlarge: Annotated[
        bool,
        typer.Option("--enlarge", help="With --pipeline: judge faces, too, that are smaller than the model's crops."),
    ] = False,
    int8: Int8 = False,
    allow_mixed_crops: MixedCrops = False,
    allow_overlap: Overlap = False,
    verify: Verify = False,
    out: Out = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Judge a finished model on a prepared set, or with --pipeline exported models together, as a device runs them.

    Thresholds are those that were chosen at the sites.
    """
    course = reporter(quiet, log_format, aside=True)
    of_runs = {"RUN": run, "--adapt": adapt, "--pairs": pairs, "--benchmark": benchmark, "--verify": verify,
               "--allow-mixed-crops": allow_mixed_crops, "--allow-overlap": allow_overlap}  # fmt: skip
    of_pipelines = {"--pad": pad, "--recognition": recognition, "--iso30107": iso30107, "--kind": kind,
                    "--split": split, "--frames": frames, "--enlarge": enlarge, "--int8": int8}  # fmt: skip
    for place, given in (of_runs if pipeline else of_pipelines).items():
        if given:
            raise UserError(place, "is for a run; leave it out, or --pipeline" if pipeline else "goes with --pipeline")
    if pipeline:
        from fedvisage.device.judging import Asked, judge

        asked = Asked(data, pad, recognition, kind, split, frames or FRAMES, enlarge, int8, iso30107, out)
        with interruptible(NOTHING):
            assessed = judge(asked, course)
        _say(assessed.values, assessed.lines(), as_json)
        return
    if run is None:
        raise UserError("RUN", "is missing; name a run, or give --pipeline to judge exported models")
    if pairs is not None and benchmark and data is None:
        raise UserError("--pairs", "is for the set of --data; the lists of a benchmark lie beside it")
    from fedvisage.runs.rejudge import evaluate as rejudge
    from fedvisage.tasks.catalogue import summary
    from fedvisage.tasks.finished import open_model
    from fedvisage.tasks.naming import named_benchmarks

    opened = open_model(run, adapt, pairs)
    note(*opened.notices)
    others = named_benchmarks(benchmark or [])
    figures = rejudge(
        opened, data, cache, out, benchmarks=others,
        checks=Checks(allow_mixed_crops, allow_overlap, verify), say=note, course=course,
    )  # fmt: skip
    _say(figures, summary(figures), as_json)


def _say(figures: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(figures)
    else:
        say(*lines)
