"""Search a gallery: collections are held in memory and updated from the file before each search.

A change in the file, by this process or another, changes the sum of a bucket; the people of that bucket are read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.device.gallery.authenticated import CHANGED, step_of
from fedvisage.device.gallery.file import PATIENCE, ModelChanged, UnknownName
from fedvisage.device.gallery.membership import BUCKETS, Members, StoredCollection, StoredPerson
from fedvisage.device.gallery.store import GalleryRecords
from fedvisage.device.gallery.templates import Form
from fedvisage.metrics.similarity import Features, normalise

# The index: all templates in memory, searched exactly, without approximation.
#
# Rows are stored in blocks, so that the index grows without copying, and the similarities of a block are processed
# while they are still in the processor's cache.


ROWS = 8192
FACES_AT_ONCE = 128
"""Faces per search; more would push a block's similarities out of the cache."""

ScoredPerson = tuple[str, float]


class Index:
    """Unit vectors by the id of their person."""

    def __init__(self, size: int, rows: int = ROWS) -> None:
        """Create an empty index; ``size`` is the length of a vector, ``rows`` the number of vectors per block."""
        self._size, self._step = size, rows
        self._blocks: list[Features] = []
        self._ids: list[str] = []
        self._rows: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of people."""
        return len(self._ids)

    def put(self, person: str, vector: Features) -> None:
        """Add a person, or replace the vector of one."""
        row = self._rows.setdefault(person, len(self._ids))
        if row == len(self._ids):
            self._ids.append(person)
            if row == self._step * len(self._blocks):
                self._blocks.append(np.zeros((self._step, self._size), np.float32))
        self._blocks[row // self._step][row % self._step] = vector

    def drop(self, person: str) -> None:
        """Remove a person, and overwrite the vector in memory; an unknown person is ignored."""
        row = self._rows.pop(person, None)
        if row is None:
            return
        last = len(self._ids) - 1
        moved = self._ids.pop()
        if row != last:
            self._blocks[row // self._step][row % self._step] = self._blocks[last // self._step][last % self._step]
            self._ids[row], self._rows[moved] = moved, row
        self._blocks[last // self._step][last % self._step] = 0
        if last == self._step * (len(self._blocks) - 1):
            self._blocks.pop()

    def all_templates(self) -> tuple[list[str], Features]:
        """Return all people with their vectors, one per row, as a copy."""
        return list(self._ids), np.concatenate([np.zeros((0, self._size), np.float32), *self._blocks])[: len(self)]

    def search(self, faces: Features, most: int) -> list[list[ScoredPerson]]:
        """Return the most similar people for each face with their similarities, highest first."""
        hits: list[list[ScoredPerson]] = []
        for start in range(0, len(faces), FACES_AT_ONCE):
            hits += self._search(np.ascontiguousarray(faces[start : start + FACES_AT_ONCE], np.float32), most)
        return hits

    def _search(self, faces: Features, most: int) -> list[list[ScoredPerson]]:
        best: Features = np.full((len(faces), 0), 0, np.float32)
        rows: NDArray[np.int64] = np.zeros((len(faces), 0), np.int64)
        for number, block in enumerate(self._blocks):
            filled = min(self._step, len(self._ids) - number * self._step)
            # One pass over the block for a single face, without a copy of it in another order.
            similarity = (block[:filled] @ faces[0])[None] if len(faces) == 1 else faces @ block[:filled].T
            if best.shape[1] == most and not (similarity.max(axis=1) > best.min(axis=1)).any():
                continue
            columns = _highest(similarity, most)
            rows = np.concatenate([rows, columns + number * self._step], axis=1)
            best = np.concatenate([best, np.take_along_axis(similarity, columns, axis=1)], axis=1)
            kept = _highest(best, most)
            best, rows = np.take_along_axis(best, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
        order = np.argsort(-best, axis=1, kind="stable")
        return [
            [(self._ids[row], float(value)) for row, value in zip(people[ranks], values[ranks], strict=True)]
            for people, values, ranks in zip(rows, best, order, strict=True)
        ]


def _highest(values: Features, most: int) -> NDArray[np.int64]:
    """Return the positions of the highest values of each row, in any order."""
    if values.shape[1] <= most:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, -most, axis=1)[:, -most:]


SHOWN = 3
"""Maximum names in an error message."""


@dataclass(frozen=True)
class SearchHit:
    """A similar person."""

    person: str
    name: str
    similarity: float


@dataclass(eq=False)
class LoadedCollection:
    """A collection in memory, for one model."""

    form: Form
    index: Index
    members: Members = field(default_factory=Members.unread)
    """The sums of the buckets when they were read; a bucket whose sum has changed is read again."""
    people: list[list[str]] = field(default_factory=lambda: [[] for _ in range(BUCKETS)])
    names: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """Maps each person to the digest of another model that produced a template."""


class Gallery(GalleryRecords):
    """The open file of a gallery, with search; threads may share it."""

    def __init__(self, path: Path, key: bytes, *, counters: Path | None = None, patience: float = PATIENCE) -> None:
        """Open a file with its owner's key; collections are loaded on first search."""
        super().__init__(path, key, counters=counters, patience=patience)
        self._loaded: dict[tuple[int, bytes | None, str], LoadedCollection] = {}

    def close(self) -> None:
        """Close the file, and forget all faces."""
        super().close()
        self._loaded.clear()

    def remove_collection(self, name: str) -> None:
        """Remove a collection with all its people, and forget their faces."""
        with self._lock:
            super().remove_collection(name)
            with self._reading():
                kept = {collection.id for collection in self._now.collections.values()}
            self._loaded = {key: loaded for key, loaded in self._loaded.items() if key[0] in kept}

    def search(
        self, collection: str, faces: Features, model: str, most: int = 5, *, partial: bool = False
    ) -> list[list[SearchHit]]:
        """Return the most similar people of a collection for each face (one per row), highest similarity first.

        ``partial`` leaves out people with templates of another model instead of refusing the search.
        """
        if most < 1:
            raise UserError("limit", f"must be at least 1, got {most}")
        with self._lock:
            loaded = self.load(collection, model, faces.shape[1], partial=partial)
            queries = np.stack([loaded.form.make_query(embedding) for embedding in normalise(faces)])
            return [
                [SearchHit(person, loaded.names[person], loaded.form.similarity(product)) for person, product in hits]
                for hits in loaded.index.search(queries, most)
            ]

    def similarity(self, collection: str, wanted: str, face: Features, model: str) -> SearchHit:
        """Return the similarity of a face to one person, without any other comparison."""
        with self._reading():
            row = self._collection(collection)
            stored = self._require_person(row, wanted)
            form, name = self._form(row, len(face)), self._open_person(stored).name
            if other_digest := _other_model(stored, model):
                raise model_changed_error([(name, other_digest)], 1, collection, model)
            if stored.faces:
                product = float(self._vector(stored, form) @ form.make_query(normalise(face[None])[0]))
                return SearchHit(stored.id, name, form.similarity(product))
        raise UnknownName(name, "has no faces; enrol one")

    def warm(self, model: str) -> list[str]:
        """Load all collections ahead of the first search; return why a model cannot search some of them."""
        with self._reading():
            size = self._now.models[model][1] if model in self._now.models else None
        refusals = []
        for collection in self.collections():
            try:
                self.load(collection.name, model, size or 2)
            except ModelChanged as refused:
                refusals.append(str(refused))
        if size is None:
            self._loaded.clear()  # the gallery has no template of this model, so the size was a guess
        return refusals

    def load(self, collection: str, model: str, size: int, *, partial: bool = False) -> LoadedCollection:
        """Return a collection in memory, up to date with the file; refuse templates of another model, with names."""
        with self._lock:
            while True:  # one transaction per part, so that other processes can write in between
                with self._reading():
                    row = self._collection(collection)
                    loaded = self._loaded.get((row.id, row.seed, model))
                    if loaded is None:
                        form = self._form(row, size)
                        loaded = LoadedCollection(form, Index(form.width))
                        self._loaded[row.id, row.seed, model] = loaded
                    buckets = loaded.members.differing(row.members, step_of(row))
                    if not buckets:
                        break
                    self._renew(loaded, row, buckets, model)
            if loaded.others and not partial:
                named = sorted((loaded.names[person], digest) for person, digest in list(loaded.others.items())[:SHOWN])
                raise model_changed_error(named, len(loaded.others), collection, model)
            return loaded

    def _renew(self, loaded: LoadedCollection, place: StoredCollection, buckets: range, model: str) -> None:
        """Read some buckets again, and remove people who are no longer in them."""
        for bucket, people in zip(buckets, self._people_of(place, buckets), strict=True):
            for removed in set(loaded.people[bucket]) - {person.id for person in people if person.faces}:
                loaded.index.drop(removed)
                loaded.others.pop(removed, None)
                del loaded.names[removed]
            loaded.people[bucket] = [person.id for person in people if person.faces]
            for person in people:
                if not person.faces:
                    continue
                loaded.names[person.id] = self._open_person(person).name
                if other_digest := _other_model(person, model):
                    loaded.others[person.id] = other_digest
                    loaded.index.drop(person.id)
                else:
                    loaded.others.pop(person.id, None)
                    loaded.index.put(person.id, self._vector(person, loaded.form))
        loaded.members.take(place.members, buckets)

    def _vector(self, person: StoredPerson, form: Form) -> Features:
        templates = self._templates(person)
        if any(len(template) != form.length for template in templates):
            raise UserError(str(self.path), f"a template of {person.id} {CHANGED}")
        return form.make_vector(templates)


def _other_model(person: StoredPerson, model: str) -> str | None:
    """Return the digest of another model that made one of a person's templates; None if there is none."""
    return next((face.model for face in person.faces if face.model != model), None)


def model_changed_error(named: Sequence[tuple[str, str]], count: int, collection: str, model: str) -> ModelChanged:
    """Return the error for people with templates of another model."""
    names = ", ".join(name for name, _ in named) + (f" and {count - len(named)} more" if count > len(named) else "")
    return ModelChanged(
        collection,
        f"templates of {names} belong to model {named[0][1][:19]}…, but this model is {model[:19]}…; enrol "
        "these people again, or remove them",
    )
