"""Read and write files: atomic writes, bounded reads of untrusted files, and all JSON of this project.

A reader, or the successor of a killed process, sees the old content or the new one, never a mixture.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from fedvisage.base.errors import NoRoom, UserError

if TYPE_CHECKING:  # devices and reports read files without having torch
    from numpy.typing import NDArray
    from torch import Tensor

# The cache of rendered sets and pre-trained models.


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return the cache directory: FEDVISAGE_CACHE if set, else ``fedvisage`` in the XDG cache directory.

    A relative path in XDG_CACHE_HOME is ignored, as its specification requires.
    """
    if configured := environment.get("FEDVISAGE_CACHE"):
        return Path(configured).expanduser()
    home = Path(environment.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.cache").expanduser()) / "fedvisage"


CACHE = cache_directory(os.environ)


PART = ".part"
NO_ROOM = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the limit of this process (ulimit -f); raise the limit",
}
"""The faults of a write for which there is no room, each with its remedy."""
AGAIN = "run the same command again"
RESUME = "continue with --resume"
META = "fedvisage"
"""The only metadata key: with two keys, their order in the header would change from process to process."""

LARGEST_TEXT = 1 << 30
"""Maximum bytes of a run's text file: ten times the longest ledgers, those of split learning."""

PIECE = 1 << 24
"""Bytes per read."""

DEEPEST = 64
"""Maximum levels of a JSON file; no file of this project has ten."""

TOO_DEEP = f"nested deeper than {DEEPEST} levels"


@contextmanager
def disk_full_is_failure(place: Path, advice: str = AGAIN) -> Iterator[None]:
    """Turn a full disk into one line that names the file being written, and how to continue."""
    try:
        yield
    except NoRoom as error:
        raise NoRoom(error.place, error.fault, advice) from error
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise NoRoom(str(place), NO_ROOM[error.errno], advice) from error


@contextmanager
def lock_directory(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Lock a directory, so that a process that outlived its run cannot write into it at the same time as another.

    Waits up to ``patience`` seconds for such a process to end.
    """
    until = time.monotonic() + patience
    with (directory / ".lock").open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    file.seek(0)
                    holder = file.read().strip() or "of unknown identity"
                    raise UserError(str(directory), f"is in use by another process, {holder}; end it first") from error
                time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def json_text(value: Any) -> str:
    """Return a value in the JSON form of this project's files: indented, with unescaped letters and a final newline."""
    return _strict(value, indent=2, ensure_ascii=False) + "\n"


def json_line(value: Any) -> str:
    """Return a value as one line of JSON, for files with one value per line."""
    return _strict(value, ensure_ascii=False) + "\n"


def json_key(value: Any) -> str:
    """Return a value as JSON text that is the same for equal values, for digests."""
    return _strict(value, sort_keys=True)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a nested mapping as pairs of dotted key and text."""
    pairs = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        pairs += flatten(value, f"{name}.") if isinstance(value, dict) else [(name, str(value))]
    return pairs


def _strict(value: Any, **layout: Any) -> str:
    """Return standard JSON, which every program reads: NaN and infinity become null."""
    try:
        return json.dumps(value, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Read JSON; raise :class:`ValueError` if it is invalid, nested too deeply, or cannot be printed.

    With ``unique``, a key that is given twice is invalid, too; otherwise the last one counts.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")  # the decoder itself would accept UTF-16, and bytes of lone surrogates
    try:
        pairs = _unique_keys if unique else None
        value = json.loads(text, parse_constant=lambda _: None, parse_float=_number, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level, depth = [value], 0
    while level := [node for node in level if isinstance(node, dict | list) and node]:
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(TOO_DEEP)
    if r"\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be printed
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _number(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def read_json(path: Path, advice: str = "restore it") -> dict[str, Any]:
    """Read a JSON file that holds a mapping; raise a :class:`UserError` with some advice if that is impossible."""
    try:
        value = parse_json(read_text(path))
    except ValueError as error:
        fault = " ".join(str(error).split())[:200]
        raise UserError(str(path), f"is incomplete or invalid JSON ({fault}); {advice}") from None
    if not isinstance(value, dict):
        raise UserError(str(path), f"is not a JSON object; {advice}")
    return value


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Read a text file of at most ``most`` bytes."""
    try:
        return read_plain(path, most).decode()
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"is not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_plain(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Read a regular file of at most ``most`` bytes."""
    return b"".join(pieces_of(path, most))


def pieces_of(path: Path, most: int = LARGEST_TEXT) -> Iterator[bytes]:
    """Read a regular file of at most ``most`` bytes in pieces. Pipes and devices, which may never end, are refused."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            size, read = os.fstat(file.fileno()).st_size, 0
            while size <= most and (part := file.read(PIECE)):
                yield part
                read += len(part)
                size = max(size, read)
        if size > most:
            raise UserError(str(path), f"has {size:,} bytes; the limit is {most:,}")
    except FileNotFoundError:
        raise UserError(str(path), "does not exist") from None
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from None


def file_digest(path: Path, most: int = 1 << 62) -> str:
    """Return SHA-256 of a regular file of at most ``most`` bytes."""
    digest = hashlib.sha256()
    for piece in pieces_of(path, most):
        digest.update(piece)
    return digest.hexdigest()


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, as the ``opener`` of :func:`open`; refuse pipes, sockets and devices without waiting."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(str(path), "is not a regular file")
    handle = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)  # it was exchanged after the first check
    raise UserError(str(path), "is not a regular file")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON atomically."""
    write_atomically(path, json_text(value).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a temporary file in the same directory, make it durable, then rename it over the old one."""
    write_pieces_atomically(path, [data])


def write_pieces_atomically(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically from pieces, which may come from the file that it replaces."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{PART}")
    try:
        with disk_full_is_failure(path), temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of a killed process; the caller must hold the directory alone."""
    for path in directory.rglob(f".*{PART}"):
        path.unlink(missing_ok=True)


@contextmanager
def replaced_when_complete(out: Path) -> Iterator[Path]:
    """Yield a temporary directory that replaces ``out`` on success, and is deleted on failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish_file(beside: Path, path: Path) -> None:
    """Make a complete file durable, then move it to its final name."""
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: str = "") -> None:
    """Write a safetensors file atomically, with one text in its metadata."""
    write_atomically(path, tensor_bytes(tensors, meta))


def tensor_bytes(tensors: Mapping[str, Tensor], meta: str = "") -> bytes:
    """Return the bytes of a safetensors file with one text in its metadata."""
    from safetensors.torch import save as to_bytes  # imported here because it loads torch

    return to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()}, {META: meta} if meta else None)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a safetensors file atomically, as :func:`write_tensors` does, without torch."""
    import numpy as np
    from safetensors.numpy import save

    # safetensors writes the memory of an array as it is, whatever its order.
    write_atomically(path, save({name: np.asarray(values, order="C") for name, values in arrays.items()}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read a safetensors file and the text in its metadata; raise a :class:`UserError` if it is damaged."""
    return _read_safetensors(path, "pt")


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """Read a safetensors file as :func:`read_tensors` does, without torch."""
    return _read_safetensors(path, "numpy")


def _read_safetensors(path: Path, framework: str) -> tuple[dict[str, Any], str]:
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb", opener=open_regular) as opened:
            size = os.fstat(opened.fileno()).st_size
        if size > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            raise UserError(str(path), f"has {size:,} bytes, more than this machine's memory ({memory:,})")
        with safe_open(path, framework=framework) as file:
            meta = (file.metadata() or {}).get(META, "")
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(str(path), "does not exist") from error
    except MemoryError as error:
        raise UserError(str(path), "does not fit in memory") from error
    except (SafetensorError, OSError, ValueError, TypeError) as error:  # TypeError: a type that NumPy lacks
        if (format := _other_format(path)) is not None:
            raise UserError(
                str(path),
                f"is {format}, which is not read here; weights are safetensors, and docs/starts.md shows in three"
                " lines how to convert them",
            ) from error
        raise UserError(str(path), f"is not a valid safetensors file ({error})") from error


def check_weights(path: Path, place: str) -> None:
    """Refuse a missing weights file, or one in another format; the error names the place that refers to it."""
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb", opener=open_regular), safe_open(path, framework="pt"):
            return
    except (SafetensorError, OSError, ValueError, UserError):
        pass
    if not path.exists():
        raise UserError(place, f"{path} does not exist; give a safetensors file")
    try:
        read_tensors(path)
    except UserError as error:
        raise UserError(place, str(error)) from error


def _other_format(path: Path) -> str | None:
    """Name the format of a weights file that is not safetensors, by suffix or first bytes; None if it is unknown."""
    ending = path.suffix.lower()
    try:
        with open(path, "rb", opener=open_regular) as file:
            start = file.read(4)
    except (OSError, UserError):
        return None
    if ending == ".onnx":
        return "an ONNX graph"
    if start.startswith((b"PK\3\4", b"\x80\2")) or ending in (".pt", ".pth", ".bin", ".ckpt", ".pkl"):
        return "a PyTorch checkpoint; reading it could run code"
    return None


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
