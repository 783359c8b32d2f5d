"""The verbs for finished models in use: the gallery, the browser page, and the HTTP service."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedvisage.base.arguments import Range
from fedvisage.base.errors import RunFailed, TerminationSignal, UserError, plain_line
from fedvisage.cli.options import (
    NOTHING,
    App,
    AsJson,
    AtEach,
    Int8,
    Out,
    Provider,
    QualityOptions,
    interruptible,
    note,
    open_noted,
    print_json,
    print_result,
    say,
    with_options,
)

if TYPE_CHECKING:
    from fedvisage.device import Exported, Settings
    from fedvisage.device.fused import Model
    from fedvisage.device.gallery.enrolment import Engine, PersonMatch
    from fedvisage.device.gallery.search import Gallery
    from fedvisage.device.service.access import Keys
    from fedvisage.device.service.limits import Limits
    from fedvisage.device.web.site import PageFile
    from fedvisage.faces.align import Image
    from fedvisage.metrics.similarity import Features

# The verbs of a gallery: create one, enrol, search, verify and remove people, and rotate its key.


gallery_app = App()

GalleryPath = Annotated[Path, typer.Argument(metavar="GALLERY", help="The gallery's file.")]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", help="The gallery's key file; default: the variable FEDVISAGE_GALLERY_KEY.", show_default=False
    ),
]
Counters = Annotated[
    Path | None,
    typer.Option(
        "--counters",
        help="Folder of counters that reveal an older copy of the file; default: the variable "
        "FEDVISAGE_GALLERY_COUNTERS, or KEY.counters beside the key.",
        show_default=False,
    ),
]
CollectionName = Annotated[str, typer.Option("--collection", help="The collection of people.")]
Pad = Annotated[Path, typer.Option("--pad", help="An exported model that detects attacks.", show_default=False)]
Recognition = Annotated[
    Path, typer.Option("--recognition", help="An exported model that recognises people.", show_default=False)
]
MaybeRecognition = Annotated[
    Path | None, typer.Option("--recognition", help="An exported model that recognises people.", show_default=False)
]
PicturePath = Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture of one face.")]
COLLECTION = "default"


@gallery_app.command()
def create(
    gallery: GalleryPath,
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
    renewable: Annotated[
        bool, typer.Option("--renewable", help="Keep revocable signs of a keyed projection instead of embeddings.")
    ] = False,
) -> None:
    """Create a gallery with one empty collection, or add a collection; a new gallery's key is generated if missing."""
    from fedvisage.device.gallery.counter import counters_of
    from fedvisage.device.gallery.file import NameTaken, make_key_file
    from fedvisage.device.gallery.search import Gallery

    if key is not None and not key.exists() and not gallery.exists():
        make_key_file(key)
        say(f"generated the key {key}: keep a copy elsewhere; the gallery cannot be opened without it")
    if not gallery.exists():
        Gallery.create(gallery, _key(key), counters=counters_of(key, counters)).close()
    with _open_gallery(gallery, key, counters) as opened:
        try:
            opened.add_collection(collection, renewable=renewable)
        except NameTaken:
            fault = f"exists, with the collection {collection}; add another with --collection NAME"
            raise NameTaken(str(gallery), fault) from None
    say(f"{gallery}: collection {collection} is ready")


@gallery_app.command("list")
def list_people(gallery: GalleryPath, key: Key = None, counters: Counters = None, as_json: AsJson = False) -> None:
    """List collections and the people enrolled in them."""
    from fedvisage.base.progress import format_count

    with _open_gallery(gallery, key, counters) as opened:
        listing = [(collection, opened.people(collection.name)) for collection in opened.collections()]
    if as_json:
        print_json(
            [{**asdict(collection), "people": [asdict(person) for person in people]} for collection, people in listing]
        )
        return
    for collection, people in listing:
        count = format_count(len(people), "person", "people")
        say(f"{collection.name}: {count}{', renewable templates' if collection.renewable else ''}")
        say(*(f"  {person.name}  {person.id}  since {person.created}" for person in people))


@gallery_app.command()
def enrol(
    gallery: GalleryPath,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Pictures, or folders of them.")],
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
    at: AtEach = None,
    force: Annotated[
        bool, typer.Option("--force", help="Enrol even if faces or name resemble those of another person.")
    ] = False,
) -> None:
    """Enrol a person with the pictures that show one living face well; templates of another model are replaced."""
    from fedvisage.base.progress import format_count
    from fedvisage.device.gallery import enrolment

    with _open_gallery(gallery, key, counters) as opened:
        engine = _engine(pad, recognition, at)
        enrolled = enrolment.enrol(opened, engine, collection, person, _pictures(images), force=force)
    note(*(plain_line(f"{name}: not taken: {reason}") for name, reason in enrolled.refused))
    for name in enrolled.unlike:
        note(plain_line(f"{name}: matches no other of these faces; is this {enrolled.person.name}?"))
    replaced = f"; {enrolled.replaced} templates of another model are gone" if enrolled.replaced else ""
    faces = format_count(len(enrolled.faces), "face")
    say(f"{enrolled.person.name} ({enrolled.person.id}): {faces} enrolled{replaced}")


@gallery_app.command()
def search(
    gallery: GalleryPath,
    image: PicturePath,
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
    at: AtEach = None,
    limit: Annotated[int, typer.Option(help="Maximum number of people in the result.", min=1, max=1000)] = 5,
    as_json: AsJson = False,
) -> None:
    """List the enrolled people most similar to the face in a picture; an attack is not searched for."""
    from fedvisage.device.gallery import enrolment

    with _open_gallery(gallery, key, counters) as opened:
        engine = _engine(pad, recognition, at)
        _print_matches(enrolment.search(opened, engine, collection, _face(engine, image), limit), as_json)


@gallery_app.command()
def verify(
    gallery: GalleryPath,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name, or id.")],
    image: PicturePath,
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
    at: AtEach = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 0 if it is the person, 1 if not.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that a picture shows a given enrolled person."""
    from fedvisage.device.gallery import enrolment
    from fedvisage.device.pipeline import MATCH

    with _open_gallery(gallery, key, counters) as opened:
        engine = _engine(pad, recognition, at)
        match = enrolment.verify(opened, engine, collection, person, _face(engine, image))
    _print_matches([match], as_json)
    if exit_code:
        raise typer.Exit(int(match.decision != MATCH))


@gallery_app.command()
def remove(
    gallery: GalleryPath,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name, or id.")],
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
) -> None:
    """Delete a person, and everything that the file holds about them."""
    with _open_gallery(gallery, key, counters) as opened:
        record = opened.remove(collection, person)
        try:
            opened.compact()
        except RunFailed:
            note(f"{gallery} keeps its size: the disk is full or failing, or another process uses the file")
    say(f"{record.name} ({record.id}): deleted; earlier copies of the file still contain this person")


@gallery_app.command("rotate-key")
def rotate_key(
    gallery: GalleryPath,
    new_key: Annotated[Path, typer.Option("--new-key", help="File of the new key; generated if missing.")],
    key: Key = None,
    counters: Counters = None,
) -> None:
    """Rotate a gallery's key: every person's key is wrapped again, templates stay as they are."""
    from fedvisage.base.progress import format_count
    from fedvisage.device.gallery.counter import counters_of
    from fedvisage.device.gallery.file import key_from, make_key_file

    with _open_gallery(gallery, key, counters) as opened:
        if not new_key.exists():
            make_key_file(new_key)
        people = opened.turn_key(key_from(new_key), counters_of(new_key, counters))
    encrypted = format_count(people, "person is", "people are")
    say(f"{gallery}: {encrypted} encrypted with {new_key}; the old key still opens earlier copies")


@gallery_app.command("accept-state")
def accept_state(gallery: GalleryPath, key: Key = None, counters: Counters = None) -> None:
    """Accept the file as it is, after an older copy was restored on purpose or the counter was lost."""
    from fedvisage.device.gallery.counter import counters_of
    from fedvisage.device.gallery.search import Gallery

    with Gallery(gallery, _key(key)) as opened:
        number = opened.accept_state(counters_of(key, counters))
        people = sum(collection.people for collection in opened.collections())
    say(f"{gallery}: accepted with {people} people as change {number}; all other copies are now refused")


@gallery_app.command()
def migrate(gallery: GalleryPath, key: Key = None, counters: Counters = None) -> None:
    """Migrate a gallery of an earlier version to this one; a backup of the file is kept next to it."""
    from fedvisage.device.gallery.counter import counters_of
    from fedvisage.device.gallery.migration import migrate as bring

    backup, people = bring(gallery, _key(key), counters_of(key, counters))
    say(
        f"{gallery}: migrated {people} people without changes; the backup {backup} also keeps people who are removed "
        "later, until you delete it"
    )


@gallery_app.command()
def evaluate(
    gallery: GalleryPath,
    probes: Annotated[Path, typer.Argument(metavar="PROBES", help="A folder with one folder of pictures per person.")],
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: CollectionName = COLLECTION,
    at: AtEach = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often enrolled people are identified and strangers are mistaken for them: TPIR at stated FPIR.

    A folder without the name of an enrolled person counts as a stranger.
    """
    from fedvisage.device.gallery.enrolment import evaluate as evaluate_search

    folders = sorted(folder for folder in probes.iterdir() if folder.is_dir()) if probes.is_dir() else []
    if not folders:
        raise UserError(str(probes), "has no folders of pictures; make one for each person")
    with _open_gallery(gallery, key, counters) as opened:
        labelled = ((folder.name, image) for folder in folders for _, image in _pictures([folder]))
        figures = evaluate_search(opened, _engine(pad, recognition, at), collection, labelled)
    print_result(figures, as_json)


def _key(path: Path | None) -> bytes:
    """Read a gallery's key, and warn if other accounts of the machine can read its file."""
    from fedvisage.device.gallery.file import key_from

    key = key_from(path)
    _note_if_readable(path)
    return key


def _note_if_readable(path: Path | None) -> None:
    if path is not None and path.stat().st_mode & 0o077:
        note(f"{path} is readable by other users; run chmod 600 to make it private")


def _open_gallery(path: Path, key: Path | None, counters: Path | None) -> Gallery:
    from fedvisage.device.gallery.counter import counters_of
    from fedvisage.device.gallery.search import Gallery

    return Gallery(path, _key(key), counters=counters_of(key, counters))


def _engine(pad: Path, recognition: Path, at: list[str] | None) -> Engine:
    from fedvisage.device.fused import at_points
    from fedvisage.device.service.app import open_engine

    return open_engine(*at_points(open_noted(pad), open_noted(recognition), at or []))


def _pictures(paths: list[Path]) -> Iterator[tuple[str, Image]]:
    """Yield name and image of each readable picture; print a note about the others."""
    from fedvisage.base.errors import BadFile
    from fedvisage.device.predict import list_input_pictures

    for picture in list_input_pictures(paths).pictures:
        try:
            image = picture.read()
        except BadFile as bad:
            note(plain_line(f"{picture.name}: not taken: {bad}"))
            continue
        yield picture.name, image


def _face(engine: Engine, path: Path) -> Features:
    """Return the features of the one face in a picture, or raise ``UserError`` with the reason for its rejection."""
    from fedvisage.device.gallery.enrolment import face_to_enrol

    if path.is_dir():
        raise UserError(str(path), "is a folder; give one picture")
    for _, image in _pictures([path]):
        face = face_to_enrol(engine, image)
        if isinstance(face, str):
            raise UserError(str(path), f"{face}; no search was made")
        if face.embedding is not None:
            return face.embedding
    raise UserError(str(path), "contains no readable picture")


def _print_matches(matches: list[PersonMatch], as_json: bool) -> None:
    """Print matches as a table, or as JSON."""
    if as_json:
        print_json([asdict(match) for match in matches])
    elif not matches:
        say("nobody is enrolled")
    else:
        best = matches[0]
        say(f"threshold: similarity {best.threshold:+.4f}, {best.operating_point}")
        say(*(f"{match.decision:9}{match.similarity:+.4f}  {match.name}  {match.person}" for match in matches))


# The verbs of the browser page: fetch its runtime, and write the page as a folder.


web_app = App()


@web_app.command()
def fetch(
    out: Out = None,
    archive: Annotated[
        Path | None, typer.Option(help="The package's archive, if downloaded elsewhere (npm pack).", show_default=False)
    ] = None,
    registry: Annotated[str, typer.Option(help="The registry of npm packages.")] = "https://registry.npmjs.org",
) -> None:
    """Fetch the three files of onnxruntime-web that a page needs: one version, with known digests."""
    from fedvisage.device.web.site import RuntimeFiles

    runtime = RuntimeFiles() if out is None else RuntimeFiles(out)
    with interruptible(NOTHING):
        runtime.fetch(archive, registry)
    say(f"{runtime.folder}: the files of {runtime}")


@web_app.command()
def build(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory for the page.")],
    pad: Pad,
    recognition: MaybeRecognition = None,
    int8: Annotated[bool, typer.Option("--int8", help="Use the int8 graphs of the exported directories.")] = False,
    runtime: Annotated[
        Path | None,
        typer.Option(help="Folder with the files of `web fetch`; default: its own folder.", show_default=False),
    ] = None,
) -> None:
    """Write a page that checks faces in the browser, as a folder for any web server; no picture leaves the browser."""
    from fedvisage.device.web.site import RuntimeFiles
    from fedvisage.device.web.site import build as build_folder

    pad_model = open_noted(pad, int8=int8)
    recognition_model = None if recognition is None else open_noted(recognition, int8=int8)
    with interruptible(NOTHING):
        built = build_folder(
            directory, pad_model, recognition_model, runtime=None if runtime is None else RuntimeFiles(runtime)
        )
    say(*built.lines())


app = App()


@dataclass(frozen=True)
class ServiceOptions:
    """The address of a service, its clients, and its logs."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Range(0, 65535)] = 8080
    """The port."""
    host_name: list[str] | None = None
    """A host name of the service besides localhost; repeat it for more."""
    api_keys: Path | None = None
    """A file with a line NAME SCOPE KEY per client; scopes: check, enrol, admin."""
    audit_log: Path | None = None
    """Audit log: one JSON line per request, with client and action."""
    without_keys: bool = False
    """Answer every client without a key."""
    without_nonces: bool = False
    """Enrol for clients on other machines without a nonce."""
    tls_cert: Path | None = None
    """A certificate (PEM): serve HTTPS."""
    tls_key: Path | None = None
    """The certificate's key (PEM)."""
    proxy: list[str] | None = None
    """The address of a proxy whose X-Forwarded-For and -Proto are trusted; repeat it for more."""


@dataclass(frozen=True)
class LimitOptions:
    """The limits of a service."""

    rate: Annotated[float, Range(0.0)] = 20.0
    """Requests per second and key; 0: no limit."""
    burst: Annotated[int, Range(1)] = 100
    """Burst of requests that a key may send."""
    max_body: Annotated[int, Range(1)] = 10_000_000
    """Maximum bytes of a request."""
    max_pixels: Annotated[int, Range(1)] = 16_000_000
    """Maximum pixels of a picture; larger JPEGs are reduced first."""
    max_faces: Annotated[int, Range(1)] = 20
    """Maximum faces to evaluate per picture."""
    max_bodies: Annotated[int, Range(1)] = 200_000_000
    """Maximum bytes of all unanswered requests; a key may have a quarter."""
    timeout: Annotated[float, Range(0.1)] = 30.0
    """Maximum seconds for a request."""
    workers: Annotated[int, Range(1)] = 2
    """Requests to compute at a time."""
    threads: Annotated[int, Range(1)] = 1
    """Threads per request."""

    def as_limits(self) -> Limits:
        """Return the limits on requests."""
        from fedvisage.device.service.limits import Limits

        requests = Limits(self.max_body, self.max_pixels, self.max_faces, self.timeout, self.rate, self.burst)
        return replace(requests, workers=self.workers, bodies=self.max_bodies)


@app.command()
@with_options()
def serve(
    pad: Pad,
    recognition: MaybeRecognition = None,
    gallery: Annotated[
        Path | None, typer.Option(help="A gallery's file; see `fedvisage gallery create`.", show_default=False)
    ] = None,
    key: Key = None,
    counters: Counters = None,
    *,
    service: ServiceOptions,
    limits: LimitOptions,
    at: AtEach = None,
    int8: Int8 = False,
    provider: Provider = "CPU",
    page: Annotated[
        bool, typer.Option(help="Deliver the page that checks faces in the browser, with its models.")
    ] = True,
    quality: QualityOptions,
) -> None:
    """Serve exported models and a gallery over HTTP; docs/api.md lists the routes.

    SIGTERM and Ctrl-C stop the service after it has answered the current requests.
    """
    from fedvisage.device import Pipeline, Settings
    from fedvisage.device.fused import at_points
    from fedvisage.device.gallery.enrolment import Engine
    from fedvisage.device.service.access import Keys, Nonces
    from fedvisage.device.service.app import build, check_open, server_of
    from fedvisage.device.service.guard import AuditLog

    # Refuse an unprotected service before any model is loaded.
    keys, host = Keys() if service.api_keys is None else _api_keys(service.api_keys), service.host
    check_open(host, keys, service.without_keys)
    if gallery is not None and recognition is None:
        raise UserError("--gallery", "needs a recognition model, which makes its templates; give --recognition")
    opened: AbstractContextManager[Gallery | None]
    opened = nullcontext() if gallery is None else _open_gallery(gallery, key, counters)
    with opened as people:
        settings = Settings(threads=limits.threads, several=True, **asdict(quality))
        open_model = partial(open_noted, threads=limits.threads, int8=int8, provider=provider)
        own = open_model(pad), None if recognition is None else open_model(recognition)
        pad_model, recognition_model = at_points(*own, at or [])
        assert pad_model is not None
        pipeline = Pipeline(pad_model, recognition_model, settings=settings)
        note(*pipeline.notices)
        engine = Engine(pipeline)
        if people is not None and engine.model is not None:
            note(*people.warm(engine.model.digest))
        guard = build(
            engine,
            people,
            keys=keys,
            limits=limits.as_limits(),
            hosts=[host, *(service.host_name or ())],
            audit=None if service.audit_log is None else AuditLog(service.audit_log, _log),
            nonces=None if service.without_nonces else Nonces(behind_proxy=bool(service.proxy)),
            page=_page(pad_model, pipeline.recognition, settings, keys=bool(keys)) if page else None,
            log=_log,
        )
        start = f"serving at http{'s' if service.tls_cert else ''}://{host}"
        server = server_of(
            guard,
            host,
            service.port,
            certificate=service.tls_cert,
            key=service.tls_key,
            proxies=service.proxy or (),
            listening=lambda port: say(f"{start}:{port}; press Ctrl-C to stop"),
        )
        try:
            server.run()
        except (KeyboardInterrupt, TerminationSignal):
            pass  # the server got the same signal, and has ended
        except SystemExit:
            raise RunFailed(
                f"cannot listen on {host}:{service.port}: the port is in use or needs privileges, or the address is "
                "not this machine's; choose others with --host and --port"
            ) from None
    say("stopped")


def _api_keys(path: Path) -> Keys:
    """Read the clients' keys; print a note about keys without a scope, and if other users can read the file."""
    from fedvisage.device.service.access import KeyFile

    keys = KeyFile(path, _log)
    _note_if_readable(path)
    if keys.without_scope:
        note(f"{path} has keys without a scope, which may do everything; write NAME SCOPE KEY")
    return keys


def _page(pad: Model, recognition: Exported | None, settings: Settings, *, keys: bool) -> Mapping[str, PageFile]:
    """Return the files of the browser page; print a note if the page has to send every picture to the service."""
    from fedvisage.device.web.site import ADVICE, RuntimeFiles, page_files

    if pad.moved or (recognition is not None and recognition.moved):
        note("with --at, the page sends pictures to this service; serve exports made with --at to prevent this")
    elif not RuntimeFiles().is_there:
        note(f"the page cannot compute in the browser and sends pictures to this service; to change this, {ADVICE}")
    return page_files(pad, recognition, settings=settings, service={"keys": keys})


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
