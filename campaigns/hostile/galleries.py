"""Galleries that were edited without their key, through everything that reads them.

A case mixes rows of the newest file with rows of older ones and of another gallery with the same key, forges values,
flips bytes of sealed columns or of the file, or puts a whole older file in its place. A case that is taken in must show
exactly who was enrolled, with times, scores and similarities, as this module recorded them when it made the gallery.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Admitted, Case, pick

from fedvisage.device.gallery.search import Gallery
from fedvisage.metrics.similarity import Features, normalise

KEY, MODEL, NEWER = bytes(range(32)), "sha256:" + "a" * 64, "sha256:" + "b" * 64
FILE, COUNTERS = "door.gallery", "counters"
COLLECTIONS = ("staff", "visitors", "again")

COLUMNS = {
    "meta": ("value",),
    "models": ("digest", "size"),
    "collections": ("name", "created", "seed", "members"),
    "persons": ("id", "collection", "tag", "key", "name", "created"),
    "faces": ("number", "id", "person", "model", "template", "created", "pad_score"),
}
SEALED = (
    ("meta", "value"),
    ("collections", "seed"),
    ("collections", "members"),
    ("persons", "tag"),
    ("persons", "key"),
    ("persons", "name"),
    ("faces", "template"),
)
ODD = (None, 0, 1, -1, 2**62, 0.99, float("inf"), "", "staff", "visitors", "2020-01-01T00:00:00+00:00", b"", b"\0" * 32)

Truth = dict[str, tuple[list[Any], list[Any]]]


def face(seed: int) -> Features:
    """Return an embedding."""
    return normalise(np.random.default_rng(seed).standard_normal((1, 16)))


def seen(gallery: Gallery) -> Truth:
    """Return all that a gallery shows of its collections."""
    return {
        one.name: (
            [(person, faces) for person, faces in gallery.everybody(one.name)],
            [
                [(hit.person, hit.name, round(hit.similarity, 4)) for hit in hits]
                for hits in gallery.search(one.name, np.concatenate([face(1), face(2)]), MODEL, 50)
            ],
        )
        for one in gallery.collections()
    }


class Galleries:
    """A gallery with a history, each state of which was kept, and another gallery of the same owner."""

    def __init__(self, prepared: Path) -> None:
        """Make them."""
        self.now, self.counters = prepared / FILE, prepared / COUNTERS
        self.old = [prepared / f"old-{number}" for number in range(4)]
        with Gallery.create(self.now, KEY, counters=self.counters) as gallery:
            for collection in COLLECTIONS:
                gallery.add_collection(collection, renewable=collection == "again")
                for number in range(4):
                    gallery.enrol(collection, f"{collection} {number}", face(number), MODEL, [number / 4])
            shutil.copy(self.now, self.old[0])
            gallery.remove("staff", "staff 1")
            shutil.copy(self.now, self.old[1])
            gallery.enrol("visitors", "visitors 2", face(9), MODEL, [0.125])
            gallery.remove_face("again", gallery.faces("again", "again 3")[0].id)
            shutil.copy(self.now, self.old[2])
            gallery.enrol("again", "zoe", face(8), MODEL)
            shutil.copy(self.now, self.old[3])
            gallery.remove("visitors", "visitors 0")
            self.truth = seen(gallery)
        self.other = prepared / "other"
        with Gallery.create(self.other, KEY, counters=self.counters) as gallery:
            for collection in COLLECTIONS:
                gallery.add_collection(collection)
                gallery.enrol(collection, "mallory", face(3), MODEL, [0.75])

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Edit a copy."""
        path = place / FILE
        shutil.copy(self.now, path)
        shutil.copytree(self.counters, place / COUNTERS)
        if draws.random() < 0.1:
            done = [self._rolled_back(path, draws)]
        elif draws.random() < 0.1:
            done = [_flip_bytes(path, draws)]
        else:
            done = self._edited(path, draws)
        return Case(done, partial(self._take, path, open_first=bool(draws.random() < 0.3), source=self.now))

    def _rolled_back(self, path: Path, draws: np.random.Generator) -> str:
        number = int(draws.integers(len(self.old) + 1))
        shutil.copy((*self.old, self.other)[number], path)
        return f"whole file {number}"

    def _edited(self, path: Path, draws: np.random.Generator) -> list[str]:
        plain = sqlite3.connect(path, isolation_level=None)
        plain.execute("PRAGMA foreign_keys = OFF")
        sources = (*self.old, self.other)
        try:
            plain.execute("ATTACH ? AS source", (str(pick(draws, sources)),))
            return [self._edit(plain, draws) for _ in range(int(draws.integers(1, 4)))]
        finally:
            plain.close()

    def _edit(self, plain: sqlite3.Connection, draws: np.random.Generator) -> str:
        edit = pick(draws, EDITS)
        try:
            edit(plain, draws)
        except sqlite3.Error as error:
            return f"{edit.__name__} ({type(error).__name__})"
        return edit.__name__

    def _take(self, path: Path, *, open_first: bool, source: Path) -> None:
        if open_first:
            # Edited under a process that has it open: the honest file first, then what the case made of it.
            edited = path.read_bytes()
            shutil.copyfile(source, path)
            with self._opened(path) as gallery:
                seen(gallery)
                path.write_bytes(edited)
                self._compare(gallery)
        with self._opened(path) as gallery:
            self._compare(gallery)
            gallery.enrol("staff", "yan", face(5), MODEL)
            gallery.remove("staff", "yan")
            self._compare(gallery)
            gallery.turn_key(bytes(32), path.parent / "turned")
            self._compare(gallery)

    def _opened(self, path: Path) -> Gallery:
        return Gallery(path, KEY, counters=path.parent / COUNTERS, patience=0)

    def _compare(self, gallery: Gallery) -> None:
        shown = seen(gallery)
        for collection in {*shown, *self.truth}:
            if shown.get(collection) != self.truth.get(collection):
                raise Admitted(f"collection {collection} shows other people, faces or similarities")
            for person, faces in self.truth[collection][0]:
                if gallery.person(collection, person.name) != person or gallery.faces(collection, person.id) != faces:
                    raise Admitted(f"{person.name} of {collection} is shown otherwise")
        for collection, gone in (("staff", "staff 1"), ("visitors", "visitors 0"), ("staff", "mallory")):
            if gallery.has(collection, gone):
                raise Admitted(f"{gone} is there again")


def some_row(plain: sqlite3.Connection, table: str, draws: np.random.Generator) -> int:
    """Return the row number of some row."""
    rows = [number for (number,) in plain.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
    return pick(draws, rows) if rows else 0


def move(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Give people another collection, or a face another person."""
    if draws.random() < 0.6:
        where = "" if draws.random() < 0.3 else f" WHERE rowid = {some_row(plain, 'persons', draws)}"
        plain.execute(f"UPDATE persons SET collection = ?{where}", (int(draws.integers(1, 4)),))
    else:
        person = plain.execute("SELECT id FROM persons ORDER BY id LIMIT 1 OFFSET ?", (int(draws.integers(9)),))
        row = some_row(plain, "faces", draws)
        plain.execute("UPDATE faces SET person = ? WHERE number = ?", (*(person.fetchone() or ("p",)), row))


def swap(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Exchange the values of a column between two rows."""
    table = pick(draws, tuple(COLUMNS))
    column = pick(draws, COLUMNS[table])
    rows = [some_row(plain, table, draws) for _ in range(2)]
    query = f"SELECT {column} FROM {table} WHERE rowid = ?"
    values = [(plain.execute(query, (row,)).fetchone() or (None,))[0] for row in rows]
    plain.execute("BEGIN")
    try:
        plain.execute(
            f"UPDATE {table} SET {column} = {-(2**40) if column == 'number' else chr(39) + '?' + chr(39)}"
            " WHERE rowid = ?",
            (rows[1],),
        )
        plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (values[1], rows[0]))
        last = rows[1] if column != "number" else -(2**40)
        plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (values[0], last))
        plain.execute("COMMIT")
    except sqlite3.Error:
        plain.execute("ROLLBACK")
        raise


def put_back(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Take rows of another file: those that are missing, or all in place of the ones that are there."""
    tables = ("persons", "faces") if draws.random() < 0.6 else tuple(COLUMNS)
    for table in tables if draws.random() < 0.7 else (pick(draws, tables),):
        if draws.random() < 0.3:
            plain.execute(f"DELETE FROM {table}")
        how = pick(draws, ("IGNORE", "REPLACE"))
        plain.execute(f"INSERT OR {how} INTO {table} SELECT * FROM source.{table}")


def take_sums(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Take rows with their collections' sums, and perhaps with the state, of another file."""
    for table in ("persons", "faces", "collections"):
        plain.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM source.{table}")
    if draws.random() < 0.5:
        plain.execute("INSERT OR REPLACE INTO meta SELECT * FROM source.meta WHERE name = 'state'")


def double(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Add a copy of a row under another id."""
    odd = int(draws.integers(2**40))
    if draws.random() < 0.5:
        columns = "number + 1000, 'f_' || printf('%016x', ?), person, model, template, created, pad_score"
        plain.execute(
            f"INSERT INTO faces SELECT {columns} FROM faces WHERE number = ?", (odd, some_row(plain, "faces", draws))
        )
    else:
        tag = pick(draws, ("tag", "x'00' || tag", "'text'"))
        collection = pick(draws, ("collection", "collection % 3 + 1"))
        columns = f"'p_' || printf('%016x', ?), {collection}, {tag}, key, name, created"
        plain.execute(
            f"INSERT INTO persons SELECT {columns} FROM persons WHERE rowid = ?",
            (odd, some_row(plain, "persons", draws)),
        )


def delete(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Delete a row, or all of a table."""
    table = pick(draws, tuple(COLUMNS))
    where = "" if draws.random() < 0.3 else f" WHERE rowid = {some_row(plain, table, draws)}"
    plain.execute(f"DELETE FROM {table}{where}")


def forge(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Put another value into a column."""
    table = pick(draws, tuple(COLUMNS))
    row = some_row(plain, table, draws)
    plain.execute(f"UPDATE {table} SET {pick(draws, COLUMNS[table])} = ? WHERE rowid = ?", (pick(draws, ODD), row))


def flip(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Flip a bit of a sealed column, or cut it."""
    table, column = pick(draws, SEALED)
    row = some_row(plain, table, draws)
    (value,) = plain.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone() or (b"",)
    if not isinstance(value, bytes) or not value:
        return
    spoilt = bytearray(value)
    spoilt[int(draws.integers(len(spoilt)))] ^= 1 << int(draws.integers(8))
    changed = bytes(spoilt[: int(draws.integers(len(spoilt)))] if draws.random() < 0.2 else spoilt)
    plain.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (changed, row))


def rename(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Exchange the names of two collections."""
    first, second = draws.permutation(3)[:2] + 1
    names = dict(plain.execute("SELECT id, name FROM collections"))
    plain.execute("UPDATE collections SET name = 'x' WHERE id = ?", (int(first),))
    plain.execute("UPDATE collections SET name = ? WHERE id = ?", (names.get(int(first)), int(second)))
    plain.execute("UPDATE collections SET name = ? WHERE id = ?", (names.get(int(second)), int(first)))


def change_model(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Say that templates are of another model."""
    plain.execute("INSERT INTO models (digest, size) VALUES (?, 16)", (NEWER,))
    where = "" if draws.random() < 0.5 else f" WHERE number = {some_row(plain, 'faces', draws)}"
    plain.execute(f"UPDATE faces SET model = 2{where}")


def drop_index(plain: sqlite3.Connection, draws: np.random.Generator) -> None:
    """Lead an index to other rows than the table has: it is told that it belongs to another column."""
    plain.execute("PRAGMA writable_schema = ON")
    text = pick(
        draws, ("CREATE INDEX faces_of_persons ON faces (id)", "CREATE INDEX faces_of_persons ON faces (model)")
    )
    plain.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'faces_of_persons'", (text,))
    if draws.random() < 0.5:
        plain.execute("PRAGMA writable_schema = RESET")
        plain.execute("REINDEX faces_of_persons")
        plain.execute("PRAGMA writable_schema = ON")
        whole = "CREATE INDEX faces_of_persons ON faces (person)"
        plain.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'faces_of_persons'", (whole,))


EDITS: tuple[Callable[[sqlite3.Connection, np.random.Generator], None], ...] = (
    move,
    move,
    swap,
    swap,
    put_back,
    put_back,
    take_sums,
    double,
    delete,
    forge,
    forge,
    flip,
    flip,
    rename,
    change_model,
    drop_index,
)


def _flip_bytes(path: Path, draws: np.random.Generator) -> str:
    """Change bytes anywhere in the file."""
    raw = bytearray(path.read_bytes())
    for _ in range(int(draws.integers(1, 5))):
        at = int(draws.integers(len(raw)))
        raw[at] ^= int(draws.integers(1, 256))
    path.write_bytes(raw)
    return "bytes of the file"
