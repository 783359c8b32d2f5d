"""A gallery that is searched: each collection in memory, brought up to date with its file before it is looked at.

The file tells whether another process changed it; then people whose mark is another are read again. One's own changes
are taken over one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from fedvisage.errors import UserError
from fedvisage.gallery.file import PATIENCE
from fedvisage.gallery.index import Index
from fedvisage.gallery.refusals import ModelChanged, Unknown
from fedvisage.gallery.store import CHANGED, Records
from fedvisage.gallery.templates import Form
from fedvisage.metrics.similarity import Features, unit

AT_ONCE = 500
"""People who are read from the file by one question."""

SHOWN = 3
"""Names in a refusal."""


@dataclass(frozen=True)
class Hit:
    """Somebody who is similar."""

    person: str
    name: str
    similarity: float


@dataclass(eq=False)
class Loaded:
    """A collection in memory, as one model sees it."""

    form: Form
    index: Index
    version: int = -1
    """What the file said of changes by others, when this was up to date."""
    revisions: dict[str, int] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """Who has a template of another model, and of which."""
    pending: set[str] = field(default_factory=set)
    """Whom this process changed since."""


class Gallery(Records):
    """A gallery's file, open, and searched; threads may share it."""

    def __init__(self, path: Path, key: bytes, *, patience: float = PATIENCE) -> None:
        """Open a file with its owner's key; a collection is loaded when it is first searched."""
        super().__init__(path, key, patience=patience)
        self._loaded: dict[tuple[int, str], Loaded] = {}

    def close(self) -> None:
        """Close the file, and forget all faces."""
        super().close()
        self._loaded.clear()

    def search(self, collection: str, faces: Features, model: str, most: int = 5) -> list[list[Hit]]:
        """Return for each face (a row each) the most similar people of a collection, the most similar first."""
        if most < 1:
            raise UserError("limit", f"must be at least 1, got {most}")
        with self._reading():
            loaded = self.load(collection, model, faces.shape[1])
            asked = np.stack([loaded.form.asked(one) for one in unit(faces)])
            found = loaded.index.search(asked, most)
            return [[self._hit(*one, loaded.form) for one in some] for some in found]

    def similarity(self, collection: str, wanted: str, face: Features, model: str) -> Hit:
        """Return how similar a face is to one person, without a look at anybody else."""
        with self._reading():
            person = self.person(collection, wanted)
            form = self._form(collection, self._collection_row(collection)[1], len(face))
            for _, vector, other in self._vectors([person.id], model, form):
                if other:
                    raise changed([(person.name, other)], 1, collection, model)
                if vector is not None:
                    product = float(vector @ form.asked(unit(face[None])[0]))
                    return Hit(person.id, person.name, form.similarity(product))
        raise Unknown(person.name, "has no face left; enrol one")

    def warm(self, model: str) -> list[str]:
        """Load all collections, so that the first search need not; return why some cannot be searched by a model."""
        with self._reading() as read:
            found = read.execute("SELECT size FROM models WHERE digest = ?", (model,)).fetchone()
            said = []
            for one in self.collections():
                try:
                    self.load(one.name, model, int(found[0]) if found else 2)
                except ModelChanged as refused:
                    said.append(str(refused))
            if not found:
                self._loaded.clear()  # nothing of this model is there, so its size is not known
            return said

    def load(self, collection: str, model: str, size: int) -> Loaded:
        """Return a collection in memory, as it is now in the file; templates of another model are refused by name."""
        with self._reading() as read:
            row, seed = self._collection_row(collection)
            loaded = self._loaded.get((row, model))
            if loaded is None:
                form = self._form(collection, seed, size)
                loaded = self._loaded[row, model] = Loaded(form, Index(form.width))
            (version,) = read.execute("PRAGMA data_version").fetchone()
            if version != loaded.version:
                self._compare(row, loaded)
                loaded.version = version
            self._renew(loaded, model)
            if loaded.others:
                some = list(loaded.others.items())[:SHOWN]
                named = sorted((self.person(collection, person).name, digest) for person, digest in some)
                raise changed(named, len(loaded.others), collection, model)
            return loaded

    def _touched(self, collection: int, person: str) -> None:
        for (row, _), loaded in self._loaded.items():
            if row == collection:
                loaded.pending.add(person)

    def _left(self, collection: int) -> None:
        self._loaded = {key: loaded for key, loaded in self._loaded.items() if key[0] != collection}

    def _compare(self, row: int, loaded: Loaded) -> None:
        """Note who is new, gone or changed in the file since it was last read."""
        found = dict(self._opened.execute("SELECT id, revision FROM persons WHERE collection = ?", (row,)))
        loaded.pending |= {one for one, revision in found.items() if loaded.revisions.get(one) != revision}
        loaded.pending |= loaded.revisions.keys() - found.keys()
        loaded.revisions = found

    def _renew(self, loaded: Loaded, model: str) -> None:
        """Read again whom a change touched; who is not found is forgotten."""
        people = sorted(loaded.pending)
        gone = set(people)
        for person in people:
            loaded.others.pop(person, None)
        for person, vector, other in self._vectors(people, model, loaded.form):
            if other:
                loaded.others[person] = other
            elif vector is not None:
                loaded.index.put(person, vector)
                gone.discard(person)
        for person in gone:
            loaded.index.drop(person)
        loaded.pending.clear()

    def _vectors(
        self, people: Sequence[str], model: str, form: Form
    ) -> Iterator[tuple[str, Features | None, str | None]]:
        """Yield who has faces with their vector, or with the digest of the other model that a template is of."""
        for start in range(0, len(people), AT_ONCE):
            some = people[start : start + AT_ONCE]
            rows = self._opened.execute(
                "SELECT persons.id, key, faces.id, digest, template FROM persons"
                " JOIN faces ON person = persons.id JOIN models ON model = models.id"
                f" WHERE persons.id IN ({','.join('?' * len(some))}) ORDER BY persons.id, faces.rowid",
                some,
            )
            for (person, wrapped), faces in groupby(rows, lambda one: (one[0], one[1])):
                found = list(faces)
                if other := next((digest for *_, digest, _ in found if digest != model), None):
                    yield person, None, other
                    continue
                key = self._unwrapped(wrapped, "key", person)
                templates = [
                    self._unsealed(key, sealed, "face", face, person, model) for _, _, face, _, sealed in found
                ]
                if any(len(one) != form.length for one in templates):
                    raise UserError(str(self.path), f"a template of {person} {CHANGED}")
                yield person, form.joined(templates), None

    def _hit(self, person: str, product: float, form: Form) -> Hit:
        key, name, created = self._opened.execute(
            "SELECT key, name, created FROM persons WHERE id = ?", (person,)
        ).fetchone()
        return Hit(person, self._opened_person(person, key, name, created).name, form.similarity(product))


def changed(named: Sequence[tuple[str, str]], count: int, collection: str, model: str) -> ModelChanged:
    """Say whose templates are of another model."""
    names = ", ".join(name for name, _ in named) + (f" and {count - len(named)} more" if count > len(named) else "")
    return ModelChanged(
        collection, f"templates of {names} are of model {named[0][1][:19]}…, this one is {model[:19]}…; "
        "enrol these people again, or remove them"
    )  # fmt: skip
