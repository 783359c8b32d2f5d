"""The reference of the command line: every verb with its arguments, options and help, read from the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.website.markdown import table
from typer.main import get_command

from fedvisage import cli

HEAD = """\
# Command line

Generated from the program. `fedvisage VERB -h` prints the same on a terminal. [Recipes](recipes.md#exit-codes)
lists the exit codes; shell completion is installed by `fedvisage --install-completion`.
"""
PROGRAM = "fedvisage"


def page() -> str:
    """Return the page, with the verbs in the sections of the program's help."""
    root: Any = get_command(cli.app)
    context = root.make_context(PROGRAM, [], resilient_parsing=True)
    blocks = [HEAD]
    for title, names in cli.PANELS.items():
        blocks.append(f"## {title}\n")
        for name in names:
            blocks.extend(_verb(root.get_command(context, name), context, name, "###"))
    return "\n".join(blocks)


def _verb(command: Any, parent: Any, name: str, mark: str) -> Iterator[str]:
    """Yield the block of a verb, and of the verbs of a group."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f"{mark} {context.command_path}\n"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield f"{_escaped(_paragraphs(command.help or command.get_short_help_str()))}\n"
    if rows := list(_rows(command, context)):
        yield table(("argument or option", "meaning"), rows)
    for inner, verb in sorted(getattr(command, "commands", {}).items()):
        yield from _verb(verb, context, inner, f"{mark}#")


def _rows(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Yield each argument and option with its meaning; help itself is left out."""
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record and "--help" not in record[0]:
            yield f"`{_portable(record[0])}`", _escaped(_portable(record[1]))


def _paragraphs(text: str) -> str:
    """Return help as one line per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _portable(text: str) -> str:
    """Replace this machine's home directory by ``~``."""
    return " ".join(text.replace(str(Path.home()), "~").split())


def _escaped(text: str) -> str:
    """Keep Markdown from reading the signs of a help text."""
    return text.replace("*", r"\*").replace("<", "&lt;")
