"""Hostile requests of all kinds: each gets an answer in the form of the service, and no other file changes.

The first hundred are part of the normal tier, 2,000 of the slow one.
"""

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tests.device.gallery.tiles import RED, Tiles, row_of, tile_of
from tests.device.service.clients import connect, png

from fedvisage.device.gallery.search import Gallery

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS = (
    *("/v1/detect", "/v1/pad", "/v1/embed", "/v1/compare", "/v1/verify", "/v1/collections", "/v1/health", "/metrics"),
    *("/v1/collections/{}/search", "/v1/collections/{}/persons", "/v1/collections/default/persons/{}"),
    *("/v1/collections/default/persons/{}/faces", "/v1/collections/default/persons/a/faces/{}", "/{}"),
    *("/api/v1/recognition/recognize", "/api/v1/recognition/faces", "/api/v1/recognition/faces/{}/verify"),
    *("/api/v1/recognition/subjects/{}", "/api/v1/detection/detect", "/api/v1/verification/verify", "/openapi.json"),
)
WORDS = (
    *("default", "anna", "../../etc/passwd", "..%2f..", "a" * 5000, "\0", "\n", "'; DROP TABLE persons; --", "💥", ""),
    *("p_0123456789abcdef", "%s%n", "{{7*7}}", "<script>", "\ud7ff", "-1", "1e999", "NaN", "null", "/dev/stdin"),
)
KINDS = (
    *("application/json", "image/png", "multipart/form-data", "multipart/form-data; boundary=b", "text/html", ""),
    *("application/x-www-form-urlencoded", "application/octet-stream", "image/svg+xml", "a" * 300),
)
NAMES = ("image", "file", "name", "person", "image1", "image2", "source_image", "subject", "limit", "", "\0", "x" * 999)

METHODS = ("GET", *["POST"] * 4, "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "H")

WRITTEN: list[str] = []
WATCHING = [False]


def _audit(event: str, details: tuple[Any, ...]) -> None:
    if not WATCHING[0]:
        return
    if event == "open" and isinstance(details[2], int) and details[2] & WRITING:
        WRITTEN.append(str(details[0]))
    elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "subprocess.Popen", "os.system", "socket.connect"):
        WRITTEN.append(f"{event} {details[0]}")


sys.addaudithook(_audit)  # hooks cannot be removed, so the hook checks WATCHING


@contextmanager
def watch_writes() -> Iterator[list[str]]:
    WRITTEN.clear()
    WATCHING[0] = True
    try:
        yield WRITTEN
    finally:
        WATCHING[0] = False


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """Change, cut or repeat some bytes."""
    bytes_ = bytearray(content)
    match int(rng.integers(4)):
        case 0:
            for _ in range(int(rng.integers(1, 20))):
                bytes_[int(rng.integers(len(bytes_)))] = int(rng.integers(256))
        case 1:
            del bytes_[int(rng.integers(len(bytes_))) :]
        case 2:
            at = int(rng.integers(len(bytes_)))
            bytes_[at:at] = rng.bytes(int(rng.integers(1, 2000)))
    return bytes(bytes_)


def draw_value(rng: np.random.Generator, picture: bytes) -> Any:
    choices: list[Any] = [*WORDS, 7, -1e300, None, True, [], {}, [[]] * 3, base64.b64encode(picture).decode()]
    return choices[int(rng.integers(len(choices)))]


def draw_body(rng: np.random.Generator, picture: bytes) -> dict[str, Any]:
    """Draw a body of some kind, possibly with wrong headers."""
    damaged = damage(rng, picture)
    chosen = [NAMES[int(index)] for index in rng.integers(len(NAMES), size=3)]
    match int(rng.integers(5)):
        case 0:
            text = json.dumps({name: draw_value(rng, damaged) for name in chosen}).encode()
            return {"content": damage(rng, text), "headers": {"content-type": "application/json"}}
        case 1:
            return {"json": {name: draw_value(rng, picture) for name in chosen}}
        case 2:
            form = b"".join(
                b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
                % (name.encode(), b'; filename="../../f"' if rng.integers(2) else b"", damaged)
                for name in chosen
            )
            kind = {"content-type": "multipart/form-data; boundary=b"}
            return {"content": damage(rng, form + b"--b--\r\n"), "headers": kind}
        case 3:
            return {"files": {name or "image": damaged for name in chosen}, "data": {"name": "anna", "person": "anna"}}
    return {
        "content": damaged,
        "headers": {"content-type": KINDS[int(rng.integers(len(KINDS)))], "x-request-id": WORDS[int(rng.integers(4))]},
    }


def draw_request(rng: np.random.Generator) -> dict[str, Any]:
    method = METHODS[int(rng.integers(len(METHODS)))]
    word, other = (WORDS[int(index)] for index in rng.integers(len(WORDS), size=2))
    path = PATHS[int(rng.integers(len(PATHS)))].format(quote(word, safe="/%"))
    people = rng.integers(5, size=int(rng.integers(3)))
    picture = png(*(tile_of(int(person), colour=RED if person == 3 else None) for person in people))
    queries = ("", f"?limit={quote(other)}&pad={quote(word)}", "?pad=report", f"?subject={quote(other)}")
    url = path + queries[int(rng.integers(4))]
    return {"method": method, "url": url, **(draw_body(rng, picture) if method != "GET" else {})}


def send_hostile_requests(tmp_path: Path, count: int, seed: int) -> None:
    data, rng = tmp_path / "data", np.random.default_rng(seed)
    data.mkdir()
    log: list[str] = []
    with Gallery.create(data / "door.gallery", bytes(32)) as gallery:
        gallery.add_collection()
        row = Tiles().check(row_of(tile_of(1)))
        assert row.faces[0].embedding is not None
        gallery.enrol("default", "anna", row.faces[0].embedding[None], "sha256:" + "a" * 64)
        with connect(gallery=gallery, log=log.append) as client, watch_writes() as touched:
            del client.headers["x-fedvisage"]
            for _ in range(count):
                hostile = draw_request(rng)
                reply = client.request(**hostile)
                assert reply.status_code < 500 or reply.status_code == 503, (hostile, reply.text)
                assert "Traceback" not in reply.text
                assert str(tmp_path) not in reply.text
                assert reply.headers["x-request-id"]
                if reply.status_code >= 400 and hostile["method"] != "HEAD":
                    assert set(reply.json()) == {"error", "request_id"}
                    assert reply.json()["error"]["message"].isprintable()
            assert client.get("/v1/health").json()["status"] == "ok"
        assert [path for path in touched if not path.startswith(str(data))] == []
    assert [path.name for path in data.iterdir()] == ["door.gallery"]
    assert len(log) == count + 1
    assert not [line for line in log if "\n" in line or "defect" in line or "failed" in line]


def test_hundred_hostile_requests(tmp_path: Path) -> None:
    send_hostile_requests(tmp_path, 100, seed=0)


@pytest.mark.slow
def test_two_thousand_hostile_requests(tmp_path: Path) -> None:
    send_hostile_requests(tmp_path, 2000, seed=1)


def test_writes_elsewhere_are_detected(tmp_path: Path) -> None:
    with watch_writes() as touched:
        (tmp_path / "elsewhere").write_text("x")
    assert touched == [str(tmp_path / "elsewhere")]
