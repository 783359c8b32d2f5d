"""Download a published file: resumed, of a known size, and put in place only if its digest is right.

The addresses and digests are those of the catalogue. Proxies are those of the environment (``https_proxy``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import AGAIN, disk_full_is_failure, file_digest
from fedvisage.base.progress import Steps, discard_steps, format_count
from fedvisage.base.version import VERSION
from fedvisage.starts.published import PublishedFile

PATIENCE = 30.0
"""Seconds without a byte after which a connection counts as broken."""

PIECE = 1 << 16
OFFLINE = "download it elsewhere, and give --from FILE"
_PAGE = (b"<!doctype", b"<html")


def download(file: PublishedFile, folder: Path, *, steps: Steps = discard_steps, patience: float = PATIENCE) -> Path:
    """Return the path of a complete, checked download in a folder; an unfinished one is kept and resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{file.sha256}.part"
    if not partial.exists() or partial.stat().st_size < file.bytes:
        _download_rest(file, partial, steps, patience)
    digest = file_digest(partial)
    if digest != file.sha256:
        partial.unlink()
        raise UserError(
            file.address,
            f"sent other bytes than the catalogue's: SHA-256 {digest}, not {file.sha256}; nothing was kept; {OFFLINE}",
        )
    return partial


def find_given(file: PublishedFile, given: Sequence[Path]) -> Path:
    """Return the path of a file among those that the user has; it must have the catalogue's digest."""
    # A folder stands for the file of this name in it.
    paths = [path / file.name if path.is_dir() else path for path in given]
    for path in paths:
        if not path.is_file():
            raise UserError("--from", f"{path} does not exist; give {file.name} from {file.address}")
    if len(paths) == 1 and (size := paths[0].stat().st_size) != file.bytes and file.name == paths[0].name:
        raise UserError("--from", f"{paths[0]} has {format_count(size, 'byte')}, but {file.name} has {file.bytes:,}")
    for path in paths:
        if path.stat().st_size == file.bytes and file_digest(path) == file.sha256:
            return path
    names = ", ".join(map(str, paths))
    raise UserError("--from", f"{names}: no {file.name} with SHA-256 {file.sha256}; download it from {file.address}")


def _download_rest(file: PublishedFile, partial: Path, steps: Steps, patience: float) -> None:
    """Append the missing bytes to a partial file, or begin again if the server cannot resume."""
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"User-Agent": f"fedvisage/{VERSION}", "Accept-Encoding": "identity"}
    request = Request(file.address, headers=headers | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        response = build_opener().open(request, timeout=patience)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # the server has fewer bytes than the partial file
            partial.unlink(missing_ok=True)
        raise UserError(file.address, f"answered {error.code} {error.reason}; {OFFLINE}") from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise RunFailed(f"{file.address}: cannot be reached ({reason}); {AGAIN}, or {OFFLINE}") from None
    with response:
        resumed = response.status == 206
        done = have if resumed else 0
        _check_headers(file, response, done)
        with disk_full_is_failure(partial), partial.open("ab" if resumed else "wb") as out:
            for piece in _pieces(file, response):
                if done == 0 and piece.lstrip()[:9].lower().startswith(_PAGE):
                    raise _page_instead(file)
                done += len(piece)
                if done > file.bytes:
                    raise UserError(file.address, f"sends more than the {file.bytes:,} bytes of the catalogue")
                out.write(piece)
                steps(done, file.bytes)
    if done < file.bytes:
        raise RunFailed(
            f"{file.address}: the connection ended after {done:,} of {file.bytes:,} bytes; {AGAIN} to resume"
        )


def _check_headers(file: PublishedFile, response: HTTPResponse, start: int) -> None:
    """Refuse web pages, and an answer with another number of bytes than the file has after ``start``."""
    if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
        raise _page_instead(file)
    length, span = response.headers.get("Content-Length"), response.headers.get("Content-Range", "")
    if length is not None and length != str(file.bytes - start):
        raise UserError(file.address, f"sends {length} bytes, not the {file.bytes - start:,} of the catalogue")
    if start and not span.startswith(f"bytes {start}-"):
        raise UserError(file.address, f"resumes at other bytes ({span[:60]}), not at {start:,}; {OFFLINE}")


def _page_instead(file: PublishedFile) -> UserError:
    return UserError(file.address, f"returned a web page, such as that of a proxy or a login, not a file; {OFFLINE}")


def _pieces(file: PublishedFile, response: HTTPResponse) -> Iterator[bytes]:
    """Yield the bytes of an answer; a broken connection is a failure that can be resumed."""
    while True:
        try:
            piece = response.read(PIECE)
        except (HTTPException, OSError) as error:
            raise RunFailed(f"{file.address}: the connection broke ({error}); {AGAIN} to resume") from None
        if not piece:
            return
        yield piece
