"""The command line: one function per verb, without logic. Verbs import heavy modules themselves, so --help is fast."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from fedvisage.base.errors import RunFailed, RunInterrupted, UserError
from fedvisage.base.extensions import missing_package
from fedvisage.base.files import AGAIN, NO_ROOM
from fedvisage.base.processes import let_threads_sleep
from fedvisage.base.version import VERSION
from fedvisage.cli import data, device, evaluate, federation, models, recipes, runs, site
from fedvisage.cli.options import USAGE_ERROR, Verbs, exit_on_sigterm, log_json, wants_json

PANELS = {
    "Start": ("demo", "run", "study"),
    "Look": ("report", "compare", "audit", "evaluate", "evaluate-pipeline"),
    "Data": ("data", "recipes", "recipe", "methods"),
    "Use a model": (
        "predict",
        "watch",
        "threshold",
        "export",
        "fuse",
        "adapt",
        "calibrate",
        "gallery",
        "serve",
        "web",
        "model",
    ),
    "Federate": ("provision", "join", "server", "site", "cosign", "status", "runs", "stop"),
}
"""The verbs by what a reader wants to do."""


class AllVerbs(Verbs):
    """All verbs of the program, in five sections."""

    panels = PANELS

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb of the arguments; ``evaluate --pipeline`` is the earlier form of ``evaluate-pipeline``."""
        if args[0] == "evaluate" and "--pipeline" in args:
            args = ["evaluate-pipeline", *(word for word in args[1:] if word != "--pipeline")]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    help="Federated learning for faces, where the faces never leave their owners.",
    no_args_is_help=True,
    cls=AllVerbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Start with: fedvisage demo",
)
app.add_typer(runs.app)
app.add_typer(evaluate.app)
app.add_typer(models.app)
app.add_typer(device.app)
app.add_typer(federation.app)
app.add_typer(
    site.app,
    name="site",
    cls=site.SiteVerbs,
    help="Run a site (`site KIT --data DIR`), and decide about runs with its data.",
    no_args_is_help=True,
)
app.add_typer(
    federation.join_app,
    name="join",
    cls=Verbs,
    help="Join a federation with a key of your own: send a request, and complete the kit.",
    no_args_is_help=True,
)
app.add_typer(recipes.shipped, name="recipes", cls=recipes.Recipes)
app.add_typer(recipes.written, name="recipe", cls=Verbs, no_args_is_help=True)
app.add_typer(models.model_app, name="model", cls=Verbs, no_args_is_help=True)
app.add_typer(
    device.gallery_app,
    name="gallery",
    cls=Verbs,
    help="Enrol people, search for them, and delete them.",
    no_args_is_help=True,
)
app.add_typer(
    device.web_app, name="web", cls=Verbs, help="A page that checks faces in the browser.", no_args_is_help=True
)
app.add_typer(data.app, name="data", cls=Verbs, help="Make, import and inspect prepared sets.", no_args_is_help=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(VERSION)
        raise typer.Exit


def main() -> None:
    """Run the command line, and exit with a code.

    A user's mistake prints a message and exits with 2, a run that cannot continue with 1. Ctrl-C exits with 130 and
    SIGTERM with 143, as shells report them.
    """
    let_threads_sleep(os.environ)  # before any import that starts threads
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # without the line of code
    with exit_on_sigterm():
        _run()


def _run() -> None:
    try:
        sys.exit(app(standalone_mode=False, prog_name="fedvisage"))
    except USAGE_ERROR as error:  # an unknown option or a wrong value
        verb = error.ctx.command_path if error.ctx else "fedvisage"
        _fail(f"{error.format_message().rstrip('.')}; try: {verb} -h", error.exit_code)
    except typer.Abort:  # Ctrl-C before a verb began
        _fail("interrupted", RunInterrupted.code)
    except UserError as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), error.code)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        _fail(str(missing), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the output closed the pipe
        sys.exit(1)
    except OSError as error:
        if error.errno in NO_ROOM:
            _fail(f"{error.filename or 'disk'}: {NO_ROOM[error.errno]}, and {AGAIN}", 1)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2)


def _fail(message: str, code: int) -> None:
    """Print a message on standard error and exit."""
    from rich.console import Console

    if wants_json():
        log_json("error", message, code=code)
    else:
        Console(stderr=True).print(f"fedvisage: {message}", highlight=False, markup=False, emoji=False, soft_wrap=True)
    sys.exit(code)
