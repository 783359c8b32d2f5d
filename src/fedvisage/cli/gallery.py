"""The verbs of a gallery: who is enrolled, searched for, verified, and gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedvisage.cli.options import AsJson, note, print_json, say
from fedvisage.errors import UserError, plain_line

if TYPE_CHECKING:
    from fedvisage.gallery.door import Match
    from fedvisage.gallery.engine import Engine, Image
    from fedvisage.gallery.search import Gallery
    from fedvisage.metrics.similarity import Features

app = typer.Typer()

At = Annotated[Path, typer.Argument(metavar="GALLERY", help="The gallery's file.")]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="The file of its key; default: the variable FEDVISAGE_GALLERY_KEY.", show_default=False),
]
Counters = Annotated[
    Path | None,
    typer.Option(
        "--counters",
        help="The folder of counters, by which an older copy of the file is noticed; default: the variable "
        "FEDVISAGE_GALLERY_COUNTERS, or KEY.counters beside the key.",
        show_default=False,
    ),
]
In = Annotated[str, typer.Option("--collection", help="The collection of people.")]
Pad = Annotated[Path, typer.Option("--pad", help="An exported model that tells attacks.", show_default=False)]
Recognition = Annotated[
    Path, typer.Option("--recognition", help="An exported model that recognises people.", show_default=False)
]
Picture = Annotated[Path, typer.Argument(metavar="IMAGE", help="A picture of one face.")]
COLLECTION = "default"


@app.command()
def create(
    gallery: At,
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
    renewable: Annotated[
        bool,
        typer.Option("--renewable", help="Keep revocable signs of a keyed projection instead of embeddings."),
    ] = False,
) -> None:
    """Make an empty gallery with one collection, or add a collection to one; a key that is not there is drawn."""
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.keys import make_key_file
    from fedvisage.gallery.search import Gallery

    if key is not None and not key.exists() and not gallery.exists():
        make_key_file(key)
        say(f"drew the key {key}: keep a copy elsewhere, for without it the gallery cannot be opened")
    if not gallery.exists():
        Gallery.create(gallery, _key(key), counters=counters_of(key, counters)).close()
    with _opened(gallery, key, counters) as opened:
        opened.add_collection(collection, renewable=renewable)
    say(f"{gallery}: collection {collection} is ready")


@app.command("list")
def list_people(gallery: At, key: Key = None, counters: Counters = None, as_json: AsJson = False) -> None:
    """List collections and who is enrolled in them."""
    from dataclasses import asdict

    with _opened(gallery, key, counters) as opened:
        found = [(one, opened.people(one.name)) for one in opened.collections()]
    if as_json:
        print_json([{**asdict(one), "people": [asdict(person) for person in people]} for one, people in found])
        return
    for one, people in found:
        say(f"{one.name}: {len(people)} people{', renewable templates' if one.renewable else ''}")
        say(*(f"  {person.name}  {person.id}  since {person.created}" for person in people))


@app.command()
def enrol(
    gallery: At,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Pictures, or folders of them.")],
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
) -> None:
    """Enrol a person with those pictures that show one living face well; templates of another model are replaced."""
    from fedvisage.gallery import door

    with _opened(gallery, key, counters) as opened:
        engine = _engine(pad, recognition)
        done = door.enrol(opened, engine, collection, person, _pictures(images))
    note(*(plain_line(f"{name}: not taken: {reason}") for name, reason in done.refused))
    replaced = f"; {done.replaced} templates of another model are gone" if done.replaced else ""
    say(f"{done.person.name} ({done.person.id}): {len(done.faces)} faces enrolled{replaced}")


@app.command()
def search(
    gallery: At,
    image: Picture,
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
    limit: Annotated[int, typer.Option(help="The most people who are named.", min=1, max=1000)] = 5,
    as_json: AsJson = False,
) -> None:
    """Say who is on a picture, the most similar first; a face that is an attack is not searched for."""
    from fedvisage.gallery import door

    with _opened(gallery, key, counters) as opened:
        engine = _engine(pad, recognition)
        _shown(door.search(opened, engine, collection, _face(engine, image), limit), as_json)


@app.command()
def verify(
    gallery: At,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name, or id.")],
    image: Picture,
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 0 if it is the person, 1 if not.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether it is one person who is on a picture."""
    from fedvisage.device.checked import MATCH
    from fedvisage.gallery import door

    with _opened(gallery, key, counters) as opened:
        engine = _engine(pad, recognition)
        match = door.verify(opened, engine, collection, person, _face(engine, image))
    _shown([match], as_json)
    if exit_code:
        raise typer.Exit(int(match.decision != MATCH))


@app.command()
def remove(
    gallery: At,
    person: Annotated[str, typer.Argument(metavar="PERSON", help="The person's name, or id.")],
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
) -> None:
    """Delete a person: nothing of them stays in the file."""
    with _opened(gallery, key, counters) as opened:
        gone = opened.remove(collection, person)
        opened.compact()
    say(f"{gone.name} ({gone.id}): deleted; copies of the file that were made before still hold them")


@app.command("rotate-key")
def rotate_key(
    gallery: At,
    new_key: Annotated[Path, typer.Option("--new-key", help="The file of the new key; drawn if it is not there.")],
    key: Key = None,
    counters: Counters = None,
) -> None:
    """Turn a gallery to a new key: everybody's key is wrapped again, templates stay as they are."""
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.keys import key_from, make_key_file

    with _opened(gallery, key, counters) as opened:
        if not new_key.exists():
            make_key_file(new_key)
        people = opened.turn_key(key_from(new_key), counters_of(new_key, counters))
    say(f"{gallery}: {people} people are under the key {new_key}; the old key opens copies that were made before")


@app.command("accept-state")
def accept_state(gallery: At, key: Key = None, counters: Counters = None) -> None:
    """Accept the file as it is, after an older copy was put back on purpose or the counter was lost."""
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.search import Gallery

    with Gallery(gallery, _key(key)) as opened:
        number = opened.accept_state(counters_of(key, counters))
        people = sum(one.people for one in opened.collections())
    say(f"{gallery}: accepted with {people} people as change {number}; every other copy is refused from now on")


@app.command()
def migrate(gallery: At, key: Key = None, counters: Counters = None) -> None:
    """Bring a gallery of an earlier version to this one; a backup of the file is kept beside it."""
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.migration import migrate as bring

    backup, people = bring(gallery, _key(key), counters_of(key, counters))
    say(f"{gallery}: migrated with {people} people, taken as they stood in the file; the backup is {backup}, which "
        "keeps people who are removed later until you delete it")  # fmt: skip


@app.command()
def evaluate(
    gallery: At,
    probes: Annotated[Path, typer.Argument(metavar="PROBES", help="A folder with a folder of pictures a person.")],
    pad: Pad,
    recognition: Recognition,
    key: Key = None,
    counters: Counters = None,
    collection: In = COLLECTION,
    as_json: AsJson = False,
) -> None:
    """Say how often enrolled people are found and strangers are taken for somebody: TPIR at stated FPIR.

    A folder that has no enrolled person's name is a stranger's.
    """
    from fedvisage.gallery.evaluation import evaluate as judge

    folders = sorted(one for one in probes.iterdir() if one.is_dir()) if probes.is_dir() else []
    if not folders:
        raise UserError(str(probes), "has no folders of pictures; make one for each person")
    with _opened(gallery, key, counters) as opened:
        labelled = ((one.name, image) for one in folders for _, image in _pictures([one]))
        figures = judge(opened, _engine(pad, recognition), collection, labelled)
    if as_json:
        print_json(figures.as_values())
    else:
        say(*figures.lines())


def _key(path: Path | None) -> bytes:
    from fedvisage.gallery.keys import key_from, open_to_others

    key = key_from(path)
    if open_to_others(path):
        note(f"{path} can be read by others than its owner; chmod 600 would keep it to you")
    return key


@contextmanager
def _opened(path: Path, key: Path | None, counters: Path | None) -> Iterator[Gallery]:
    from fedvisage.gallery.counter import counters_of
    from fedvisage.gallery.search import Gallery

    with Gallery(path, _key(key), counters=counters_of(key, counters)) as opened:
        yield opened


def _engine(pad: Path, recognition: Path) -> Engine:
    from fedvisage.service.engine import open_engine

    return open_engine(pad, recognition)


def _pictures(paths: list[Path]) -> Iterator[tuple[str, Image]]:
    from fedvisage.datasets.importers.report import BadFile
    from fedvisage.tasks.pictures import asked_for

    for picture in asked_for(paths).pictures:
        try:
            image = picture.read()
        except BadFile as bad:
            note(plain_line(f"{picture.name}: not taken: {bad}"))
            continue
        yield picture.name, image


def _face(engine: Engine, path: Path) -> Features:
    from fedvisage.gallery.door import face_to_enrol

    for _, image in _pictures([path]):
        found = face_to_enrol(engine, image)
        if isinstance(found, str):
            raise UserError(str(path), f"{found}; nobody was searched for")
        if found.embedding is not None:
            return found.embedding
    raise UserError(str(path), "holds no picture that can be read")


def _shown(matches: list[Match], as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json([asdict(one) for one in matches])
    elif not matches:
        say("nobody is enrolled")
    else:
        one = matches[0]
        say(f"threshold: similarity {one.threshold:+.4f}, {one.operating_point}")
        say(*(f"{one.decision:9}{one.similarity:+.4f}  {one.name}  {one.person}" for one in matches))
