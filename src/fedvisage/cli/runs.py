"""The verbs for runs: make them, compare them, report on them, attack them, and evaluate finished models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.cli.options import (
    CONTINUES,
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
    console,
    interruptible,
    note,
    print_json,
    recipe_files,
    reporter,
    say,
    show,
    study_files,
)
from fedvisage.tasks.checks import Checks

app = typer.Typer()

Runs = Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)]
Kit = Annotated[Path | None, typer.Option(help="The operator's kit of a federation.", show_default=False)]


@app.command()
def demo(
    out: Out = None,
    cache: Cache = CACHE,
    resume: Annotated[bool, typer.Option(help="Continue an earlier demo.")] = False,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Train three sites together at toy size, evaluate on an unseen target, and write table, pictures and report."""
    with interruptible(CONTINUES):
        from fedvisage.studies.demo import demonstrate

        demonstrate(out or Path("runs/demo"), cache, say, reporter(quiet, log_format), resume=resume)


@app.command()
def run(
    recipe: Annotated[
        Path, typer.Argument(help="A recipe file (YAML), or the name of a shipped one.", autocompletion=recipe_files)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, such as training.rounds=5."),
    ] = None,
    out: Out = None,
    on: Annotated[
        str,
        typer.Option(
            help="Transport: local runs all sites in this process; nvflare runs the federation of --kit, or without one"
            " rehearses on this machine, with a process for the server and each site."
        ),
    ] = "local",
    kit: Kit = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server and the sites.", min=1.0)] = 300.0,
    patience: Annotated[
        float, typer.Option(help="Seconds without an answer of a submitted run before it is ended.", min=1.0)
    ] = 600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    allow_mixed_crops: MixedCrops = False,
    allow_overlap: Overlap = False,
    verify: Verify = False,
    cache: Cache = CACHE,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Run a recipe: train, evaluate on the target, and write the run directory with its report."""
    from fedvisage.methods import read_method
    from fedvisage.recipe import load
    from fedvisage.runs.directory import REPORT
    from fedvisage.runs.run import run_and_report
    from fedvisage.studies.shipped import locate
    from fedvisage.tasks.catalogue import summary

    if on not in ("local", "nvflare"):
        raise UserError("--on", f"{on!r} is no transport; choose local or nvflare")
    if kit is not None and on == "local":
        raise UserError("--kit", "belongs to a federation; add --on nvflare")
    loaded = load(locate(recipe, verb="run"), overrides or [], read_method, note)
    folder = out or Path("runs") / f"{recipe.stem}-seed{loaded.runtime.seed}"
    progress = reporter(quiet, log_format)
    checks = Checks(allow_mixed_crops, allow_overlap, verify)
    with interruptible(CONTINUES):
        if on == "local":
            figures = run_and_report(loaded, folder, cache, progress, resume=resume, checks=checks)
        else:
            from fedvisage.nvflare.commands import run_over_nvflare

            figures = run_over_nvflare(
                loaded, folder, cache, progress, resume=resume, kit=kit, wait=wait, patience=patience, checks=checks
            )
    # A run without a target has no figures to summarise.
    if figures["target"] is not None:
        say(*summary(figures))
    say(f"report: {folder / REPORT}")


@app.command()
def study(
    study: Annotated[
        Path,
        typer.Argument(help="A study file (YAML), a grid of recipes, or a shipped name.", autocompletion=study_files),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to every recipe, such as runtime.threads=2."),
    ] = None,
    out: Out = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Where the runs lie; studies that share it share equal runs.", show_default="OUT/cells"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Try the whole grid in a minute: one batch, tiny rendered sets, one seed.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder below which datasets lie, as they are distributed or imported; what lacks is imported.",
            show_default=False,
        ),
    ] = None,
    sets: Annotated[
        Path | None, typer.Option(help="With --root: where sets are imported to.", show_default="beside OUT")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes; give the recipe as many threads as cores / workers.", min=1)
    ] = 1,
    blind: Annotated[
        bool, typer.Option("--blind", help="Show figures of the sites' held-out images alone, none of the target's.")
    ] = False,
    allow_mixed_crops: MixedCrops = False,
    allow_overlap: Overlap = False,
    cache: Cache = CACHE,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Run a grid of recipes and print its table of mean ± std over seeds; an interrupted study continues."""
    from fedvisage.studies.conduct import DIFFERENCES, run_study
    from fedvisage.studies.shipped import locate

    path = locate(study, verb="study")
    folder = out or Path("runs") / f"{study.stem}{'-smoke' if smoke else ''}"
    progress = reporter(quiet, log_format)
    with interruptible(CONTINUES):
        run_study(
            path,
            folder,
            cache,
            progress,
            changes=changes or (),
            smoke=smoke,
            runs=runs,
            workers=workers,
            root=root,
            sets=sets,
            blind=blind,
            checks=Checks(allow_mixed_crops, allow_overlap),
        )
    for name in ("blind.md",) if blind else ("table.md", DIFFERENCES):
        say((folder / name).read_text(encoding="utf-8"))


@app.command("compare")
def compare_runs(
    runs: Runs,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, with a row a method.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: mean ± std over seeds, and differences to the first with a t interval over targets."""
    from fedvisage.report.compare import as_values, compare
    from fedvisage.report.compare_tables import as_text, legend, narrow, notes

    rows = compare(runs)
    if as_json:
        print_json(as_values(rows))
    elif markdown:
        say(as_text(rows))
    else:
        for table in narrow(rows, console().width):
            show(table)
        say(*legend(rows), *notes(rows))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--no-images",
            help="Show the worst images of the target's set; default: what the recipe says, or those of rendered people"
            " only.",
            show_default=False,
        ),
    ] = None,
    cache: Cache = CACHE,
) -> None:
    """Write a run's report and TensorBoard files again from its other files."""
    from fedvisage.report.page import write_report
    from fedvisage.report.tracking.tensorboard import write_events

    page = write_report(run, cache, images)  # first: its errors name the fault of a directory without a run
    write_events(run)
    say(str(page))


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run, whose data is at hand.")],
    out: Out = None,
    cache: Cache = CACHE,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Attack a run as a curious server could, and report what it would learn, as numbers and pictures.

    The run's report shows the result, too.
    """
    from fedvisage.audit.audit import audit_run

    with interruptible(NOTHING):
        audit_run(run, out, cache, say, reporter(quiet, log_format))


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: name, paper, task, and the values that leave a site."""
    from fedvisage.methods import all_methods
    from fedvisage.tasks.catalogue import block, describe

    rows = [describe(method) for method in all_methods().values()]
    if as_json:
        print_json(rows)
    else:
        say("\n\n".join(map(block, rows)))


FRAMES = 10
"""Frames of a presentation that are evaluated by default."""


@app.command("evaluate")
def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="The directory of a finished run; none with --pipeline.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Prepared set (or synth: line) to evaluate on; default: the recipe's target. With --pipeline: the"
            " folder of a dataset as it was downloaded, or of your own videos and pictures.",
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
            help="Recognition: a set to evaluate on by the lists beside it; may be given several times. Without"
            " --data nothing else is evaluated.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline", help="Evaluate exported models together, as a device runs them, on presentations."),
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
        typer.Option(
            "--enlarge", help="With --pipeline: evaluate faces, too, that are smaller than the model's crops."
        ),
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
    """Evaluate a finished model on a prepared set, or with --pipeline exported models together, as on a device.

    Thresholds are those that were chosen at the sites.
    """
    progress = reporter(quiet, log_format, aside=True)
    of_runs = {
        "RUN": run,
        "--adapt": adapt,
        "--pairs": pairs,
        "--benchmark": benchmark,
        "--verify": verify,
        "--allow-mixed-crops": allow_mixed_crops,
        "--allow-overlap": allow_overlap,
    }
    of_pipelines = {
        "--pad": pad,
        "--recognition": recognition,
        "--iso30107": iso30107,
        "--kind": kind,
        "--split": split,
        "--frames": frames,
        "--enlarge": enlarge,
        "--int8": int8,
    }
    # Options of the other mode would have no effect, so they are refused.
    for option, value in (of_runs if pipeline else of_pipelines).items():
        if value:
            raise UserError(option, "is for a run; leave it out, or --pipeline" if pipeline else "goes with --pipeline")
    if pipeline:
        from fedvisage.runs.assess_pipeline import AssessmentOptions, assess_dataset

        request = AssessmentOptions(data, pad, recognition, kind, split, frames or FRAMES, enlarge, int8, iso30107, out)
        with interruptible(NOTHING):
            assessed = assess_dataset(request, progress)
        _say(assessed.values, assessed.lines(), as_json)
        return
    if run is None:
        raise UserError("RUN", "is missing; name a run, or give --pipeline to evaluate exported models")
    if pairs is not None and benchmark and data is None:
        raise UserError("--pairs", "is for the set of --data; the lists of a benchmark lie beside it")
    from fedvisage.runs.evaluate import evaluate
    from fedvisage.tasks.catalogue import summary
    from fedvisage.tasks.finished_model import open_model
    from fedvisage.tasks.opened import named_benchmarks

    opened = open_model(run, adapt, pairs)
    note(*opened.notices)
    named_sets = named_benchmarks(benchmark or [])
    figures = evaluate(
        opened,
        data,
        cache,
        out,
        benchmarks=named_sets,
        checks=Checks(allow_mixed_crops, allow_overlap, verify),
        say=note,
        course=progress,
    )
    _say(figures, summary(figures), as_json)


def _say(figures: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    """Print figures as JSON, or as lines."""
    if as_json:
        print_json(figures)
    else:
        say(*lines)
