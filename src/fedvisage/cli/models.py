"""The verbs that apply finished models to pictures, adapt and export them, and convert weights to start from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedvisage.base.arguments import Range
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.base.files import CACHE, read_plain
from fedvisage.cli.options import (
    NOTHING,
    App,
    AsJson,
    At,
    AtEach,
    Cache,
    Crop,
    DetectorOption,
    Int8,
    Member,
    ProgressOptions,
    Provider,
    QualityOptions,
    interruptible,
    note,
    open_noted,
    print_json,
    print_result,
    say,
    show,
    with_options,
)

if TYPE_CHECKING:
    from fedvisage.base.progress import Steps
    from fedvisage.device.predict import FaceComparisons, InputPictures, Predictions

    ImageScorer = Callable[[InputPictures, InputPictures | None, Steps], Predictions | FaceComparisons]


app = App()


@app.command("export")
@with_options()
def export_model(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run, or a converted start.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory for the result.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Prepared set (or synth: line) for the comparison of the graph with torch; default: the recipe's"
            " target."
        ),
    ] = None,
    member: Member = "",
    at: At = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also write an int8 graph.")] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="With --int8: a training set of a site, to calibrate the ranges.")
    ] = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Export a finished model as an ONNX graph that needs no torch, with a model card, and compare both models."""
    from fedvisage.device.exported import is_export
    from fedvisage.runs.export.export import export
    from fedvisage.tasks.finished_model import open_model

    if is_export(run):
        raise UserError(str(run), "is already an export; give a run")
    if int8 != (calibrate is not None):
        raise UserError("--int8", "and --calibrate SET go together: ranges and threshold come from a set")
    reporter = progress.reporter(aside=True)
    with interruptible(NOTHING):
        written = export(
            open_model(run, at=at), directory, data=data, member=member, calibrate=calibrate, cache=cache, say=reporter
        )
    note(*written.notices)
    print_result(written, as_json)


@app.command("fuse")
@with_options()
def fuse_models(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Detectors: runs, starts, exports, fused or published models."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New directory for the result.")],
    weight: Annotated[
        list[float] | None,
        typer.Option(
            help="Weight of a model in the sum, in their order; without one for the first, it has 1. Default: 1 for"
            " all."
        ),
    ] = None,
    scale: Annotated[
        list[float] | None,
        typer.Option(
            help="Divisor of the log-odds of the first models, in order; those of the others are measured on held-out"
            " people of their sites, or of --on."
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="Prepared set (or synth: line) whose held-out people measure missing scales, the threshold and AUCs;"
            " one per site. Default: even odds.",
        ),
    ] = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Fuse detectors, also of several crops, into one export that sums their log-odds."""
    from fedvisage.runs.export.fuse import fuse
    from fedvisage.starts.published import locate_detector

    reporter = progress.reporter(aside=True)
    models = [locate_detector(model) for model in models]
    with interruptible(NOTHING):
        fused = fuse(models, out, weights=weight or (), scales=scale or (), on=on or (), cache=cache, say=reporter)
    note(*fused.notices)
    print_result(fused, as_json)


@app.command("threshold")
def show_threshold(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run, or of an export.")],
    at: At = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also draw the error rates: .svg or .png.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model's operating points, with the error rates on the sites' held-out people, and draw its curves."""
    from fedvisage.device.exported import is_export

    is_exported = is_export(model)
    if is_exported:
        exported = open_noted(model)
        task, curves, own = exported.task, exported.curves, exported.threshold
    else:
        from fedvisage.tasks.finished_model import open_model

        opened = open_model(model)
        task, curves, own = opened.setup.task.name, opened.saved.curves, opened.thresholds.get("")
    from fedvisage.report import operating_points

    points = operating_points.list_points(curves, task, str(model), own, at, exported=is_exported)
    if out is not None:
        operating_points.draw(out, points)
    if as_json:
        print_json(points.as_values())
    else:
        show(points.table())
        if out is not None:
            say(f"curves: {out}")


@app.command("watch")
@with_options()
def watch_source(
    source: Annotated[
        str, typer.Argument(help="A camera's number, an rtsp:// address, a video, a picture, or a folder of pictures.")
    ],
    pad: Annotated[
        Path | None, typer.Option(help="Attack detection: a published detector (minifasnet) or an export.")
    ] = None,
    recognition: Annotated[Path | None, typer.Option(help="Exported recognition model.")] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Frames of a face over which scores are averaged; default: 10, or 1 for a folder."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Process every Nth frame.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute.")] = 1,
    at: AtEach = None,
    int8: Int8 = False,
    provider: Provider = "CPU",
    *,
    quality: QualityOptions,
) -> None:
    """Check frames one after another: print one JSON object per line, with a decision over a face's last frames."""
    from fedvisage.base.files import json_line
    from fedvisage.device import Pipeline, Settings
    from fedvisage.device.frames import open_source
    from fedvisage.device.fused import at_points

    if pad is None and recognition is None:
        raise UserError("--pad", "no model was given; give --pad DIR, --recognition DIR, or both")
    opened = open_source(source)
    pad_model, recognition_model = (
        None if directory is None else open_noted(directory, threads=threads, int8=int8, provider=provider)
        for directory in (pad, recognition)
    )
    models = at_points(pad_model, recognition_model, at or [])
    # The pictures of a folder may show different people.
    window = window or (1 if Path(source).is_dir() else Settings.window)
    pipeline = Pipeline(*models, settings=Settings(threads=threads, window=window, **asdict(quality)))
    note(*pipeline.notices, *opened.notices)
    # A frame has its number in the source, of which the pipeline gets every Nth frame only.
    places = islice(enumerate(opened.paths), 0, None, every)
    results = pipeline.watch(islice(opened.frames, 0, None, every))
    for (number, path), result in zip(places, results, strict=False):
        typer.echo(json_line({**result.as_values(), "frame": number, "path": path}), nl=False)


@app.command("predict")
@with_options()
def predict_images(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="The directory of a finished run, of its two model files, or of an export; or a converted start."
            " With --pad: the first image.",
            show_default=False,
        ),
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Images, folders of images, and videos of one face; - is an image on standard input."
        ),
    ] = None,
    paths_from: Annotated[
        Path | None, typer.Option(help="A file with one path per line, or NUL-separated; - is standard input.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Recognition: the face, or the folder of faces, to compare with.")
    ] = None,
    pad: Annotated[
        Path | None, typer.Option(help="In place of MODEL: a published detector (minifasnet) or an export.")
    ] = None,
    member: Member = "",
    crop: Crop = "face",
    detector: DetectorOption = "",
    at: At = None,
    int8: Int8 = False,
    provider: Provider = "CPU",
    strict: Annotated[
        bool, typer.Option("--strict", help="No decision, instead of a note, on a face with little context around it.")
    ] = False,
    burst: Annotated[
        bool, typer.Option("--burst", help="All images show one face: decide once, by the mean of their log-odds.")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="End with 0 if every image is live (or the same person), 1 if one is an attack (or another person),"
            " 3 if no image is an attack (or another person), but one has no decision.",
        ),
    ] = False,
    as_json: AsJson = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Score images: live or attack, with score, threshold and its operating point, or the reason for a rejection.

    With a recognition model and --against, decide whether two faces show one person, at the false match rate of the
    model's threshold.
    """
    from fedvisage.base.progress import in_steps
    from fedvisage.device.exported import is_export
    from fedvisage.device.predict import list_input_pictures, refuse_pictures
    from fedvisage.faces.pictures import BYTES_LIMIT
    from fedvisage.starts.published import detector_hint, locate_detector, read_catalogue

    def read_stdin() -> bytes:
        return sys.stdin.buffer.read(BYTES_LIMIT + 1)  # one byte more than the largest picture

    paths = paths or []
    if pad is not None:
        paths = paths if model is None else [model, *paths]  # the first argument is an image, too
        model = locate_detector(pad)
        if not is_export(model):
            raise UserError("--pad", f"{pad} is neither an export nor a published detector{detector_hint(pad)}")
    if model is None:
        raise UserError("MODEL", "is missing; give a model, or --pad NAME with a published one, such as minifasnet")
    if not model.exists() and str(model) in read_catalogue():
        raise UserError(str(model), f"is a published model; give it as --pad {model}")
    refuse_pictures(model)
    images = list_input_pictures(paths, _read_list(paths_from, paths), read_stdin)
    references = None if against is None else list_input_pictures([against])
    if references is not None and len(images.pictures) > 1:
        raise UserError("PATH", "with --against one face is compared; name one image")
    if burst:
        images = images.as_burst()
    score, notices = _open_scorer(model, member, crop, detector, int8, provider, at, strict)
    note(*notices, *(images if references is None else references).notices)
    with in_steps("images", progress.reporter(aside=True)) as steps:
        results = score(images, references, steps)
    print_result(results, as_json)
    if exit_code:
        raise typer.Exit(results.exit_code)


def _open_scorer(
    directory: Path, member: str, crop: str, detector: str, int8: bool, provider: str, at: str | None, strict: bool
) -> tuple[ImageScorer, list[str]]:
    """Return a function that scores pictures with a directory's model, and notices; an export needs no torch."""
    from fedvisage.device.exported import is_export
    from fedvisage.faces.cropping import other_detector

    model: Any
    scoring: Any
    options = {"crop": crop, "detector": detector}
    if is_export(directory):
        from fedvisage.device import predict as scoring
        from fedvisage.device.fused import open_export

        if member:
            raise UserError("--member", "an exported directory has one model; leave --member out")
        model = open_export(directory, int8=int8, provider=provider)
        model = model if at is None else model.at(at)
        records = model.crop_records
    else:
        if int8:
            raise UserError("--int8", "is for an exported directory; this is a run's")
        if provider != "CPU":
            raise UserError("--provider", "is for an exported directory; this is a run's")
        # Only the model of a run needs torch, so this import is here.
        from fedvisage.runs import predict as scoring
        from fedvisage.tasks.finished_model import open_model

        model = open_model(directory, at=at)
        records, options["member"] = model.saved.crops, member

    def score(images: InputPictures, references: InputPictures | None, steps: Steps) -> Any:
        if references is None:
            return scoring.predict(model, images, strict=strict, steps=steps, **options)
        return scoring.compare_faces(model, images.pictures[0], references, steps=steps, **options)

    return score, [*model.notices, *other_detector(detector, records)]


def _read_list(paths_from: Path | None, paths: list[Path]) -> bytes | None:
    """Return the content of the list of paths, if one is given."""
    if paths_from is None:
        return None
    if paths_from != Path("-"):
        if paths_from.exists() and not paths_from.is_file():  # such as a shell's <(…)
            raise UserError(str(paths_from), "is not a regular file; give one, or pipe the list in: --paths-from -")
        return read_plain(paths_from)
    if paths_from in paths:
        raise UserError("--paths-from", "standard input is named twice: as an image and as a list of paths")
    return sys.stdin.buffer.read()


@app.command("calibrate")
@with_options()
def calibrate_model(
    model: Annotated[Path, typer.Argument(help="The directory of an exported or fused detector, or a published one.")],
    live: Annotated[Path, typer.Option(help="Folder with five or more genuine pictures of one camera.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New directory for the calibrated export.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="POINT",
            help="Share of genuine pictures to reject, such as bpcer=2%. By default, the threshold is lowered if it "
            "rejects more than 20 %.",
        ),
    ] = None,
    crop: Crop = "face",
    detector: DetectorOption = "",
    as_json: AsJson = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Calibrate a model's threshold to one camera with genuine pictures, and write it as an export.

    Genuine pictures show how many live faces the camera would reject, but nothing about attacks.
    """
    from fedvisage.base.progress import in_steps
    from fedvisage.device.calibration import calibrate
    from fedvisage.device.exported import INT8_GRAPH, is_export
    from fedvisage.device.fused import members_of
    from fedvisage.device.predict import list_input_pictures
    from fedvisage.faces.cropping import other_detector
    from fedvisage.starts.published import detector_hint, locate_detector

    model = locate_detector(model)
    if not model.exists():
        raise UserError(str(model), f"is neither an export nor a published detector{detector_hint(model)}")
    if not is_export(model):
        raise UserError(str(model), "is not an export; write one with `fedvisage export` first")
    pictures, opened = list_input_pictures([live]), open_noted(model)
    note(*pictures.notices, *other_detector(detector, opened.crop_records))
    with interruptible(NOTHING), in_steps("images", progress.reporter(aside=True)) as steps:
        calibrated = calibrate(opened, pictures, at, out, crop=crop, detector=detector, steps=steps)
    if any((member.directory / INT8_GRAPH).is_file() for member in members_of(opened)):
        note("the result has no int8 graph, because calibrate sets the threshold of the float32 graph only")
    print_result(calibrated, as_json)


@app.command("adapt")
@with_options()
def adapt_model(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run, or of an export.")],
    data: Annotated[
        str,
        typer.Option(
            help="For a run: a prepared set (or synth: line). For an export: a folder of pictures, or a video."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New directory for the adapted export.")],
    member: Member = "",
    enlarge: Annotated[
        bool, typer.Option("--enlarge", help="For an export: also use faces that are smaller than the model's crops.")
    ] = False,
    cache: Cache = CACHE,
    *,
    progress: ProgressOptions,
) -> None:
    """Adapt a model to images without their labels, and write it as an export: see docs/adaptation.md.

    A run is adapted with torch, behind the gate. An export needs no torch: the statistics of its BatchNorm layers are
    estimated again.
    """
    from fedvisage.device.exported import is_export

    reporter = progress.reporter(aside=True)
    with interruptible(NOTHING):
        if is_export(model):
            from fedvisage.device import Pipeline, Settings
            from fedvisage.device.frames import open_source

            if member:
                raise UserError("--member", "an exported directory has one model; leave --member out")
            pipeline = Pipeline(open_noted(model), settings=Settings(enlarge=enlarge))
            source = open_source(data)
            note(*source.notices)
            say(*pipeline.adapt(source.frames, out).lines())
            return
        if enlarge:
            raise UserError("--enlarge", "is for an exported directory; this is a run's")
        from fedvisage.runs.export.export import adapt_and_export
        from fedvisage.tasks.finished_model import open_model

        adapted = adapt_and_export(open_model(model), out, data, member=member, cache=cache, say=reporter)
    note(*adapted.notices)
    say(*adapted.lines())


# The verbs for files of weights.


model_app = App()


@model_app.callback()
def model() -> None:
    """Files of weights to start from."""


@dataclass(frozen=True)
class ConversionOptions:
    """Facts about the weights that a file does not state, and the comparison of the result."""

    reference: Path | None = None
    """An ONNX graph of the same weights, to compare features of images."""
    colour: str | None = None
    """Channel order of the source, rgb or bgr, if its names do not show it."""
    size: Annotated[int | None, Range(16, 1024)] = None
    """Image side in pixels, for timm networks."""
    key: str | None = None
    """Key of the weights in a checkpoint."""
    margin: Annotated[float | None, Range(1.0, 10.0)] = None
    """For minifasnet: side of its crops over the longer side of the face box; default: the published 2.7 (v2) or 4
    (v1se)."""
    texts: Path | None = None
    """For image towers of CLIP: a safetensors file with the embeddings of prompts, attack and live."""
    licence: str = ""
    """Licence of the weights: a name, or @FILE with its text."""


@model_app.command("convert")
@with_options()
def convert_weights(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Weights: safetensors, .pt or .pth, or .onnx.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New safetensors file to write.")],
    network: Annotated[
        str,
        typer.Option(
            "--as",
            help="Network: iresnet18, iresnet50, iresnet100, mobilefacenet, mobilefacenet-dw, minifasnet-v1,"
            " minifasnet-v1se, minifasnet-v2, minifasnet-v2se, resnet18, or an architecture of timm.",
        ),
    ],
    as_json: AsJson = False,
    *,
    options: ConversionOptions,
) -> None:
    """Convert another project's weights to a file to start from; nothing is guessed, and --json lists the tensors."""
    from fedvisage.base.files import read_text
    from fedvisage.starts.convert import convert

    if options.colour not in (None, "rgb", "bgr"):
        raise UserError("--colour", f"{options.colour!r} is not a colour order; choose rgb or bgr")
    settings = asdict(options)
    if options.licence.startswith("@"):
        settings["licence"] = read_text(Path(options.licence[1:]), 1 << 20)
    print_result(convert(source, network, destination, **settings), as_json)


@model_app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List published models with the licences of their weights, and whether `fedvisage model get` has stored them."""
    from fedvisage.starts.published import read_catalogue

    models = read_catalogue().values()
    if as_json:
        print_json([model.model_dump(mode="json") | {"stored": model.directory().is_dir()} for model in models])
    for model in models if not as_json else ():
        facts = [model.task, model.weights_licence.partition(",")[0]]
        facts += ["terms to accept"] if model.restricted else []
        facts += ["needs torch"] if model.network else []
        facts += ["stored" if model.directory().is_dir() else "not stored"]
        say(f"{model.name:17}{model.title}", f"{'':17}{'; '.join(facts)}")


@model_app.command("get")
@with_options()
def get_published(
    name: Annotated[str, typer.Argument(help="Published model: see `fedvisage model list`.")],
    given: Annotated[
        list[Path] | None,
        typer.Option("--from", help="The authors' file or its folder, instead of a download.", show_default=False),
    ] = None,
    accept: Annotated[bool, typer.Option("--accept-licence", help="Accept non-commercial or unclear terms.")] = False,
    *,
    progress: ProgressOptions,
) -> None:
    """Download a published model into the cache, check its digest, and print its licence and limits once."""
    from fedvisage.runs.export.published import get_model
    from fedvisage.starts.published import read_catalogue

    catalogue = read_catalogue()
    if name not in catalogue:
        raise UserError("NAME", f"{name!r} is not a published model{choice_hint(name, catalogue)}")
    model = catalogue[name]
    if not model.directory().is_dir():
        note(*model.terms())
        if model.restricted and not accept:
            if not sys.stdin.isatty():
                raise UserError(name, "has non-commercial or unclear terms; add --accept-licence if you accept them")
            typer.confirm("These terms are non-commercial or unclear. Do you accept them?", abort=True, err=True)
        with interruptible("the same command resumes"):
            get_model(model, CACHE, given=given or (), say=progress.reporter(aside=True))
    say(f"{name}: {model.directory()}")
    if model.margins:
        say(f"score a photograph: fedvisage predict photo.jpg --pad {name}")
