"""The verbs of a federation between organisations: its kits, its processes and how it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedvisage.cli.options import AsJson, console

app = typer.Typer()

Public = Annotated[
    Path | None,
    typer.Option(help="This machine's copy of the public identities of a recognition run.", show_default=False),
]
State = Annotated[
    Path | None,
    typer.Option(help="Where runs (or private state) are kept; default: in the kit.", show_default=False),
]


@app.command()
def provision(
    federation: Annotated[Path, typer.Argument(help="Who serves, trains and operates (YAML).")],
    directory: Annotated[Path, typer.Argument(help="Where the kits are written.")],
) -> None:
    """Make a kit for the server, each site and the operator: keys, certificates and what each may do."""
    from fedvisage.nvflare.commands import provision_from_file

    provision_from_file(federation, directory, console())


@app.command()
def server(
    kit: Annotated[Path, typer.Argument(help="The server's kit.")],
    state: State = None,
    public: Public = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="This machine's copy of the file of weights that recipes start from.", show_default=False),
    ] = None,
) -> None:
    """Be the server of a federation, until stopped."""
    from fedvisage.nvflare.commands import start_server

    start_server(kit, state, public, weights)


@app.command()
def site(
    kit: Annotated[Path, typer.Argument(help="This site's kit.")],
    data: Annotated[Path, typer.Option(help="This site's prepared set; its path stays here.", show_default=False)],
    state: State = None,
    public: Public = None,
) -> None:
    """Be a site of a federation, until stopped: train where the data is."""
    from fedvisage.nvflare.commands import start_site

    start_site(kit, data, state, public)


@app.command()
def status(
    kit: Annotated[Path, typer.Argument(help="The operator's kit.")],
    as_json: AsJson = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print Prometheus' text format instead.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the server.", min=1.0)] = 20.0,
) -> None:
    """Say how a federation is: who is connected and was last seen when, which runs go on, round and bytes."""
    from fedvisage.nvflare.status import print_status

    print_status(kit, console(), wait=wait, as_json=as_json, as_metrics=metrics)
