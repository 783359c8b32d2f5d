"""The verbs that make, import and inspect prepared sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.base.errors import UserError
from fedvisage.cli.options import (
    IMPORTS_CONTINUE,
    NOTHING,
    App,
    ProgressOptions,
    interruptible,
    print_json,
    say,
    with_options,
)
from fedvisage.datasets.options import ImportOptions, PeopleOptions, SynthesisOptions

app = App()


@app.command()
@with_options()
def synth(
    destination: Annotated[Path, typer.Argument(help="Output directory of the prepared set.")],
    options: SynthesisOptions,
    progress: ProgressOptions,
) -> None:
    """Render a prepared set: synthetic people and simulated presentation attacks.

    Do not train a detector for real attacks on such a set: a detector trained on simulated attacks had an AUC of 0.37
    on real prints, worse than chance.
    """
    with interruptible(NOTHING):
        from fedvisage.datasets.importing import synthesise_set

        lines = synthesise_set(destination, options, progress.reporter())
    say(*lines)


@app.command()
@with_options()
def people(
    destination: Annotated[Path, typer.Argument(help="Output directory of the identity set.")],
    options: PeopleOptions,
    progress: ProgressOptions,
) -> None:
    """Render an identity set for face recognition: many aligned photographs of each synthetic person."""
    with interruptible(NOTHING):
        from fedvisage.datasets.importing import synthesise_people

        lines = synthesise_people(destination, options, progress.reporter())
    say(*lines)


@app.command("import")
@with_options(leave_out=("few",))
def import_set(
    kind: Annotated[
        str, typer.Argument(help="Dataset or layout (fedvisage data kinds), or all: every dataset in SOURCE.")
    ],
    source: Annotated[Path, typer.Argument(help="Directory of the dataset.")],
    destination: Annotated[Path, typer.Argument(help="Output directory of the prepared set; with all, of all sets.")],
    options: ImportOptions,
    name: Annotated[str, typer.Option(help="Name of the set; default: the source's directory.")] = "",
    *,
    progress: ProgressOptions,
) -> None:
    """Import a dataset into a prepared set; unusable files are skipped, counted and listed.

    Run the same command again to continue an import that was stopped.
    """
    with interruptible(IMPORTS_CONTINUE):
        from fedvisage.datasets.importing import import_dataset

        lines = import_dataset(kind, source, destination, progress.reporter(), name=name, options=options)
    say(*lines)


@app.command()
def kinds(kind: Annotated[str, typer.Argument(help="One of them.")] = "") -> None:
    """List the datasets and layouts that can be imported, with the files that each expects."""
    from fedvisage.datasets.catalogue import describe_kinds

    say(*describe_kinds(kind))


@app.command()
def protocols(
    name: Annotated[str, typer.Argument(help="One of them.")] = "",
    sets: Annotated[Path, typer.Option(help="Directory of the prepared sets; it need not exist.")] = Path("sets"),
    target: Annotated[str, typer.Option("--target", help="Target or fold, if there are several.")] = "",
) -> None:
    """List published protocols, or print one as part of a recipe, with the imports that it needs."""
    from fedvisage.datasets.protocols.catalogue import describe_protocol, list_protocols

    say(*(describe_protocol(name, sets, target) if name else list_protocols()))


@app.command()
def pretend(
    kind: Annotated[str, typer.Argument(help="Dataset or layout, such as oulu-npu.")],
    directory: Annotated[Path, typer.Argument(help="Output directory.")],
    subjects: Annotated[
        int, typer.Option(help="Additional people, each with every kind of attack, for studies with many splits.")
    ] = 0,
    some_people: Annotated[
        int, typer.Option("--people", help="replay-attack: number of people who enrol, return and are attacked.", min=0)
    ] = 0,
) -> None:
    """Write a small copy of a dataset's layout with rendered faces, to show the expected files and to try an import."""
    with interruptible(NOTHING):
        from fedvisage.datasets.catalogue import write_small_copy

        lines = write_small_copy(kind, directory, subjects, some_people)
    say(*lines)


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A prepared set.")],
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet (PNG).")] = None,
    verify: Annotated[bool, typer.Option(help="Verify the digests of all files.")] = False,
    shortcuts: Annotated[
        bool,
        typer.Option("--shortcuts", help="Measure how well single numbers (sharpness, noise, …) separate the classes."),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Measure the differences from another set, such as those of a simulated set from a real one."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences of --against alone, as JSON.")] = False,
) -> None:
    """Describe a prepared set, draw a contact sheet of it, search it for shortcuts, and compare it with another."""
    from fedvisage.datasets.differences import compare_sets
    from fedvisage.datasets.show import show_set

    if as_json and (against is None or verify or shortcuts or sheet is not None):
        raise UserError(
            "--json", "prints differences alone; give --against, and leave --verify, --shortcuts and --sheet out"
        )
    differences = None if against is None else compare_sets(directory, against)
    if as_json and differences is not None:
        print_json(differences.as_values())
        return
    say(*show_set(directory, sheet=sheet, verify=verify, shortcuts=shortcuts))
    say(*(differences.lines() if differences is not None else ()))
