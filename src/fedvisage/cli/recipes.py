"""The verbs for recipes themselves: list and copy the shipped recipes, and print the schema for editors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.base.errors import UserError
from fedvisage.cli.options import App, AsJson, Verbs, print_json, say, shipped_names

LIST = "list"


class Recipes(Verbs):
    """The verbs for shipped recipes; any other word filters the list: ``recipes demo``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb of the arguments."""
        return super().resolve_command(ctx, args if args[0] in self.commands else [LIST, *args])


shipped = App()
written = App()


@shipped.callback(invoke_without_command=True)
def recipes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the shipped recipes and studies. Use their names wherever a command takes a recipe or a study."""
    if context.invoked_subcommand is None:
        list_recipes("", as_json)


@shipped.command(LIST)
def list_recipes(
    text: Annotated[str, typer.Argument(help="Part of the names or titles, such as demo.")], as_json: AsJson = False
) -> None:
    """List the shipped recipes and studies that have a text in their name or title; `recipes TEXT` is short for it."""
    from fedvisage.studies.shipped import as_lines, entries

    listed = [entry for entry in entries() if text.lower() in f"{entry.name} {entry.title}".lower()]
    if not listed:
        raise UserError(text, "is in no name or title of a shipped recipe or study; `fedvisage recipes` lists them all")
    if as_json:
        print_json([asdict(entry) for entry in listed])
    else:
        say(*as_lines(listed))


@shipped.command()
def copy(
    name: Annotated[str, typer.Argument(help="A shipped name, such as demo/fedpad.", autocompletion=shipped_names)],
    destination: Annotated[
        Path | None, typer.Argument(help="A file or directory; default: here.", show_default=False)
    ] = None,
) -> None:
    """Copy a shipped recipe or study to a file of your own that you can change."""
    from fedvisage.studies.shipped import copy_out

    say(str(copy_out(name, destination)))


@written.callback()
def recipe() -> None:
    """The format of recipes and studies."""


@written.command()
def schema(of: Annotated[str, typer.Option(help="Schema to print: recipe or study.")] = "recipe") -> None:
    """Print the JSON Schema of recipes or studies, for completion and checks in editors."""
    if of not in ("recipe", "study"):
        raise UserError("--of", f"{of!r} has no schema; choose recipe or study")
    from fedvisage.methods import METHODS
    from fedvisage.studies.schema import recipe_schema, study_schema

    print_json(recipe_schema(METHODS) if of == "recipe" else study_schema(METHODS))
