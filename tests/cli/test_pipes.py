"""Each command refuses a pipe as a file in one line, without opening it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.commands import call, output_of

from fedvisage.base.errors import RunFailed, UserError

COMMANDS = (
    "run PIPE --out out",
    "study run PIPE --out out",
    "predict PIPE photo.png",
    "predict EXPORT --paths-from PIPE",
    "watch PIPE --pad EXPORT",
    "watch photo.png --pad PIPE",
    "threshold PIPE",
    "export PIPE out",
    "fuse PIPE EXPORT --out out",
    "calibrate PIPE --live photos --out out",
    "calibrate EXPORT --live PIPE --out out",
    "adapt EXPORT --data PIPE --out out",
    "report PIPE",
    "audit PIPE",
    "compare PIPE EXPORT",
    "evaluate PIPE",
    "evaluate RUN --pairs PIPE",
    "data show PIPE",
    "data import folder PIPE out",
    "model convert PIPE out.safetensors --as iresnet18",
    "model convert photo.png out.safetensors --as iresnet18 --licence @PIPE",
    "gallery list PIPE --key KEY",
    "gallery list GALLERY --key PIPE",
    "gallery list GALLERY --key KEY --counters COUNTERS",
    "gallery remove GALLERY nobody --key KEY --counters COUNTERS",
    "gallery rotate-key GALLERY --key KEY --new-key PIPE",
    "gallery migrate PIPE --key KEY",
    "gallery evaluate GALLERY PIPE --key KEY --pad EXPORT --recognition EXPORT",
    "serve --pad EXPORT --api-keys PIPE",
    "serve --pad EXPORT --audit-log PIPE",
    "serve --pad EXPORT --tls-cert PIPE --tls-key PIPE",
    "web fetch --archive PIPE --out out",
    "provision PIPE out",
    "cosign PIPE --kit kit --out out",
    "status --kit PIPE",
)


@contextmanager
def watch_pipe(pipe: Path) -> Iterator[threading.Event]:
    """Yield an event that is set when the pipe is opened for reading; the reader gets a byte, so it does not block."""
    was_opened, is_over = threading.Event(), threading.Event()

    def feed() -> None:
        while True:
            handle = os.open(pipe, os.O_WRONLY)  # returns when a reader opens the pipe
            if is_over.is_set():
                return os.close(handle)
            was_opened.set()
            os.write(handle, b"x")
            os.close(handle)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield was_opened
    finally:
        is_over.set()
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipes")
    os.mkfifo(folder / "pipe")
    (folder / "photos").mkdir()
    (folder / "photo.png").write_bytes(b"no picture")
    output_of("gallery", "create", folder / "gallery", "--key", folder / "key")
    (folder / "counters").mkdir()
    os.symlink(folder / "pipe", folder / "counters/gallery.counter")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_pipe_as_a_file_is_refused_without_opening_it(
    folder: Path, pad: Path, pad_run: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    paths = {"EXPORT": pad, "RUN": pad_run, "GALLERY": "gallery", "KEY": "key", "COUNTERS": "counters"}
    words = [str(paths.get(word, word.replace("PIPE", str(folder / "pipe")))) for word in command.split()]
    with watch_pipe(folder / "pipe") as opened:
        result = call(*words)
    assert not opened.is_set(), f"opened the pipe: {result.output}"
    assert isinstance(result.exception, UserError | RunFailed), repr(result.exception)
    assert "\n" not in str(result.exception)
    assert not (folder / "out").exists()


def test_pipe_among_pictures_is_rejected_without_opening_it(folder: Path, pad: Path) -> None:
    with watch_pipe(folder / "pipe") as opened:
        result = call("predict", pad, folder / "pipe")
    assert not opened.is_set()
    assert (result.exit_code, result.exception) == (0, None)
    (line,) = result.output.splitlines()[1:]
    assert line.startswith("rejected ")
    assert "regular file" in line
