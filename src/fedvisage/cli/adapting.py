"""The verb that adapts a finished model to a user's images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.options import NOTHING, Cache, LogFormat, Quiet, interruptible, note, reporter, say
from fedvisage.datasets.cache import CACHE
from fedvisage.errors import UserError

app = typer.Typer()


@app.command("adapt")
def adapt_model(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run, or of an export.")],
    data: Annotated[
        str,
        typer.Option(
            help="For a run: a prepared set (or synth: line). For an export: a folder of pictures, or a video."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for the adapted export, a new one.")],
    member: Annotated[str, typer.Option(help="Which site's model, where a run has one a site.")] = "",
    enlarge: Annotated[
        bool,
        typer.Option("--enlarge", help="For an export: take faces, too, that are smaller than the model's crops."),
    ] = False,
    cache: Cache = CACHE,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Adapt a model to images without their labels, and write it as an export: see docs/adaptation.md.

    A run learns behind the gate, with torch. An export needs no torch: the statistics of its BatchNorm layers are
    counted again.
    """
    from fedvisage.device.config import is_export

    course = reporter(quiet, log_format, aside=True)
    with interruptible(NOTHING):
        if is_export(model):
            from fedvisage.device import Pipeline, Settings
            from fedvisage.device.sources import frames_of

            if member:
                raise UserError("--member", "an exported directory has one model; leave --member out")
            say(*Pipeline(pad=model, settings=Settings(enlarge=enlarge)).adapt(frames_of(data), out).lines())
            return
        if enlarge:
            raise UserError("--enlarge", "is for an exported directory; this is a run's")
        from fedvisage.export.adapted import adapt_and_export
        from fedvisage.tasks.finished import open_model

        adapted = adapt_and_export(open_model(model), out, data, member=member, cache=cache, say=course)
    note(*adapted.written.notices)
    say(*adapted.lines())
