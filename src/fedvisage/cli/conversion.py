"""The verbs about files of weights: those of other projects become starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.options import AsJson, print_json, say
from fedvisage.errors import UserError

app = typer.Typer()


@app.callback()
def model() -> None:
    """Files of weights to start from."""


@app.command("convert")
def convert_weights(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Weights: safetensors, .pt or .pth, or .onnx.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="The safetensors file to write, a new one.")],
    network: Annotated[
        str,
        typer.Option(
            "--as",
            help="Which network here: iresnet18, iresnet50, iresnet100, mobilefacenet, mobilefacenet-dw, resnet18, or"
            " an architecture of timm's.",
        ),
    ],
    reference: Annotated[
        Path | None,
        typer.Option(
            help="An ONNX graph of the same weights, whose features of pictures are compared.", show_default=False
        ),
    ] = None,
    colour: Annotated[
        str | None,
        typer.Option(help="Whether the source takes rgb or bgr, where its names do not tell.", show_default=False),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=16, max=1024, help="Pixels a side, for timm's networks.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Under which key a checkpoint keeps its weights.", show_default=False)
    ] = None,
    licence: Annotated[
        str,
        typer.Option(
            help="Under which licence you have the weights: a name, or @FILE with its text.", show_default=False
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Turn weights of another project into a file to start from; what maps to what is printed, nothing is guessed."""
    from fedvisage.conversion.conduct import convert
    from fedvisage.files import read_text

    if colour not in (None, "rgb", "bgr"):
        raise UserError("--colour", f"{colour!r} is no order of colours; choose rgb or bgr")
    text = read_text(Path(licence[1:]), 1 << 20) if licence.startswith("@") else licence
    done = convert(
        source, network, destination, size=size, colour=colour, key=key, reference=reference, licence=text,  # type: ignore[arg-type]
    )  # fmt: skip
    if as_json:
        print_json(done.as_values())
    else:
        say(*done.lines())
