"""Downloads of published files from a local server: resumed, checked, and refused in one line."""

import http.server
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.refusals import failed, refused

from fedvisage.base.errors import NoRoom, RunFailed
from fedvisage.starts.download import download, find_given
from fedvisage.starts.published import PublishedFile

CONTENT = bytes(range(256)) * 1024
HALF = len(CONTENT) // 2
PAGE = b"<!DOCTYPE html><title>Sign in</title>"


def published_file(address: str, content: bytes = CONTENT) -> PublishedFile:
    return PublishedFile(address=address, sha256=sha256(content).hexdigest(), bytes=len(content))


def place_of(file: PublishedFile, folder: Path) -> Path:
    return folder / f"{file.sha256[:16]}-{file.name}"


class Server(http.server.ThreadingHTTPServer):
    """Answers by the path of the address, and records the requested ranges."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ranges = list[str | None]()
        self.finished = threading.Event()

    def entry(self, path: str, content: bytes = CONTENT) -> PublishedFile:
        address = f"http://127.0.0.1:{self.server_port}/{path}"
        return published_file(address, content)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        kind = self.path.rpartition("/")[2]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and kind != "no-ranges" else 0
        content = {"page": PAGE, "wrong": CONTENT[::-1], "short": CONTENT[:-1], "long": CONTENT + b"x"}.get(
            kind, CONTENT
        )
        if kind == "silent":
            self.server.finished.wait(30)
            return
        self.send_response(404 if kind == "missing" else 206 if start else 200)
        if start:
            begin = 0 if kind == "other-range" else start
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Type", "text/html" if kind == "page" else "application/octet-stream")
        if kind not in ("long", "unnamed-page"):
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if kind == "unnamed-page":
            content = PAGE
        self.wfile.write(content[start : HALF if kind == "cut" else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.finished.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_reports_steps_and_has_the_right_bytes(server: Server, tmp_path: Path) -> None:
    steps = list[tuple[int, int]]()
    path = download(server.entry("file"), tmp_path, steps=lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert len(steps) > 1


@pytest.mark.parametrize("kind", ["file", "no-ranges"])
def test_partial_file_is_resumed_or_begun_again(server: Server, tmp_path: Path, kind: str) -> None:
    file = server.entry(kind)
    place_of(file, tmp_path).write_bytes(CONTENT[:HALF])
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={HALF}-"]


def test_broken_connection_is_a_failure_that_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    broken, whole = server.entry("cut"), server.entry("file")
    with failed(RunFailed, f"{HALF:,}", "resume"):
        download(broken, tmp_path)
    place_of(broken, tmp_path).rename(place_of(whole, tmp_path))
    assert download(whole, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={HALF}-"]


def test_complete_download_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    file = server.entry("file")
    place_of(file, tmp_path).write_bytes(CONTENT)
    assert download(file, tmp_path).read_bytes() == CONTENT
    assert server.ranges == []


@pytest.mark.parametrize(
    ("kind", "keyword"),
    [
        ("page", "web page"),
        ("unnamed-page", "web page"),
        ("wrong", "SHA-256"),
        ("short", f"{len(CONTENT) - 1}"),
        ("long", "more than"),
        ("missing", "404"),
    ],
)
def test_other_answers_are_refused_in_one_line(server: Server, tmp_path: Path, kind: str, keyword: str) -> None:
    file = server.entry(kind)
    with refused(file.address, keyword):
        download(file, tmp_path)
    assert all(path.stat().st_size <= file.bytes for path in tmp_path.iterdir())
    if kind == "wrong":
        assert list(tmp_path.iterdir()) == []


def test_resumption_at_another_byte_ends_with_a_wrong_digest(server: Server, tmp_path: Path) -> None:
    file = server.entry("other-range")
    place_of(file, tmp_path).write_bytes(CONTENT[1 : HALF + 1])
    with refused(file.address, "SHA-256"):
        download(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_silent_server_is_a_failure(server: Server, tmp_path: Path) -> None:
    with failed(RunFailed, "timed out"):
        download(server.entry("silent"), tmp_path, patience=0.2)


def test_page_of_a_proxy_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    file = published_file("http://authors.invalid/page")
    with refused(file.address, "web page", "proxy", "--from"):
        download(file, tmp_path)


def test_full_disk_is_one_line(server: Server, tmp_path: Path) -> None:
    file = server.entry("file")
    place_of(file, tmp_path).symlink_to("/dev/full")
    with failed(NoRoom, "disk is full"):
        download(file, tmp_path)


def test_file_without_network_needs_the_same_digest(tmp_path: Path) -> None:
    file = published_file("https://authors.invalid/net.pth")
    (tmp_path / "net.pth").write_bytes(CONTENT)
    (tmp_path / "renamed").write_bytes(CONTENT)
    assert find_given(file, [tmp_path]) == tmp_path / "net.pth"
    assert find_given(file, [tmp_path / "renamed"]) == tmp_path / "renamed"
    (tmp_path / "net.pth").write_bytes(CONTENT[::-1])
    with refused("--from", file.sha256, file.address):
        find_given(file, [tmp_path])
    with refused("--from", "absent.pth"):
        find_given(file, [tmp_path / "absent.pth"])
