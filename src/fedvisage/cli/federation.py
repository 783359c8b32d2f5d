"""The verbs of a federation between organisations: make kits, run the server, and show the status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE
from fedvisage.cli.options import (
    App,
    AsJson,
    Cache,
    ProgressOptions,
    console,
    interruptible,
    line_printers,
    print_json,
    recipe_files,
    say,
    with_options,
)

if TYPE_CHECKING:
    from fedvisage.nvflare.status import Status

app = App()
join_app = App()


@dataclass(frozen=True)
class MemberOptions:
    """The files of a server or site on its machine, and its output."""

    state: Path | None = None
    """Directory of runs (or private state); default: in the kit."""
    public: Path | None = None
    """This machine's copy of the public identities of a recognition run."""
    weights: Path | None = None
    """This machine's copy of the file of weights that recipes start from."""
    metrics: str | None = None
    """Serve metrics for Prometheus: PORT of this machine's 127.0.0.1, or HOST:PORT."""
    verbose: bool = False
    """Also print NVFlare's log; the kit always keeps it."""


OperatorKit = Annotated[Path, typer.Option("--kit", help="An operator's or viewer's kit.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the server.", min=1.0)]


@app.command()
def provision(
    federation: Annotated[Path, typer.Argument(help="Federation file: server, sites and operators (YAML).")],
    directory: Annotated[
        Path, typer.Argument(help="Output directory of the kits and of the authority that signs them.")
    ],
    revoke: Annotated[list[str] | None, typer.Option(help="Member whose certificates to revoke.")] = None,
    renew: Annotated[list[str] | None, typer.Option(help="Member (or 'server') whose certificate to renew.")] = None,
    sign: Annotated[
        list[Path] | None, typer.Option(help="Request of a member with `key: own`, which gets a kit without a key.")
    ] = None,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(help="Fingerprint of that request's key, as the member read it to you over another channel."),
    ] = None,
) -> None:
    """Make a kit for the server, each site and each operator: keys, certificates and permissions.

    Run it again to make kits for new members of the file, and to apply --revoke, --renew and --sign. Existing kits
    stay unchanged.
    """
    from fedvisage.nvflare.commands import provision_from_file

    changes = provision_from_file(federation, directory, revoke or (), renew or (), sign or (), fingerprint or ())
    say(*(f"{kit} → {owner}" for kit, owner in changes.kits.items()))
    say(*(f"{update} → to be copied over the kit of {owner}" for update, owner in changes.updates.items()))
    say(*changes.notes)
    say(f"{directory / 'authority'} stays with you: its key can admit anyone")


@join_app.command()
def request(
    name: Annotated[str, typer.Argument(help="Name of the site, or e-mail address of the operator or viewer.")],
    directory: Annotated[Path, typer.Argument(help="New directory, which becomes the kit.")],
    role: Annotated[str, typer.Option(help="site, operator or viewer.")] = "site",
) -> None:
    """Make a key that stays in the directory, and a request for the founder of the federation."""
    from fedvisage.nvflare.joining import make_request

    created = make_request(name, role, directory)
    say(f"{created.path} → to be sent to the founder of the federation; the key stays in {directory / 'startup'}")
    say(f"fingerprint of the key, to be read to the founder over another channel: {created.fingerprint}")
    say(f"when you have the kit and its digest: fedvisage join finish {directory} KIT --digest DIGEST")


@join_app.command()
def finish(
    directory: Annotated[Path, typer.Argument(help="The directory of `join request`.")],
    kit: Annotated[Path, typer.Argument(help="The kit that the founder made from the request.")],
    digest: Annotated[str, typer.Option(help="Digest of the kit, as the founder read it to you over another channel.")],
) -> None:
    """Copy a kit without a key into the directory of the key, which then is the complete kit."""
    from fedvisage.nvflare.joining import finish_join

    finished = finish_join(directory, kit, digest)
    say(f"{directory} → the kit of {finished.name}; {directory / 'readme.txt'} has its commands")


@app.command()
@with_options()
def cosign(
    recipe: Annotated[
        Path, typer.Argument(help="A recipe file (YAML), or the name of a shipped one.", autocompletion=recipe_files)
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="The other operator's changes to the recipe.")
    ] = None,
    *,
    kit: Annotated[Path, typer.Option(help="The second operator's kit.")],
    out: Annotated[Path, typer.Option(help="File for the signature, which goes to the other operator.")],
    cache: Cache = CACHE,
    progress: ProgressOptions,
) -> None:
    """Sign a recipe as its second operator, for sites with the rule `signatures: 2`."""
    from fedvisage.methods import read_method
    from fedvisage.nvflare.commands import cosign as sign
    from fedvisage.recipe import read_with_overrides, validate
    from fedvisage.studies.shipped import locate

    tree = read_with_overrides(locate(recipe, verb="run"), overrides or [])
    digest = sign(validate(tree, read_method), kit, out, cache, progress.reporter())
    say(f"{out} → to the operator who runs it with --cosigned, within 7 days; digest of the recipe: sha256:{digest}")


@app.command()
@with_options()
def server(
    kit: Annotated[Path, typer.Argument(help="The server's kit.")], options: MemberOptions, progress: ProgressOptions
) -> None:
    """Run the server of a federation, until stopped."""
    from fedvisage.nvflare.metrics import serve_metrics
    from fedvisage.nvflare.node import start_server
    from fedvisage.nvflare.terminal import Terminal

    front = Terminal(*line_printers(progress.quiet, progress.log_format))
    with serve_metrics(options.metrics, kit, "server", options.state, front.say):
        start_server(kit, options.state, options.public, options.weights, front, verbose=options.verbose)


@app.command()
def status(
    kit: Annotated[Path | None, typer.Option("--kit", help="An operator's or viewer's kit.")] = None,
    directory: Annotated[Path | None, typer.Argument(metavar="KIT", hidden=True)] = None,
    as_json: AsJson = False,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Print metrics in Prometheus text format instead.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write an HTML page to this file instead.")] = None,
    serve: Annotated[
        int | None, typer.Option(help="Serve that page on this port of this machine until stopped.", min=1, max=65535)
    ] = None,
    wait: Wait = 20.0,
) -> None:
    """Show the status of a federation: connected sites with last contact, and active runs with round and bytes."""
    from fedvisage.nvflare.status import metrics_of, serve_console, status_of, write_page

    kit = kit or directory  # earlier versions took an argument
    if kit is None:
        raise UserError("--kit", "is missing; give an operator's or viewer's kit")
    if sum((as_json, metrics, html is not None, serve is not None)) > 1:
        raise UserError("status", "has one output format; give only one of --json, --metrics, --html and --serve")
    if html is not None:
        write_page(html, kit, wait)
        say(str(html))
        return
    if serve is not None:
        with interruptible():
            serve_console(kit, serve, wait, say)
        return
    federation_status = status_of(kit, wait)
    if as_json:
        print_json(asdict(federation_status))
    elif metrics:
        say(*metrics_of(federation_status).splitlines())
    else:
        print_tables(federation_status)


@app.command()
def runs(kit: OperatorKit, as_json: AsJson = False, wait: Wait = 20.0) -> None:
    """List the runs on a federation's server: name, state, submitter and start."""
    from rich.table import Table
    from rich.text import Text

    from fedvisage.nvflare.status import list_runs

    listed = list_runs(kit, wait)
    if as_json:
        print_json([asdict(run) for run in listed])
        return
    table = Table("run", "state", "submitter", "started")
    for run in listed:
        table.add_row(*map(Text, (run.run, run.state, run.submitter, run.started)))
    console().print(table)


@app.command()
def stop(
    run: Annotated[
        str, typer.Argument(help="The run's name on the server (`fedvisage runs` lists them), or its directory.")
    ],
    kit: OperatorKit,
    wait: Wait = 60.0,
) -> None:
    """End a run of a federation. `fedvisage run … --resume` continues it from its last checkpoint."""
    from fedvisage.nvflare.status import stop_run

    say(f"stopped {stop_run(kit, run, wait)}; --resume continues it")


def print_tables(status: Status) -> None:
    """Print a federation's status as tables."""
    from rich.table import Table
    from rich.text import Text

    sites = Table("site", "state", "last seen", "seconds ago", title="sites")
    for site in status.sites:
        state = "stale" if site.stale else "connected"
        sites.add_row(Text(site.name), state, site.last_seen, f"{site.seconds_ago:.0f}")
    runs = Table("run", "state", "round", "did not reply", "MB up", "MB down", title="runs")
    for run in status.runs:
        sizes = (f"{count / 1e6:.1f}" for count in (run.bytes_up, run.bytes_down))
        runs.add_row(Text(run.run), run.state, f"{run.round}/{run.rounds}", Text(", ".join(run.without)), *sizes)
    console().print(sites)
    console().print(runs)
    say(*status.differences)
    for certificate in status.certificates:
        if certificate.ends_soon:
            say(
                f"{certificate.name}'s certificate ends on {certificate.until[:10]}, "
                f"in {certificate.days_left:.0f} days; provision --renew"
            )
