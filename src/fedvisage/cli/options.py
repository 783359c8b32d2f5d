"""Options and output that several verbs share, plain-text help, and the handling of Ctrl-C and SIGTERM."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_origin, get_type_hints

import typer
from typer import Context
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from fedvisage.base.arguments import Range, field_docstrings
from fedvisage.base.errors import RunInterrupted, RunTerminated, TerminationSignal, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedvisage.base.progress import Reporter
    from fedvisage.device.fused import Model
    from fedvisage.report.tables import Table

# Shell completion of recipes, studies and shipped names: it must be fast, and import nothing heavy.


def recipe_files(incomplete: str) -> list[str]:
    """Return the shipped recipes and the recipe files that begin with the typed text, and directories on the way."""
    return [name for name in shipped_names(incomplete) if not name.startswith("studies/")] + _own_files(incomplete)


def study_files(incomplete: str) -> list[str]:
    """Return the shipped studies and the study files that begin with the typed text.

    The folder of shipped studies can be left out.
    """
    full_names = [name for name in shipped_names(incomplete) if name.startswith("studies/")]
    short_names = (
        [name.removeprefix("studies/") for name in shipped_names(f"studies/{incomplete}")] if incomplete else []
    )
    return full_names + short_names + _own_files(incomplete)


def shipped_names(incomplete: str) -> list[str]:
    """Return the shipped names that begin with the typed text."""
    from fedvisage.studies.shipped import names

    return [name for name in names() if name.startswith(incomplete)]


def _own_files(incomplete: str) -> list[str]:
    """Return YAML files and directories that begin with the typed text; hidden ones only after a typed dot."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        paths = sorted(path for path in Path(f"{folder}{slash}").iterdir() if path.name.startswith(start))
    except OSError:
        return []
    visible = [path for path in paths if not path.name.startswith(".") or start.startswith(".")]
    files = [f"{folder}{slash}{path.name}" for path in visible if path.suffix in (".yaml", ".yml")]
    return files + [f"{folder}{slash}{path.name}/" for path in visible if path.is_dir()]


CONTINUES = "the same command with --resume continues (a study continues by itself)"
FOLLOWS = "a submitted run continues at the server: --resume follows it, and `fedvisage stop` ends it"
NOTHING = "nothing was written"
IMPORTS_CONTINUE = "the same command goes on where it stopped"


def _directory(text: str) -> Path:
    if not text.strip():
        raise UserError("--out", "is empty; give a directory, or leave it out")
    return Path(text)


def out_option(default: str | bool = False) -> Any:
    """Return the option ``--out``, whose help has this default."""
    return typer.Option(
        "--out", parser=_directory, metavar="PATH", help="Directory for the result.", show_default=default
    )


Out = Annotated[Path | None, out_option()]
Cache = Annotated[Path, typer.Option("--cache", help="Folder of rendered sets, kept for later runs.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Use the int8 graph of the exported directory.")]
Provider = Annotated[
    str, typer.Option("--provider", help="ONNX Runtime's execution provider for the models, such as CUDA.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="POINT",
        help="Operating point: bpcer=1%, apcer=5%, fmr=1e-4 or eer; default: the model's own threshold.",
    ),
]
AtEach = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="POINT",
        help="Operating point: bpcer=1%, apcer=5%, fmr=1e-4 or eer; repeat it for the other model.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")]


Crop = Annotated[str, typer.Option(help="How faces are cropped: face (detector), centre or none.")]
DetectorOption = Annotated[
    str, typer.Option("--detector", help="Face detector: mtcnn or yunet; default: that of the model's crops.")
]
Member = Annotated[str, typer.Option(help="The site whose model is used, if the run has one per site.")]


@dataclass(frozen=True)
class QualityOptions:
    """The minimum quality of a face that is evaluated."""

    smallest: Annotated[int, Range(1)] = 64
    """Minimum side of a face, in pixels of the picture."""
    sharpness: Annotated[float, Range(0.0)] = 0.015
    """Minimum sharpness of a face."""
    turned: Annotated[float, Range(0.0)] = 0.7
    """Maximum turn of a face; 0: from the front."""
    tilted: Annotated[float, Range(0.0)] = 35.0
    """Maximum tilt of a face, in degrees."""
    strict: bool = False
    """No decision, instead of a note, on a face with little context around it."""
    detector: str = ""
    """Face detector: mtcnn or yunet; default: that of the model's crops."""


@dataclass(frozen=True)
class ProgressOptions:
    """The progress output of a command."""

    quiet: bool = False
    """Print only the result and errors."""
    log_format: Literal["text", "json"] = "text"
    """Progress output: text, or json with one object per line on standard error."""

    def reporter(self, *, aside: bool = False) -> Reporter:
        """Return the reporter; with ``aside`` it uses standard error, as programs read the result."""
        from rich.console import Console

        from fedvisage.base.progress import JsonReporter, Reporter

        check_log_format(self.log_format)
        if self.log_format == "json" and not self.quiet:
            return JsonReporter(sys.stderr)
        stream = Console(highlight=False, emoji=False, stderr=True) if aside else console()
        return Reporter(stream, self.quiet)


def with_options(leave_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of the dataclasses among its parameters.

    A field is declared like a parameter of a command. Without Typer's annotation, its docstring is the help of the
    option. The command line does not have the fields in ``leave_out``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Typer reads the options from the signature, so it has the fields in the places of their dataclasses.
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Any, list[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind: Any = parameter.annotation
            if is_dataclass(kind):
                options = [option for option in _options_of(kind) if option.name not in leave_out]
                groups[parameter.name] = kind, [option.name for option in options]
                parameters += options
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        def run(**arguments: Any) -> None:
            for group, (kind, names) in groups.items():
                arguments[group] = kind(**{name: arguments.pop(name) for name in names})
            command(**arguments)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _options_of(kind: Any) -> list[inspect.Parameter]:
    """Return a parameter of a command for each field of a dataclass; words are checked by the code that uses them."""
    help_texts, types = field_docstrings(kind), get_type_hints(kind, include_extras=True)
    options = []
    for field in fields(kind):
        annotation = types[field.name]
        extras = getattr(annotation, "__metadata__", ())
        if not any(isinstance(extra, OptionInfo | ArgumentInfo) for extra in extras):
            bounds = next((extra for extra in extras if isinstance(extra, Range)), Range())
            plain = annotation.__origin__ if extras else str if get_origin(annotation) is Literal else annotation
            option = typer.Option(
                f"--{field.name.replace('_', '-')}",  # a switch has no --no- form
                help=" ".join(help_texts[field.name].split()),
                min=bounds.least,
                max=bounds.most,
            )
            annotation = Annotated[plain, option]
        options.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
        )
    return options


@contextmanager
def interruptible(then: str = "") -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into an exit with one line, which ends with ``then``: the state that is left."""
    try:
        yield
    except TerminationSignal:
        raise RunTerminated(f"ended by SIGTERM{then and '; '}{then}") from None
    except KeyboardInterrupt:
        raise RunInterrupted(f"interrupted{then and '; '}{then}") from None


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, with which services and schedulers end a process, end a verb as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signals
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service manager may send it twice
    raise TerminationSignal


def console() -> Console:
    """Return the console of a verb: as wide as the terminal, without highlighting or emoji in names."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)


def say(*lines: str) -> None:
    """Print lines unchanged: square brackets are not markup, and long lines are not cut."""
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def check_log_format(log_format: str) -> None:
    """Refuse an unknown log format."""
    if log_format not in ("text", "json"):
        raise UserError("--log-format", f"{log_format!r} is not a format; choose text or json")


def show(content: Table) -> None:
    """Print a table as wide as the terminal, or 80 columns wide without one."""
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    table = Drawn(
        title=Text(content.caption), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for index, title in enumerate(content.columns):
        is_name = index < content.names
        table.add_column(Text(title), justify="left" if is_name else "right", overflow="fold", vertical="top")
    for row in content.rows:
        table.add_row(*map(Text, row))
    console().print(table)
    if content.note:
        console().print(Text(content.note, style="dim"))


def note(*lines: str) -> None:
    """Print notes on standard error, so that they do not disturb a program that reads the result."""
    for line in lines:
        if wants_json():
            log_json("note", line)
        else:
            typer.echo(f"note: {line}", err=True)


def open_noted(directory: Path, **options: Any) -> Model:
    """Open an exported, fused or published model, and print its notices."""
    from fedvisage.device.fused import open_export
    from fedvisage.starts.published import locate_detector

    model = open_export(locate_detector(directory), **options)
    note(*model.notices)
    return model


def wants_json() -> bool:
    """Return whether the command line asks for JSON on standard error.

    This reads the words of the command line, because errors in them also end as JSON.
    """
    words = sys.argv[1:]
    return "--log-format=json" in words or ("--log-format", "json") in pairwise(words)


def log_json(event: str, message: str, **fields: object) -> None:
    """Print one JSON object on standard error."""
    from fedvisage.base.progress import JsonReporter

    JsonReporter(sys.stderr).tell(event, message, **fields)


def line_printers(quiet: bool, log_format: str) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Return two functions of a long-lived process: one prints a line, the other an error.

    Both keep writing to the current standard output and error, even if the process redirects them later.
    """
    from fedvisage.base.progress import JsonReporter, discard

    check_log_format(log_format)
    out, error = (os.fdopen(os.dup(stream.fileno()), "w", buffering=1) for stream in (sys.stdout, sys.stderr))

    def complain(text: str) -> None:
        print(f"fedvisage: {text}", file=error)

    if log_format == "json":
        lines = JsonReporter(error)
        return discard if quiet else lines, lambda text: lines.tell("error", text)
    if quiet:
        return discard, complain
    return (lambda text: print(text, file=out)), complain


def print_result(result: Any, as_json: bool) -> None:
    """Print a result with values and lines: as JSON for programs, or as lines for people."""
    if as_json:
        print_json(result.as_values())
    else:
        say(*result.lines())


def print_json(value: Any) -> None:
    """Print a value as JSON for programs."""
    from fedvisage.base.files import json_text

    sys.stdout.write(json_text(value))


# Help in plain text: it renders in half the time of boxes, and shows a full sentence for every verb.


LONGEST = 200

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""Click's class for mistakes in a command line; newer versions of Typer contain Click, older ones import it."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Verb(TyperCommand):
    """A verb whose usage and errors show its arguments in capitals and without braces: ``RECIPE [KEY=VALUE]...``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Name each argument that has no name of its own for people."""
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.metavar is None:
                parameter.metavar = str(parameter.name).upper()

    def collect_usage_pieces(self, ctx: Context) -> list[str]:  # type: ignore[override]
        """Return the parts of the usage line."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class App(typer.Typer):
    """A part of the command line with its verbs."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """Return a decorator that makes a function a verb."""
        return super().command(name, **{"cls": Verb, **options})


class Verbs(TyperGroup):
    """A group of verbs whose help shows full sentences instead of cutting them to the width of a line."""

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run a verb; an interrupted verb without a message of its own still ends with one line."""
        with interruptible():
            return super().invoke(ctx)

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Titles of sections, and the verbs in each; verbs without a section are listed under "Commands"."""

    def format_commands(self, ctx: Context, formatter: Any) -> None:  # type: ignore[override]
        """Write each verb with the first sentence of its help, section by section."""
        named = {verb for verbs in self.panels.values() for verb in verbs}
        others = tuple(name for name in self.list_commands(ctx) if name not in named)
        for title, names in [*self.panels.items(), ("Commands", others)]:
            verbs = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, verb.get_short_help_str(limit=LONGEST)) for name, verb in verbs if verb and not verb.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
