"""The files of the page: folders, refusals, and headers of the service."""

import base64
import hashlib
import io
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.commands import refusal_of
from tests.device.gallery.tiles import Tiles
from tests.device.web.conftest import serve_folder
from tests.refusals import refused

from fedvisage.base.errors import RunFailed
from fedvisage.device import Exported, Settings
from fedvisage.device.service.access import CHECK, Caller, Keys
from fedvisage.device.service.app import build as build_service
from fedvisage.device.service.limits import Limits
from fedvisage.device.web.site import HEADERS, ONNX, POLICY, Package, PageFile, RuntimeFiles, build, page_files
from fedvisage.faces import detection

KEY = "a-key-of-the-tests-0123456789"
PARTS = {"ort.js": b"export const ort = 1;", "ort-threads.js": b"export default 2;", "ort.wasm": b"\0asm" * 500}


def archive_of(parts: dict[str, bytes]) -> bytes:
    """Return a package's archive as npm packs it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def package_of(archive: bytes) -> Package:
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(archive).digest()).decode()}"
    files = {name: (f"package/dist/{name}", hashlib.sha256(part).hexdigest()) for name, part in PARTS.items()}
    return replace(ONNX, integrity=integrity, files=files)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "package.tgz"
    path.write_bytes(archive_of(PARTS))
    return path


@pytest.fixture
def runtime(archive: Path, tmp_path: Path) -> RuntimeFiles:
    """Fetch small files in the place of the real ones."""
    files = RuntimeFiles(tmp_path / "runtime", package_of(archive.read_bytes()))
    files.fetch(archive)
    return files


def test_runtime_is_fetched_from_the_npm_registry(archive: Path, tmp_path: Path) -> None:
    kept = tmp_path / "registry" / "onnxruntime-web" / "-"
    kept.mkdir(parents=True)
    archive.rename(kept / f"onnxruntime-web-{ONNX.version}.tgz")
    runtime = RuntimeFiles(tmp_path / "out", package_of((kept / f"onnxruntime-web-{ONNX.version}.tgz").read_bytes()))
    with serve_folder(tmp_path / "registry") as address:
        runtime.fetch(registry=address.rstrip("/"))
    assert {path.name: path.read_bytes() for path in runtime.folder.iterdir()} == PARTS


def test_archive_with_another_digest_is_refused(archive: Path, tmp_path: Path) -> None:
    package = package_of(archive.read_bytes())
    archive.write_bytes(archive_of({**PARTS, "ort.js": b"export const ort = evil;"}))
    runtime = RuntimeFiles(tmp_path / "out", package)
    with refused(archive, "archive", "1.30.0"):
        runtime.fetch(archive)
    assert not runtime.folder.exists()


def test_unreachable_registry_suggests_an_archive(tmp_path: Path) -> None:
    with serve_folder(tmp_path) as address:
        pass
    with pytest.raises(RunFailed, match="--archive"):
        RuntimeFiles(tmp_path / "out").fetch(registry=address.rstrip("/"))
    with refused("--registry", "https"):
        RuntimeFiles(tmp_path / "out").fetch(registry="file:///etc")


def test_changed_runtime_file_is_refused(runtime: RuntimeFiles) -> None:
    (runtime.folder / "ort.js").write_bytes(b"export const ort = evil;")
    with refused("runtime/ort.js", "1.30.0", "web fetch"):
        runtime.read("ort.js")


def test_lock_pins_one_version_by_digests() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", ONNX.version)
    assert len(base64.b64decode(ONNX.integrity.removeprefix("sha512-"), validate=True)) == 64
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for _, digest in ONNX.files.values())


def test_folder_holds_page_runtime_detector_and_models(pad: Path, runtime: RuntimeFiles, tmp_path: Path) -> None:
    out = tmp_path / "page"
    built = build(out, Exported.open(pad), None, runtime=runtime)
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert len(files) == built.files
    assert built.bytes == sum(path.stat().st_size for path in files.values())
    for name in ("config.json", "onnx/model.onnx"):
        assert files[f"models/pad/{name}"].read_bytes() == (pad / name).read_bytes()
    assert files["runtime/ort.wasm"].read_bytes() == PARTS["ort.wasm"]
    description = json.loads((out / "page.json").read_text())
    for entry in description["detector"]["files"]:
        assert hashlib.sha256(files[entry["path"]].read_bytes()).hexdigest() == entry["sha256"]
    linked = re.findall(r'(?:src|href)="([^#"]+)"', files["index.html"].read_text())
    imported = [name for path in out.glob("*.js") for name in re.findall(r'from "\./([^"]+)"', path.read_text())]
    assert {*linked, *imported} <= files.keys()


def test_page_has_the_constants_of_the_pipeline(pad: Path, runtime: RuntimeFiles) -> None:
    settings = json.loads(page_files(Exported.open(pad), None, runtime=runtime)["page.json"].content)["settings"]
    assert settings["detector"]["sure"] == list(detection.DetectorSettings().sure)
    assert settings["detector"]["longest_side"] == detection.DetectorSettings().longest_side
    assert settings["limits"]["sharpness"] == Settings().sharpness
    assert settings["running"]["window"] == Settings().window


def test_page_states_the_webassembly_digest_and_the_files_to_cache(pad: Path, runtime: RuntimeFiles) -> None:
    for keys in (False, True):
        files = page_files(Exported.open(pad), None, service={"keys": keys}, runtime=runtime)
        start = json.loads(files["page.json"].content)
        assert start["runtime"]["wasm_sha256"] == files["runtime/ort.wasm"].digest
        kept = {path for path, entry in files.items() if not (keys and entry.of_model)}
        assert set(start["offline"]) == kept


def test_page_digest_changes_with_every_cached_file(pad: Path, runtime: RuntimeFiles) -> None:
    def contents(model: Exported, keys: bool = False) -> object:
        files = page_files(model, None, service={"keys": keys}, runtime=runtime)
        assert all(entry.digest == hashlib.sha256(entry.content).hexdigest() for entry in files.values())
        return json.loads(files["page.json"].content)["contents"]

    model = Exported.open(pad)
    assert contents(model) == contents(Exported.open(pad))
    other = pad.with_name("another")
    shutil.copytree(pad, other)
    (other / "config.json").write_bytes((pad / "config.json").read_bytes() + b"\n")
    assert contents(Exported.open(other)) != contents(model)
    assert contents(Exported.open(other), keys=True) == contents(model, keys=True)


def test_page_needs_a_runtime_and_an_empty_folder(pad: Path, runtime: RuntimeFiles, tmp_path: Path) -> None:
    model = Exported.open(pad)
    with refused("nowhere", "web fetch"):
        build(tmp_path / "page", model, None, runtime=RuntimeFiles(tmp_path / "nowhere"))
    assert not (tmp_path / "page").exists()
    with refused("runtime", "empty"):
        build(runtime.folder, model, None, runtime=runtime)


def test_page_of_a_model_without_threshold_is_refused(pad: Path, runtime: RuntimeFiles, tmp_path: Path) -> None:
    model = Exported.open(pad)
    undecided = replace(model, description=model.description.model_copy(update={"threshold": None}))
    with refused("pad", "threshold"):
        build(tmp_path / "page", undecided, None, runtime=runtime)
    assert not (tmp_path / "page").exists()


def test_page_of_models_of_the_wrong_task_is_refused(
    pad: Path, recognition: Path, runtime: RuntimeFiles, tmp_path: Path
) -> None:
    detects, recognises = Exported.open(pad), Exported.open(recognition)
    with refused("recognition", "recognition model", "--pad", "attack detector"):
        build(tmp_path / "page", recognises, None, runtime=runtime)
    with refused("pad", "attack detector", "--recognition", "recognition model"):
        build(tmp_path / "page", detects, detects, runtime=runtime)
    assert not (tmp_path / "page").exists()


def test_command_refuses_in_one_line(pad: Path, tmp_path: Path) -> None:
    words = ("web", "build", tmp_path / "page", "--pad")
    assert "nothing" in refusal_of(*words, tmp_path / "nothing").place
    assert "web fetch" in refusal_of(*words, pad, "--runtime", tmp_path / "nowhere").message


def test_folder_and_service_have_the_same_policy(pad: Path, runtime: RuntimeFiles) -> None:
    page = page_files(Exported.open(pad), None, runtime=runtime)["index.html"].content.decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy == POLICY
    assert HEADERS["content-security-policy"].startswith(POLICY)
    assert "unsafe-eval" not in POLICY.replace("'wasm-unsafe-eval'", "")
    assert "unsafe-inline" not in POLICY
    assert not re.findall(r"https?:|<script>|style=|onclick=", page)


def client_of(files: dict[str, PageFile], keys: Keys | None = None) -> TestClient:
    return TestClient(build_service(Tiles(), keys=keys, limits=Limits(rate=0), page=files), "http://localhost")


def test_service_delivers_the_page_with_strict_headers_and_caching(pad: Path, runtime: RuntimeFiles) -> None:
    files = page_files(Exported.open(pad), None, service={"keys": False}, runtime=runtime)
    with client_of(files) as client:
        for path in ("", *files):
            reply = client.get(f"/{path}")
            assert reply.status_code == 200, path
            assert reply.content == files[path or "index.html"].content
            assert all(reply.headers.get_list(name) == [value] for name, value in HEADERS.items())
            assert reply.headers["x-content-type-options"] == "nosniff"
        kinds = {name: client.get(f"/{name}").headers["content-type"] for name in ("main.js", "runtime/ort.wasm")}
        assert kinds == {"main.js": "text/javascript; charset=utf-8", "runtime/ort.wasm": "application/wasm"}
        again = client.get("/main.js", headers={"if-none-match": client.get("/main.js").headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "/v1/compare" in client.get("/routes").text
        assert client.get("/models/pad/../../secret").status_code == 404
        assert client.get("/v1/health").headers["cache-control"] == "no-store"


def test_models_are_delivered_only_with_a_key(pad: Path, runtime: RuntimeFiles) -> None:
    files = page_files(Exported.open(pad), None, service={"keys": True}, runtime=runtime)
    with client_of(files, Keys([(KEY, Caller("kiosk", CHECK))])) as client:
        answers = {path: client.get(f"/{path}").status_code for path in files}
        assert {path for path, status in answers.items() if status == 401} == {
            "models/pad/config.json",
            "models/pad/onnx/model.onnx",
        }
        assert {status for path, status in answers.items() if not path.startswith("models/")} == {200}
        assert client.get("/models/pad/onnx/model.onnx", headers={"x-api-key": KEY}).status_code == 200
