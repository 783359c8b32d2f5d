"""Writing files so that a reader, or a killed process's successor, sees the old content or the new, never half."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedvisage.errors import RunFailed, UserError

PART = ".part"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
META = "fedvisage"
"""The single metadata key in use: with two, their order in the header would change from process to process."""


@contextmanager
def needing_room(place: Path) -> Iterator[None]:
    """Say plainly that the disk is full, whichever file it was that did not fit."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise RunFailed(f"{place}: the disk is full; free some space and continue with --resume") from error


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a directory, so that a process that outlived its run cannot write into it beside another.

    Waits up to ``patience`` seconds for such a process to end.
    """
    until = time.monotonic() + patience
    with (directory / ".lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise UserError(str(directory), "is in use by another process") from error
                time.sleep(0.1)
        yield


def json_text(value: Any) -> str:
    """Return a value as this project's files hold it: indented, in plain letters, with an end of line."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, json_text(value).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, make durable, then rename over."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with needing_room(path), beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def sweep(directory: Path) -> None:
    """Remove what a killed process had not finished writing; only for whoever holds the directory alone."""
    for path in directory.rglob(f".*{PART}"):
        path.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: str = "") -> None:
    """Write a safetensors file atomically, with one text beside the tensors."""
    data = to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}, {META: meta} if meta else None)
    write_atomically(path, data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read a safetensors file and its text; a damaged file is the user's to know about."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = (file.metadata() or {}).get(META, "")
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(str(path), "does not exist") from error
    except (SafetensorError, OSError, ValueError) as error:
        if (format := _other_format(path)) is not None:
            raise UserError(
                str(path),
                f"is {format}, which is not read here; weights are safetensors, and docs/recipes.md shows in three"
                " lines how to convert them",
            ) from error
        raise UserError(str(path), f"is not a whole safetensors file ({error})") from error


def check_weights(path: Path, place: str) -> None:
    """Refuse a file of weights that is not there, or in another format, by the place that names it."""
    try:
        with safe_open(path, framework="pt"):
            return
    except (SafetensorError, OSError, ValueError):
        pass
    if not path.exists():
        raise UserError(place, f"{path} does not exist; give a safetensors file")
    try:
        read_tensors(path)
    except UserError as error:
        raise UserError(place, str(error)) from error


def _other_format(path: Path) -> str | None:
    """Return what a file of weights is that is no safetensors, by its name or its first bytes."""
    if path.is_dir():
        return "a directory"
    ending = path.suffix.lower()
    with path.open("rb") as file:
        start = file.read(4)
    if ending == ".onnx":
        return "an ONNX graph"
    if start.startswith((b"PK\3\4", b"\x80\2")) or ending in (".pt", ".pth", ".bin", ".ckpt", ".pkl"):
        return "a checkpoint of torch's, whose reading could run what it holds"
    return None


def sync_directory(directory: Path) -> None:
    """Make a directory's entries durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
