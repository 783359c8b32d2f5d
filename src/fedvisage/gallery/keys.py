"""Keys of a gallery: the owner's key wraps a key for each person, and these seal names and templates.

All is AES-256-GCM with random nonces. What a record is (its id, its person, its model, the version of the schema) is
authenticated with it, so that no record can be put in another's place. The owner's key is turned into the wrapping key
of one gallery by HKDF with that gallery's salt, so one key may serve several.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedvisage.errors import UserError

VARIABLE = "FEDVISAGE_GALLERY_KEY"
LENGTH = 32
SEALING = 1
"""The version of sealed records: part of every derived key, and of what is authenticated with each record."""

_NONCE, _TAG = 12, 16
_LONGEST = 1024
"""Bytes of a key's file; no more are read."""


def new_key() -> bytes:
    """Draw a key from the operating system."""
    return secrets.token_bytes(LENGTH)


def key_from(path: Path | None, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the owner's key: from a file, or where none is named from the environment."""
    if path is not None:
        return _parsed(_content(path), str(path))
    if text := environment.get(VARIABLE):
        return _parsed(text, VARIABLE)
    raise UserError("--key", f"names no file, and {VARIABLE} is not set; give one of them")


def make_key_file(path: Path) -> bytes:
    """Write a new key into a file that only its owner can read."""
    key = new_key()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(str(path), "exists already; a key is never written over") from None
    except OSError as error:
        raise UserError(str(path), f"cannot be written ({error.strerror})") from None
    with os.fdopen(handle, "w") as file:
        file.write(f"{key.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def open_to_others(path: Path | None) -> bool:
    """Say whether others than the owner may read a key's file."""
    return path is not None and bool(path.stat().st_mode & 0o077)


def derived(secret: bytes, salt: bytes, purpose: str) -> bytes:
    """Return a key for one purpose."""
    return HKDF(SHA256(), LENGTH, salt, f"fedvisage gallery {SEALING} {purpose}".encode()).derive(secret)


@dataclass(frozen=True)
class Owned:
    """The keys that come from the owner's key alone: whoever knew an earlier one can forge nothing under this one."""

    wrapping: bytes
    rows: bytes
    sums: bytes

    @classmethod
    def of(cls, key: bytes, salt: bytes) -> Self:
        """Derive them for one gallery."""
        return cls(*(derived(key, salt, purpose) for purpose in ("wrapping", "rows", "sums")))


def seal(key: bytes, content: bytes, *record: object) -> bytes:
    """Encrypt; the words that say what record it is are authenticated with it."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, _words(record))


def unseal(key: bytes, sealed: object, *record: object) -> bytes | None:
    """Decrypt; nothing if the key is another, or a byte or the record is not what was sealed."""
    if not isinstance(sealed, bytes) or len(sealed) < _NONCE + _TAG:
        return None
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], _words(record))
    except InvalidTag:
        return None


def tag_of(key: bytes, *words: object) -> bytes:
    """Return what a name is found by without being stored: its keyed hash."""
    return hmac.new(key, _words(words), hashlib.sha256).digest()


def _words(record: tuple[object, ...]) -> bytes:
    """Return the words in a form from which they can be told apart, whatever they hold."""
    parts = [str(word).encode() for word in (SEALING, *record)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _content(path: Path) -> str:
    try:
        if not path.is_file():
            raise UserError(str(path), "is no plain file" if path.exists() else "does not exist")
        with path.open("rb") as file:
            return file.read(_LONGEST).decode("ascii", errors="replace")
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from None


def _parsed(text: str, place: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != LENGTH:
        raise UserError(place, f"holds no key; a key is {2 * LENGTH} hexadecimal digits, as `gallery create` writes")
    return key
