"""Tensors with some plain values beside them, in a file that tells when a single bit of it has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedvisage.errors import UserError
from fedvisage.federation.wire.message import digest_of
from fedvisage.files import json_key, parse_json, read_tensors, tensor_bytes, write_tensors


def write(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write a file atomically, with the digest of all that it holds."""
    write_tensors(path, tensors, _told(tensors, values))


def sealed_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of such a file that holds no values."""
    return tensor_bytes(tensors, _told(tensors, {}))


def read(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file back; when it is damaged, refuse it with some advice."""
    try:
        tensors, text = read_tensors(path)
    except UserError as error:
        raise UserError(error.place, f"{error.message}; {advice}") from error
    try:
        content = parse_json(text)
        values, seal = dict(content["values"]), content["seal"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), f"was not written by this program, or is damaged; {advice}") from error
    if seal != _seal(tensors, values):
        raise UserError(str(path), f"is damaged: its digest is not the one that was written; {advice}")
    return tensors, values


def _told(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    return json_key({"values": values, "seal": _seal(tensors, values)})


def _seal(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> str:
    text = digest_of(dict(tensors)) + json_key(values)
    return hashlib.sha256(text.encode()).hexdigest()
