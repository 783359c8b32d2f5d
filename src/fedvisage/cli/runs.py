"""The verbs for runs and studies: make them, compare them, report on them, and audit them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.base.arguments import Range
from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.base.imports import pause_garbage_collection
from fedvisage.base.processes import MOST_PROCESSES, cores
from fedvisage.cli.options import (
    CONTINUES,
    FOLLOWS,
    NOTHING,
    USAGE_ERROR,
    App,
    AsJson,
    Cache,
    ProgressOptions,
    Verb,
    console,
    interruptible,
    note,
    out_option,
    print_json,
    recipe_files,
    say,
    show,
    study_files,
    with_options,
)
from fedvisage.runs import PRELOAD
from fedvisage.runs.cluster import Cluster, prepare_ray
from fedvisage.tasks.checks import Checks

app = App()

Runs = Annotated[list[Path], typer.Argument(help="Run directories.")]
Kit = Annotated[Path | None, typer.Option(help="The operator's kit of a federation.")]


@app.command()
@with_options()
def demo(
    out: Annotated[Path | None, out_option("runs/demo")] = None,
    cache: Cache = CACHE,
    resume: Annotated[bool, typer.Option(help="Continue an earlier demo.")] = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Train three sites together at toy size, evaluate on an unseen target, and write table, pictures and report."""
    with interruptible(CONTINUES):
        import torch  # noqa: F401  # first: if it is missing, the error names the extra that brings all of the demo

        from fedvisage.studies.conduct import demonstrate

        demonstrate(out or Path("runs/demo"), cache, say, progress.reporter(), resume=resume)


class RunVerb(Verb):
    """The verb ``run``, which explains how to change a recipe if a key is given as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            option = str(getattr(error, "option_name", ""))
            if changes := _changes_like(option.lstrip("-").replace("-", "_")):
                raise UserError(option, f"is not an option; write changes after the recipe: {changes}") from None
            raise


def _changes_like(option: str) -> str:
    """Return how the command line writes a change that was meant by an unknown option; empty for others."""
    from fedvisage.recipe import Recipe
    from fedvisage.recipe.section import keys_named

    if option in ("set", "override"):
        return "KEY=VALUE, such as training.rounds=3"
    return " or ".join(f"{key}=VALUE" for key in keys_named(option.rpartition(".")[2], Recipe) if key.endswith(option))


def _check_cluster(cluster: Cluster, on: str, share: str = "--gpus-per-worker") -> None:
    """Refuse an option of a Ray cluster for a command that uses none; ``share`` sets the share of a GPU."""
    if on == "ray":
        return
    for option in fields(cluster):
        if getattr(cluster, option.name) != option.default:
            name = share if option.name == "gpus_per_worker" else f"--{option.name.replace('_', '-')}"
            raise UserError(name, "belongs to a Ray cluster; add --on ray")


@app.command(cls=RunVerb)
@with_options()
def run(
    recipe: Annotated[
        Path, typer.Argument(help="A recipe file (YAML), or the name of a shipped one.", autocompletion=recipe_files)
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe, such as training.rounds=5.")
    ] = None,
    out: Annotated[Path | None, out_option("runs/RECIPE-seedSEED")] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Transport: local runs all sites in this process; nvflare runs the federation of --kit, or without one"
            " rehearses on this machine, with a process for the server and each site; ray trains the sites on the nodes"
            " of a Ray cluster."
        ),
    ] = "local",
    kit: Kit = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server and the sites.", min=1.0)] = 300.0,
    patience: Annotated[
        float, typer.Option(help="Seconds after which a silent submitted run is ended.", min=1.0)
    ] = 600.0,
    cosigned: Annotated[
        Path | None, typer.Option(help="A second operator's signature of the recipe, from `fedvisage cosign`.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    cache: Cache = CACHE,
    *,
    cluster: Cluster,
    checks: Checks,
    progress: ProgressOptions,
) -> None:
    """Run a recipe: train, evaluate on the target, and write the run directory with its report."""
    from fedvisage.base.parallel import start_fork_server
    from fedvisage.recipe import read_with_overrides, validate
    from fedvisage.studies.shipped import locate

    if on not in ("local", "nvflare", "ray"):
        raise UserError("--on", f"{on!r} is not a transport; choose local, nvflare or ray")
    if kit is not None and on != "nvflare":
        raise UserError("--kit", "belongs to a federation; add --on nvflare")
    if cosigned is not None and kit is None:
        raise UserError("--cosigned", "belongs to a federation; add --on nvflare and --kit")
    _check_cluster(cluster, on)
    tree = read_with_overrides(locate(recipe, verb="run"), overrides or [])
    # The recipe may still be invalid. If it asks for workers, the fork server loads torch while this process does.
    runtime = tree.get("runtime")
    asks_for_workers = isinstance(runtime, dict) and runtime.get("workers") not in (None, 1)
    if on == "local" and asks_for_workers and cores() > 1:
        start_fork_server(PRELOAD)
    with pause_garbage_collection(freeze=True):
        from fedvisage.methods import read_method
        from fedvisage.runs.directory import RECIPE, REPORT
        from fedvisage.runs.request import Request
        from fedvisage.runs.run import run as run_recipe
        from fedvisage.tasks.catalogue import summary
    loaded = validate(tree, read_method)
    folder = out or Path("runs") / f"{recipe.stem}-seed{loaded.runtime.seed}"
    reporter = progress.reporter()
    if resume and not (folder / RECIPE).exists():
        reporter.say(f"{folder} contains no run to resume, so a new run starts there")
    request = Request(loaded, folder, cache, resume=resume, checks=checks, report=True)
    with interruptible(CONTINUES if kit is None else FOLLOWS):
        if on == "local":
            figures = run_recipe(request, reporter)
        elif on == "ray":
            prepare_ray()
            from fedvisage.runs.ray_engine import RayEngine

            with closing(RayEngine(cluster, folder.name, reporter.say)) as engine:
                figures = run_recipe(replace(request, engine=engine), reporter)
        else:
            from fedvisage.nvflare.commands import run_over_nvflare

            figures = run_over_nvflare(request, reporter, kit=kit, wait=wait, patience=patience, cosigned=cosigned)
    # A run without a target has no figures to summarise.
    if figures["target"] is not None:
        say(*summary(figures))
    say(f"report: {folder / REPORT}")


@dataclass(frozen=True)
class StudyOptions:
    """The runs and the data of a study."""

    runs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the runs; studies with the same folder share equal runs.", show_default="OUT/cells"
        ),
    ] = None
    smoke: bool = False
    """Try the study in about a minute: one batch, tiny sets, one target and seed, one row per method."""
    root: Path | None = None
    """Folder that contains the datasets, original or imported; missing sets are imported."""
    sets: Annotated[
        Path | None, typer.Option(help="With --root: folder for imported sets.", show_default="beside OUT")
    ] = None
    workers: Annotated[int, Range(1, MOST_PROCESSES)] = 1
    """Processes; give the recipe as many threads as cores / workers."""
    blind: bool = False
    """Show only figures of the sites' held-out images, none of the target's."""
    on: str = "local"
    """Machines of the runs: local, or ray for the nodes of a Ray cluster."""
    gpus_per_run: float = 1.0
    """Share of a GPU per run on a Ray cluster; with 0.5, two runs share one."""


@app.command()
@with_options(leave_out=("verify", "gpus_per_worker"))
def study(
    study: Annotated[
        Path,
        typer.Argument(help="A study file (YAML, a grid of recipes) or a shipped name.", autocompletion=study_files),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to every recipe, such as runtime.threads=2."),
    ] = None,
    out: Annotated[Path | None, out_option("runs/STUDY")] = None,
    cache: Cache = CACHE,
    *,
    options: StudyOptions,
    cluster: Cluster,
    checks: Checks,
    progress: ProgressOptions,
) -> None:
    """Run a grid of recipes and print its table of mean ± std over seeds; an interrupted study continues."""
    from fedvisage.studies.conduct import DIFFERENCES, run_study
    from fedvisage.studies.shipped import locate

    given = asdict(options)
    on, share = given.pop("on"), given.pop("gpus_per_run")
    if on not in ("local", "ray"):
        raise UserError("--on", f"{on!r} is not a place for runs; choose local or ray")
    cluster = replace(cluster, gpus_per_worker=share)
    _check_cluster(cluster, on, share="--gpus-per-run")
    path = locate(study, verb="study")
    folder = out or Path("runs") / f"{study.stem}{'-smoke' if options.smoke else ''}"
    with interruptible(CONTINUES):
        run_study(
            path,
            folder,
            cache,
            progress.reporter(),
            changes=changes or (),
            checks=checks,
            cluster=cluster if on == "ray" else None,
            **given,
        )
    for name in ("blind.md",) if options.blind else ("table.md", DIFFERENCES):
        say((folder / name).read_text(encoding="utf-8"))


@app.command("compare")
def compare_runs(
    runs: Runs,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown with one row per method.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the figures as CSV.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the figures as a LaTeX tabular.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: mean ± std over seeds, and differences to the first with a t interval over targets.

    With one target the interval is over its seeds, of which it needs three.
    """
    from fedvisage.report.compare import as_values, compare
    from fedvisage.report.compare_tables import as_text, in_form, legend, narrow, notes
    from fedvisage.report.tables import as_csv, as_latex

    if markdown + csv + latex + as_json > 1:
        raise UserError("--markdown", "--csv, --latex and --json are different outputs; give one")
    rows = compare(runs)
    if as_json:
        print_json(as_values(rows))
    elif markdown:
        say(as_text(rows))
    elif csv or latex:
        typer.echo(in_form(rows, as_csv if csv else as_latex), nl=False)
        note(*legend(rows), *notes(rows))
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
            help="Show the worst images of the target's set; default: as in the recipe, or those of rendered people"
            " only.",
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
@with_options()
def audit(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run; its data must be available.")],
    out: Annotated[Path | None, out_option("RUN/audit")] = None,
    cache: Cache = CACHE,
    *,
    progress: ProgressOptions,
) -> None:
    """Attack a run as a curious server could, and report what it would learn, as numbers and pictures.

    The run's report shows the result, too.
    """
    from fedvisage.audit.audit import audit_run

    with interruptible(NOTHING):
        audit_run(run, out, cache, say, progress.reporter())


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, such as fedpad: print its details.", metavar="NAME")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with advice when to use which, or print one method's paper, parts and uploads."""
    from fedvisage.base.errors import choice_hint
    from fedvisage.methods import advice_lines, all_methods
    from fedvisage.tasks.catalogue import block, describe

    methods_by_name = all_methods()
    if name is not None and name not in methods_by_name:
        raise UserError("methods", f"unknown method {name!r}{choice_hint(name, methods_by_name)}")
    chosen = list(methods_by_name.values()) if name is None else [methods_by_name[name]]
    if as_json:
        print_json([describe(method) for method in chosen])
    elif name is None:
        say(*advice_lines(methods_by_name))
        say("Details: fedvisage methods NAME. Advice and networks: docs/choosing-a-method.md.")
    else:
        title, *details = block(describe(methods_by_name[name])).splitlines()
        line = methods_by_name[name].advice
        say(title, *([f"  when to use    {line}"] if line else []), *details)
