"""The files of the page, by their paths in it: its own, the runtime's, the detector's, and those of exported models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path

from fedvisage.device import Exported
from fedvisage.device.config import CONFIG, GRAPH, INT8_GRAPH
from fedvisage.errors import UserError
from fedvisage.faces.detection import nets
from fedvisage.files import json_text, read_plain
from fedvisage.web.described import DETECTOR, MODELS, RUNTIME, Values, page_json
from fedvisage.web.runtime import Runtime

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
        entries += [Entry(f"{DETECTOR}/{name}", partial(nets.read_installed, name)) for name in nets.DIGESTS]
        for one in (pad, recognition):
            entries += [] if one is None else _of_model(one)
    return {entry.path: entry for entry in entries}


def _own() -> list[Entry]:
    folder = files("fedvisage.web").joinpath("page")
    return [Entry(one.name, one.read_bytes) for one in sorted(folder.iterdir(), key=lambda one: one.name)]


def _of_model(exported: Exported) -> list[Entry]:
    """Return what the page reads of an exported directory, as it is there."""
    if exported.threshold is None:
        raise UserError(str(exported.directory), "has no threshold to decide by; export a run whose sites chose one")
    folder = f"{MODELS}/{exported.task}"
    graph = INT8_GRAPH if exported.description.arithmetic == "int8" else GRAPH

    config = read_plain(exported.directory / CONFIG)
    return [Entry(f"{folder}/{CONFIG}", lambda: config), Entry(f"{folder}/{graph}", exported.graph)]
