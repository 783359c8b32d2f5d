"""The verbs that use finished models: on prepared sets, and on pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.options import AsJson, Cache, MixedCrops, Out, note, print_json, say
from fedvisage.datasets.cache import CACHE

app = typer.Typer()


@app.command("evaluate")
def evaluate_run(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    data: Annotated[
        str | None,
        typer.Option(help="Prepared set (or synth: line) to judge on; default: the recipe's user.", show_default=False),
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
    allow_mixed_crops: MixedCrops = False,
    out: Out = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
) -> None:
    """Judge a finished model on a prepared set, with the threshold that was chosen at the sites."""
    from fedvisage.runs.rejudge import evaluate
    from fedvisage.tasks.catalogue import summary
    from fedvisage.tasks.finished import open_model

    opened = open_model(run, adapt, pairs)
    note(*opened.notices)
    figures = evaluate(opened, data, cache, out, allow_mixed_crops=allow_mixed_crops, say=note)
    if as_json:
        print_json(figures)
    else:
        say(*summary(figures))


@app.command("predict")
def predict_images(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run, or of its two model files.")],
    path: Annotated[Path, typer.Argument(help="An image, or a folder of images.")],
    against: Annotated[
        Path | None,
        typer.Option(help="Recognition: the face, or the folder of faces, to compare with.", show_default=False),
    ] = None,
    member: Annotated[str, typer.Option(help="Which site's model, where a run has one a site.")] = "",
    crop: Annotated[str, typer.Option(help="How a face is cut out: face (detector), centre or none.")] = "face",
    as_json: AsJson = False,
) -> None:
    """Score images: live or attack, with score, threshold and its operating point, or why an image was rejected.

    With a recognition model and --against: is it one person, at the false match rate of the model's threshold?
    """
    from fedvisage.tasks.finished import open_model
    from fedvisage.tasks.pad.predict import predict
    from fedvisage.tasks.recognition.predict import compare_faces

    opened = open_model(model)
    note(*opened.notices)
    results = (
        predict(opened, path, member=member, crop=crop)
        if against is None
        else compare_faces(opened, path, against, member=member, crop=crop)
    )
    if as_json:
        print_json(results.as_values())
    else:
        say(*results.lines())
