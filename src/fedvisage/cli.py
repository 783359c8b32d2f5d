"""The command line: one function a verb and no logic. Heavy imports happen inside the verbs, so --help is instant."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from fedvisage import __version__
from fedvisage.errors import RunFailed, UserError

app = typer.Typer(
    help="Federated learning for faces, where the faces never leave their owners.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: fedvisage demo",
)
data_app = typer.Typer(help="Make, import and look at prepared sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

CONTINUES = "the same command with --resume continues (a study continues by itself)"
NOTHING = "nothing was written"
CACHE = Path(os.environ.get("FEDVISAGE_CACHE", "~/.cache/fedvisage")).expanduser()

Out = Annotated[Optional[Path], typer.Option("--out", help="Directory for the result.", show_default=False)]  # noqa: UP045
Cache = Annotated[Path, typer.Option("--cache", help="Where rendered sets are kept for the next run.")]
Runs = Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)]
Kit = Annotated[Optional[Path], typer.Option(help="The operator's kit of a federation.", show_default=False)]  # noqa: UP045
Public = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="This machine's copy of the public identities of a recognition run.", show_default=False),
]
State = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Where runs (or private state) are kept; default: in the kit.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")]


@app.command()
def demo(
    out: Out = None,
    cache: Cache = CACHE,
    resume: Annotated[bool, typer.Option(help="Continue an earlier demo.")] = False,
) -> None:
    """Train three sites together at toy size, judge them at an unseen user, and write table, pictures and report."""
    from fedvisage.demo import demonstrate

    with _interruptible(CONTINUES):
        demonstrate(out or Path("runs/demo"), cache, _console(), resume=resume)


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe file (YAML).")],
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, such as training.rounds=5."),
    ] = None,
    out: Out = None,
    on: Annotated[
        str,
        typer.Option(
            help="Transport: local runs all sites in this process; nvflare runs the federation of --kit, or without one"
            " rehearses on this machine, with a process for the server and each site."
        ),
    ] = "local",
    kit: Kit = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server and the sites.", min=1.0)] = 300.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    cache: Cache = CACHE,
) -> None:
    """Run a recipe: train, judge at the user, write the run directory with its report."""
    from fedvisage.methods import options
    from fedvisage.recipe import load
    from fedvisage.run import run_and_report

    if on not in ("local", "nvflare"):
        raise UserError("--on", f"{on!r} is no transport; choose local or nvflare")
    if kit is not None and on == "local":
        raise UserError("--kit", "belongs to a federation; add --on nvflare")
    loaded = load(recipe, overrides or [], options())
    where = out or Path("runs") / f"{recipe.stem}-seed{loaded.runtime.seed}"
    with _interruptible(CONTINUES):
        if on == "local":
            run_and_report(loaded, where, cache, _console(), resume=resume)
        else:
            from fedvisage.federation.nvflare.commands import run_over_nvflare

            run_over_nvflare(loaded, where, cache, _console(), resume=resume, kit=kit, wait=wait)


@app.command()
def study(
    study: Annotated[Path, typer.Argument(help="A study file (YAML): a grid of recipes.")],
    changes: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to every recipe, such as runtime.threads=2."),
    ] = None,
    out: Out = None,
    runs: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where the runs lie; studies that share it share equal runs.", show_default="OUT/cells"),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Try the whole grid in a minute: one batch, tiny rendered sets, one seed.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes; give the recipe as many threads as cores / workers.", min=1)
    ] = 1,
    cache: Cache = CACHE,
) -> None:
    """Run a grid of recipes and print its table, mean ± std over seeds; continues where it was interrupted."""
    from fedvisage.study import conduct

    where = out or Path("runs") / f"{study.stem}{'-smoke' if smoke else ''}"
    with _interruptible(CONTINUES):
        conduct(study, where, cache, _console(), changes=changes or (), smoke=smoke, runs=runs, workers=workers)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Prepared set (or synth: line) to judge on; default: the recipe's user.", show_default=False),
    ] = None,
    adapt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Adapt the model to the images first, without their labels: gated, paper, online, episodic or none;"
            " default: what the recipe says.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    cache: Cache = CACHE,
    as_json: AsJson = False,
) -> None:
    """Judge a finished model on a prepared set, with the threshold that was chosen at the sites."""
    from fedvisage.rejudge import evaluate_run

    evaluate_run(run, data, out, cache, _console(), adapt=adapt, as_json=as_json)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run, or of its two model files.")],
    path: Annotated[Path, typer.Argument(help="An image, or a folder of images.")],
    against: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Recognition: the face, or the folder of faces, to compare with.", show_default=False),
    ] = None,
    member: Annotated[str, typer.Option(help="Which site's model, where a run has one a site.")] = "",
    crop: Annotated[str, typer.Option(help="How a face is cut out: face (detector), centre or none.")] = "face",
    as_json: AsJson = False,
) -> None:
    """Score images: live or attack, with score, threshold and its operating point, or why an image was rejected.

    With a recognition model and --against: is it one person, at the false match rate of the model's threshold?
    """
    if against is not None:
        from fedvisage.predict_faces import compare_faces

        compare_faces(model, path, against, _console(), member=member, crop=crop, as_json=as_json)
        return
    from fedvisage.predict import predict_path

    predict_path(model, path, _console(), member=member, crop=crop, as_json=as_json)


@app.command()
def compare(runs: Runs, as_json: AsJson = False) -> None:
    """Compare runs: mean ± std over seeds, and differences paired over user and seed."""
    from fedvisage.report.compare import compare_runs

    compare_runs(runs, _console(), as_json=as_json)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="The directory of a finished run.")]) -> None:
    """Draw a run's report and TensorBoard files again from its files."""
    from fedvisage.report.page import write_report
    from fedvisage.report.tensorboard import write_events

    write_events(run)
    _console().print(str(write_report(run)), soft_wrap=True)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The directory of a finished run, whose data is at hand.")],
    out: Out = None,
    cache: Cache = CACHE,
) -> None:
    """Attack a run as a curious server could, and say what it would find out: numbers, pictures, and in the report."""
    from fedvisage.audit.conduct import audit_run

    with _interruptible(NOTHING):
        audit_run(run, out, cache, _console())


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the methods: name, paper, task, and what leaves a site."""
    from fedvisage.methods.listing import print_methods

    print_methods(_console(), as_json=as_json)


@app.command()
def provision(
    federation: Annotated[Path, typer.Argument(help="Who serves, trains and operates (YAML).")],
    directory: Annotated[Path, typer.Argument(help="Where the kits are written.")],
) -> None:
    """Make a kit for the server, each site and the operator: keys, certificates and what each may do."""
    from fedvisage.federation.nvflare.commands import provision_from_file

    provision_from_file(federation, directory, _console())


@app.command()
def server(
    kit: Annotated[Path, typer.Argument(help="The server's kit.")],
    state: State = None,
    public: Public = None,
) -> None:
    """Be the server of a federation, until stopped."""
    from fedvisage.federation.nvflare.commands import start_server

    start_server(kit, state, public)


@app.command()
def site(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option(help="This site's prepared set; its path stays here.", show_default=False)],
    state: State = None,
    public: Public = None,
) -> None:
    """Be a site of a federation, until stopped: train where the data is."""
    from fedvisage.federation.nvflare.commands import start_site

    start_site(kit, data, state, public)


@app.command()
def status(
    kit: Annotated[Path, typer.Argument(help="The operator's kit.")],
    as_json: AsJson = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print Prometheus' text format instead.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server.", min=1.0)] = 20.0,
) -> None:
    """Say how a federation is: who is connected and was last seen when, which runs go on, round and bytes."""
    from fedvisage.federation.nvflare.status import print_status

    print_status(kit, _console(), wait=wait, as_json=as_json, as_metrics=metrics)


@data_app.command()
def synth(
    destination: Annotated[Path, typer.Argument(help="Where the prepared set is written.")],
    domain: Annotated[str, typer.Option(help="O C I M S 3 H W E F or A, after the datasets of the papers.")] = "O",
    size: Annotated[
        int, typer.Option(help="Pixels, an even number; images are rendered at it.", min=32, max=512)
    ] = 128,
    subjects: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="People; default: the domain's.", show_default=False, min=1),
    ] = None,
    videos: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Bona fide videos a person; default: the domain's.", show_default=False, min=1),
    ] = None,
    frames: Annotated[int, typer.Option(help="Frames a video.", min=1)] = 4,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    heldout: Annotated[float, typer.Option(help="Share of subjects held out.", min=0.0, max=0.9)] = 0.25,
    species: Annotated[
        str, typer.Option(help="Kinds of attacks, such as print,replay; default: all of the domain.")
    ] = "",
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--from", help="A folder of real face photos to attack instead of rendered people.", show_default=False
        ),
    ] = None,
    crop: Annotated[
        str,
        typer.Option(
            help="With --from: face finds the face in each photo and cuts it out, as import and predict do; centre is"
            " for photos that are face crops already; none takes square photos as they are."
        ),
    ] = "face",
    max_bad: Annotated[
        float, typer.Option(help="With --from: stop above this share of unusable photos.", min=0.0, max=1.0)
    ] = 0.05,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
) -> None:
    """Render a prepared set: synthetic people and simulated presentation attacks, or attacks on your own photos.

    Photos that cannot be used, or would have to be enlarged, are skipped, counted and listed.
    """
    with _interruptible(NOTHING):
        from fedvisage.data.make import synthesise_set

        synthesise_set(destination, _console(), domain=domain, size=size, subjects=subjects, videos=videos,
                       frames=frames, seed=seed, heldout=heldout, species=species, photos=source, crop=crop,
                       max_bad=max_bad, workers=workers)  # fmt: skip


@data_app.command()
def people(
    destination: Annotated[Path, typer.Argument(help="Where the identity set is written.")],
    identities: Annotated[int, typer.Option(help="People.", min=1)] = 40,
    images: Annotated[int, typer.Option(help="Photographs of each.", min=1)] = 20,
    size: Annotated[int, typer.Option(help="Pixels of the aligned crops, an even number.", min=32, max=384)] = 112,
    first: Annotated[
        int, typer.Option(help="Number of the first person; sets with other numbers are disjoint.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    test: Annotated[
        float, typer.Option(help="Share of each person's photographs kept for testing.", min=0.0, max=0.9)
    ] = 0.4,
    heldout: Annotated[
        float, typer.Option(help="Share of people held out whole, as impostors.", min=0.0, max=0.9)
    ] = 0.0,
    group: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="One of the four groups, 0 to 3; default: all in turn.", show_default=False, min=0, max=3),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
) -> None:
    """Render an identity set for face recognition: many aligned photographs of each synthetic person."""
    with _interruptible(NOTHING):
        from fedvisage.data.make import synthesise_people

        synthesise_people(destination, _console(), identities=identities, images=images, size=size, first=first,
                          seed=seed, test=test, heldout=heldout, group=group, workers=workers)  # fmt: skip


@data_app.command("import")
def import_set(
    kind: Annotated[str, typer.Argument(help="Layout of the source, such as folder.")],
    source: Annotated[Path, typer.Argument(help="Directory of the dataset.")],
    destination: Annotated[Path, typer.Argument(help="Where the prepared set is written.")],
    name: Annotated[str, typer.Option(help="Name of the set; default: the source's directory.")] = "",
    size: Annotated[int, typer.Option(help="Pixels of the stored crops.", min=16, max=1024)] = 256,
    frames: Annotated[int, typer.Option(help="Frames taken from each video.", min=1)] = 10,
    crop: Annotated[str, typer.Option(help="face (detector), centre or none.")] = "face",
    depth: Annotated[
        str,
        typer.Option(
            help="Depth maps of bona fide images: canonical fits an average face to the detector's five points; a"
            " directory has NAME_depth.jpg for each NAME.jpg; none; auto is canonical with --crop face, else none."
        ),
    ] = "auto",
    heldout: Annotated[float, typer.Option(help="Share of subjects held out.", min=0.0, max=0.9)] = 0.25,
    test: Annotated[
        float, typer.Option(help="Identities: share of each person's images kept for testing.", min=0.0, max=0.9)
    ] = 0.4,
    max_bad: Annotated[float, typer.Option(help="Stop above this share of unusable files.", min=0.0, max=1.0)] = 0.05,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Import a dataset into a prepared set; unusable files are skipped, counted and listed."""
    with _interruptible(NOTHING):
        from fedvisage.data.make import import_dataset

        import_dataset(kind, source, destination, _console(), name=name, size=size, frames=frames, crop=crop,
                       depth=depth, heldout=heldout, test=test, max_bad=max_bad, seed=seed)  # fmt: skip


@data_app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A prepared set.")],
    sheet: Annotated[Optional[Path], typer.Option(help="Write a contact sheet (PNG).", show_default=False)] = None,  # noqa: UP045
    verify: Annotated[bool, typer.Option(help="Compare all digests, reading every file.")] = False,
) -> None:
    """Say what a prepared set holds, and draw a contact sheet of it."""
    from fedvisage.data.make import show_set

    show_set(directory, _console(), sheet=sheet, verify=verify)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake ends with a message and 2, a run that could not go on with 1."""
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read the output has left
        sys.exit(1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _fail("the disk is full; free some space and continue with --resume", 1)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2)


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"fedvisage: {message}", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


@contextmanager
def _interruptible(then: str) -> Iterator[None]:
    """Turn Ctrl-C into an end with one line that says what is left."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunFailed(f"interrupted; {then}") from None


def _console() -> Console:
    return Console(highlight=False)
