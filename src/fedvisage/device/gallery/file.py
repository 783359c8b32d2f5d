"""Create and open the SQLite file of a gallery, and encrypt its records; every failure is one line.

`secure_delete` makes SQLite overwrite deleted content with zeros. The rollback journal is deleted after each change: in
a write-ahead log, deleted rows would survive. A file that was switched to such a log is switched back. Files are opened
as untrusted input.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import open_regular

# Keys: the owner's key wraps one key per person, which seals that person's name and templates.
#
# All encryption is AES-256-GCM with random nonces. The identity of a record (its id, its person, its model, the version
# of the schema) is authenticated with it, so that no record can take the place of another. HKDF derives the wrapping
# key of a gallery from the owner's key and the gallery's salt, so one key may serve several galleries.


VARIABLE = "FEDVISAGE_GALLERY_KEY"
LENGTH = 32
SEALING = 1
"""The version of sealed records: part of every derived key, and authenticated with each record."""

_NONCE, _TAG = 12, 16
_LONGEST = 1024
"""Maximum bytes read from a key file."""


def new_key() -> bytes:
    """Draw a key from the operating system."""
    return secrets.token_bytes(LENGTH)


def key_from(path: Path | None, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the owner's key from a file or, without one, from the environment."""
    place, text = VARIABLE, environment.get(VARIABLE, "")
    if path is not None:
        place = str(path)
        try:
            with open(path, "rb", opener=open_regular) as file:
                text = file.read(_LONGEST).decode("ascii", errors="replace")
        except FileNotFoundError:
            raise UserError(place, "does not exist") from None
        except OSError as error:
            raise UserError(place, f"cannot be read ({error.strerror})") from None
    elif not text:
        raise UserError("--key", f"does not name a file, and {VARIABLE} is not set; give one of them")
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != LENGTH:
        raise UserError(place, f"is not a key: {2 * LENGTH} hexadecimal digits, as `gallery create` writes them")
    return key


def make_key_file(path: Path) -> None:
    """Write a new key into a file that only its owner can read."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(str(path), "exists already; a key is never overwritten") from None
    except OSError as error:
        raise UserError(str(path), f"cannot be written ({error.strerror})") from None
    with os.fdopen(handle, "w") as file:
        file.write(f"{new_key().hex()}\n")
        file.flush()
        os.fsync(file.fileno())


def derive_key(secret: bytes, salt: bytes, purpose: str) -> bytes:
    """Derive a key for one purpose."""
    return HKDF(SHA256(), LENGTH, salt, f"fedvisage gallery {SEALING} {purpose}".encode()).derive(secret)


@dataclass(frozen=True)
class OwnerKeys:
    """Keys derived from the owner's key alone; the holder of an earlier owner's key can forge nothing under them."""

    wrapping: bytes
    rows: bytes
    sums: bytes

    @classmethod
    def of(cls, key: bytes, salt: bytes) -> Self:
        """Derive the keys for one gallery."""
        return cls(*(derive_key(key, salt, purpose) for purpose in ("wrapping", "rows", "sums")))


def seal(key: bytes, content: bytes, *record: object) -> bytes:
    """Encrypt; the words that identify the record are authenticated with it."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, _words(record))


def unseal(key: bytes, sealed: object, *record: object) -> bytes | None:
    """Decrypt; return None if the key, any byte or the record differs from the sealed one."""
    if not isinstance(sealed, bytes) or len(sealed) < _NONCE + _TAG:
        return None
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], _words(record))
    except InvalidTag:
        return None


def tag_of(key: bytes, *words: object) -> bytes:
    """Return the keyed hash of a name, by which the name is found without being stored."""
    return hmac.new(key, _words(words), hashlib.sha256).digest()


def _words(record: tuple[object, ...]) -> bytes:
    """Encode words unambiguously, whatever they contain."""
    parts = [str(word).encode() for word in (SEALING, *record)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


# Refusals of a gallery, as exceptions that a service can distinguish; each is one line.


class UnknownName(UserError):
    """The collection, person or face does not exist."""


class NameTaken(UserError):
    """The name is taken."""


class ModelChanged(UserError):
    """The stored templates belong to another model."""


class WrongKey(UserError):
    """The key does not open the gallery."""


class NotEnrolled(UserError):
    """The picture is unsuitable for enrolment: an attack, no face, two faces, or poor quality."""


class AlreadyEnrolled(UserError):
    """The person in the picture is enrolled under another name."""


class Busy(RunFailed):
    """Another process holds the file."""


class NoRoom(RunFailed):
    """The disk is full or not writable."""


APPLICATION = 0x66764741
"""SQLite's application ID of the file: "fvGA"."""

SCHEMA = 2
"""The version of the tables. Version 1 did not authenticate who is in a collection; `gallery migrate` reads it."""

PAGE = 8192
"""Bytes of a page: room for three templates of 512 numbers with their other columns."""

PATIENCE = 5.0
"""Seconds to wait for another writing process."""

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE models (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, size INTEGER NOT NULL)",
    "CREATE TABLE collections (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created TEXT NOT NULL, seed BLOB,"
    " members BLOB NOT NULL)",
    "CREATE TABLE persons (id TEXT PRIMARY KEY, collection INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,"
    " tag BLOB NOT NULL, key BLOB NOT NULL, name BLOB NOT NULL, created TEXT NOT NULL, UNIQUE (collection, tag))",
    "CREATE TABLE faces (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
    " person TEXT NOT NULL REFERENCES persons ON DELETE CASCADE, model INTEGER NOT NULL REFERENCES models,"
    " template BLOB NOT NULL, created TEXT NOT NULL, pad_score REAL)",
    "CREATE INDEX faces_of_persons ON faces (person)",
)

_AGAIN = "restore it from a backup"


def create_file(path: Path, rows: dict[str, bytes]) -> None:
    """Create an empty gallery with some rows of its table ``meta``."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise NameTaken(str(path), "exists already; a gallery is never overwritten") from None
    except OSError as error:
        raise UserError(str(path), f"cannot be written ({error.strerror})") from None
    try:
        with errors_in_one_line(path):
            connection = _connect(path, PATIENCE)
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            for table in TABLES:
                connection.execute(table)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", rows.items())
            connection.execute("COMMIT")
            connection.close()
    except BaseException:  # leave no incomplete file after any failure
        path.unlink(missing_ok=True)
        raise


def open_file(
    path: Path, patience: float = PATIENCE, *, schema: int = SCHEMA, tables: tuple[str, ...] = TABLES
) -> sqlite3.Connection:
    """Open the file of a gallery after a check that it is one, complete, and of the right version and tables."""
    if not path.is_file():
        raise UserError(str(path), "is not a regular file" if path.exists() else "does not exist; see `gallery create`")
    with errors_in_one_line(path):
        connection = _connect(path, patience)
        try:
            if _number(connection, "PRAGMA application_id") != APPLICATION:
                raise UserError(str(path), "is an SQLite file, but not a gallery")
            if (version := _number(connection, "PRAGMA user_version")) < schema:
                raise UserError(
                    str(path),
                    f"is a gallery of version {version}; bring it to version {schema} once with "
                    f"`fedvisage gallery migrate {path}` and its key",
                )
            if version > schema:
                raise UserError(
                    str(path),
                    f"is a gallery of version {version}, but this command reads {schema}; it was already migrated, or "
                    "belongs to a newer version",
                )
            expected = _number(connection, "PRAGMA page_count") * _number(connection, "PRAGMA page_size")
            if path.stat().st_size < expected:
                raise UserError(str(path), f"is cut off: {path.stat().st_size:,} of {expected:,} bytes; {_AGAIN}")
            # Unexpected tables or triggers could run code of another owner.
            present = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
            if present != set(tables):
                raise UserError(str(path), f"does not have the tables of a gallery; {_AGAIN}")
            if _number(connection, "PRAGMA secure_delete = ON") != 1:
                raise UserError(str(path), "this SQLite cannot overwrite what is deleted; use another build")
            (journal,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            if journal != "delete":
                raise Busy(f"{path}: another process holds it with a write-ahead log; end it first")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
        except BaseException:  # close the file on any failure
            connection.close()
            raise
        return connection


@contextmanager
def errors_in_one_line(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one line."""
    try:
        yield
    except UnicodeDecodeError:
        raise UserError(str(path), f"is damaged; {_AGAIN}") from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise Busy(f"{path}: is locked by another process; try again, or end that process") from None
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise NoRoom(f"{path}: the disk is full or failing; nothing was changed") from None
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise UserError(str(path), "cannot be written; check the permissions of the file and its folder") from None
        if code == sqlite3.SQLITE_NOTADB:
            raise UserError(str(path), "is not an SQLite file, so it is not a gallery") from None
        raise UserError(str(path), f"is damaged ({error}); {_AGAIN}") from None


def _connect(path: Path, patience: float) -> sqlite3.Connection:
    # The threads of a service share one connection and take turns with the gallery's lock.
    return sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
    )


def _number(opened: sqlite3.Connection, query: str) -> int:
    (value,) = opened.execute(query).fetchone()
    return int(value)
