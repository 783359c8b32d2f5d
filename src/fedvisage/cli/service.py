"""The verb that serves finished models over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedvisage.cli.options import note, say
from fedvisage.errors import RunFailed, Terminated, UserError

if TYPE_CHECKING:
    from fedvisage.device import Exported
    from fedvisage.web.contents import Entry

app = typer.Typer()


@app.command()
def serve(
    pad: Annotated[Path, typer.Option(help="An exported model that tells attacks.", show_default=False)],
    recognition: Annotated[
        Path | None, typer.Option(help="An exported model that recognises people.", show_default=False)
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="A gallery's file; see `fedvisage gallery create`.", show_default=False)
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The gallery's key; default: the variable FEDVISAGE_GALLERY_KEY.", show_default=False),
    ] = None,
    counters: Annotated[
        Path | None,
        typer.Option(
            help="The folder of its counter; default: the variable FEDVISAGE_GALLERY_COUNTERS, or KEY.counters.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.", min=0, max=65535)] = 8080,
    api_keys: Annotated[
        Path | None, typer.Option(help="A file with the keys of those who may ask, one a line.", show_default=False)
    ] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Answer everybody who reaches this machine.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate (PEM): serve HTTPS.", show_default=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).", show_default=False)] = None,
    rate: Annotated[float, typer.Option(help="Requests a second of one key; 0: no limit.", min=0.0)] = 20.0,
    burst: Annotated[int, typer.Option(help="Requests of one key that may come at once.", min=1)] = 100,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", min=1)] = 10_000_000,
    max_pixels: Annotated[int, typer.Option(help="Pixels of a picture.", min=1)] = 50_000_000,
    timeout: Annotated[float, typer.Option(help="Seconds for a request.", min=0.1)] = 30.0,
    workers: Annotated[int, typer.Option(help="Requests that are computed at a time.", min=1)] = 2,
    threads: Annotated[int, typer.Option(help="Threads that compute one request.", min=1)] = 1,
    page: Annotated[
        bool, typer.Option(help="Deliver the page that checks faces in the browser, and the models to it.")
    ] = True,
) -> None:
    """Answer over HTTP what finished models and a gallery say of pictures; docs/api.md lists the routes.

    SIGTERM and Ctrl-C end it when the requests at hand are answered.
    """
    try:
        from fedvisage.service.app import build
        from fedvisage.service.running import check_open, server_of
    except ModuleNotFoundError as error:
        raise UserError("serve", f'{error.name} is not installed; install "fedvisage[serve]"') from None
    from fedvisage.device import Exported
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.keys import key_from
    from fedvisage.gallery.search import Gallery
    from fedvisage.service.engine import open_engine
    from fedvisage.service.settings import Keys, Limits, read_keys

    keys = Keys() if api_keys is None else read_keys(api_keys)
    check_open(host, keys, without_keys)
    limits = Limits(max_body, max_pixels, timeout, rate, burst, workers)
    with ExitStack() as stack:
        people = None
        if gallery is not None:
            people = stack.enter_context(Gallery(gallery, key_from(key), counters=counters_of(key, counters)))
        tells = Exported.open(pad, threads=threads)
        knows = None if recognition is None else Exported.open(recognition, threads=threads)
        engine = open_engine(tells, knows, threads)
        if people is not None and engine.model is not None:
            note(*people.warm(engine.model.digest))
        files = _page(tells, knows, keys=bool(keys)) if page else None
        guard = build(engine, people, keys=keys, limits=limits, page=files, log=_log)
        server = server_of(guard, host, port, certificate=tls_cert, key=tls_key)
        say(f"answering at http{'s' if tls_cert else ''}://{host}:{port}; end it with Ctrl-C")
        try:
            server.run()
        except (KeyboardInterrupt, Terminated):
            pass  # the server was told so as well, and has ended
        except SystemExit:
            raise RunFailed(f"{host}:{port} cannot be listened at; is another service there?") from None
    say("stopped")


def _page(pad: Exported, recognition: Exported | None, *, keys: bool) -> Mapping[str, Entry]:
    """Return the files of the browser page, and say so if it has to ask the service for every picture."""
    from fedvisage.web.contents import contents
    from fedvisage.web.runtime import ADVICE, Runtime

    if not Runtime().is_there:
        note(f"the page cannot compute in browsers and asks this service instead; to change that, {ADVICE}")
    return contents(pad, recognition, service={"keys": keys})


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
