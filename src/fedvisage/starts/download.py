"""Download a published file: resumed, of a known size, and kept only if its digest is right.

The addresses and digests are those of the catalogue. Proxies are those of the environment (``https_proxy``).
"""

from __future__ import annotations

from collections.abc import Sequence
from http.client import HTTPException
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
OFFLINE = "download the files above elsewhere, and give their folder with --from"
_PAGE = f"returned a web page, such as that of a proxy or a login, not a file; {OFFLINE}"


def download(file: PublishedFile, folder: Path, *, steps: Steps = discard_steps, patience: float = PATIENCE) -> Path:
    """Return the path of a complete, checked download in a folder; an unfinished one is kept and resumed."""
    path = folder / f"{file.sha256[:16]}-{file.name}"
    if not path.exists() or path.stat().st_size < file.bytes:
        _download_rest(file, path, steps, patience)
    digest = file_digest(path)
    if digest != file.sha256:
        path.unlink()
        fault = f"sent other bytes than the catalogue's: SHA-256 {digest}, not {file.sha256}"
        raise UserError(file.address, f"{fault}; nothing was kept; {OFFLINE}")
    return path


def find_given(file: PublishedFile, given: Sequence[Path]) -> Path:
    """Return the path of a file among those that the user has; it must have the catalogue's digest."""
    # A folder stands for the file of this name in it.
    paths = [path / file.name if path.is_dir() else path for path in given]
    sizes = []
    for path in paths:
        if not path.is_file():
            raise UserError("--from", f"{path} does not exist; give {file.name} from {file.address}")
        sizes.append(f"{path} ({format_count(path.stat().st_size, 'byte')})")
        if path.stat().st_size == file.bytes and file_digest(path) == file.sha256:
            return path
    wanted = f"{file.name} with {file.bytes:,} bytes and SHA-256 {file.sha256}"
    raise UserError("--from", f"{', '.join(sizes)}: not {wanted}; download it from {file.address}")


def _download_rest(file: PublishedFile, path: Path, steps: Steps, patience: float) -> None:
    """Append the missing bytes to a partial file, or begin again if the server cannot resume."""
    done = path.stat().st_size if path.exists() else 0
    headers = {"User-Agent": f"fedvisage/{VERSION}", "Accept-Encoding": "identity"}
    request = Request(file.address, headers=headers | ({"Range": f"bytes={done}-"} if done else {}))
    try:
        with build_opener().open(request, timeout=patience) as response:
            # A server that ignores the range sends the whole file.
            done = done if response.status == 206 else 0
            length = response.headers.get("Content-Length")
            if response.headers.get_content_type() == "text/html":
                raise UserError(file.address, _PAGE)
            if length is not None and length != str(file.bytes - done):
                raise UserError(file.address, f"sends {length} bytes, not the {file.bytes - done:,} of the catalogue")
            with disk_full_is_failure(path), path.open("ab" if done else "wb") as out:
                while piece := response.read(PIECE):
                    # Proxies and login pages answer with HTML, not always with its content type.
                    if done == 0 and piece.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
                        raise UserError(file.address, _PAGE)
                    done += len(piece)
                    if done > file.bytes:
                        raise UserError(file.address, f"sends more than the {file.bytes:,} bytes of the catalogue")
                    out.write(piece)
                    steps(done, file.bytes)
    except HTTPError as error:
        error.close()
        raise UserError(file.address, f"answered {error.code} {error.reason}; {OFFLINE}") from None
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise RunFailed(f"{file.address}: the connection failed ({error}); {AGAIN} to resume, or {OFFLINE}") from None
    if done < file.bytes:
        share = f"{done:,} of {file.bytes:,} bytes"
        raise RunFailed(f"{file.address}: the connection ended after {share}; {AGAIN} to resume")
