"""The verbs of the browser page: what computes in it, and the page itself as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.options import NOTHING, Out, interruptible, say

app = typer.Typer()


@app.command()
def fetch(
    out: Out = None,
    archive: Annotated[
        Path | None,
        typer.Option(help="The package's archive, if it was fetched elsewhere (npm pack).", show_default=False),
    ] = None,
    registry: Annotated[str, typer.Option(help="The registry of npm packages.")] = "https://registry.npmjs.org",
) -> None:
    """Fetch the three files of onnxruntime-web that compute in a page: one version, whose bytes are known."""
    from fedvisage.web.runtime import Runtime

    runtime = Runtime() if out is None else Runtime(out)
    with interruptible(NOTHING):
        runtime.fetch(archive, registry)
    say(f"{runtime.folder}: the files of {runtime}")


@app.command()
def build(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the page, a new one.")],
    pad: Annotated[Path, typer.Option(help="An exported model that tells attacks.", show_default=False)],
    recognition: Annotated[
        Path | None, typer.Option(help="An exported model that recognises people.", show_default=False)
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Take the exported directories' graphs in 8 bits.")] = False,
    runtime: Annotated[
        Path | None,
        typer.Option(help="Where the files of `web fetch` are; default: where it puts them.", show_default=False),
    ] = None,
) -> None:
    """Write a page that checks faces in the browser, as a folder for any web server; no picture leaves it."""
    from fedvisage.device import Exported
    from fedvisage.web.folder import build as build_folder
    from fedvisage.web.runtime import Runtime

    tells = Exported.open(pad, int8=int8)
    knows = None if recognition is None else Exported.open(recognition, int8=int8)
    with interruptible(NOTHING):
        built = build_folder(directory, tells, knows, runtime=None if runtime is None else Runtime(runtime))
    say(*built.lines())
