"""Atomic files, and tensor files that are read back as written or refused."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.refusals import failed, refused

from fedvisage.base.errors import NoRoom
from fedvisage.base.files import (
    RESUME,
    disk_full_is_failure,
    json_key,
    json_line,
    json_text,
    parse_json,
    read_arrays,
    read_json,
    read_tensors,
    read_text,
    remove_unfinished,
    write_arrays,
    write_atomically,
    write_tensors,
)
from fedvisage.federation.record import store
from fedvisage.federation.record.ledger import stream_lines

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4).T,
    "count": torch.tensor(3),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "flags": torch.tensor([True, False]),
}


def test_tensors_round_trip(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", TENSORS, "some text")
    actual, text = read_tensors(tmp_path / "t.safetensors")
    assert text == "some text"
    assert {name: (value.dtype, value.tolist()) for name, value in actual.items()} == {
        name: (value.dtype, value.tolist()) for name, value in TENSORS.items()
    }


def test_equal_tensors_give_equal_bytes_in_any_order(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS, "x")
    write_tensors(tmp_path / "b", dict(reversed(TENSORS.items())), "x")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_replacing_a_file_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    write_atomically(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new")]


def test_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="irectory"):
        write_atomically(tmp_path / "target", b"a directory cannot be replaced by a file")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_remove_unfinished_removes_only_unfinished_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in (".a.12.part", "deep/.b.safetensors.3.part", "a", "deep/b.part", ".lock"):
        (tmp_path / name).write_text("x")
    remove_unfinished(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"a", "deep", "deep/b.part", ".lock"}


@pytest.mark.parametrize("content", [b"", b"not tensors", (2**40).to_bytes(8, "little") + b"{}"])
def test_invalid_tensor_file_is_a_user_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    with refused("t.safetensors", "safetensors"):
        read_tensors(path)


def test_arrays_have_the_bytes_and_the_values_of_tensors(tmp_path: Path) -> None:
    tensors = {name: value for name, value in TENSORS.items() if value.dtype != torch.bfloat16}
    write_tensors(tmp_path / "tensors", tensors)
    write_arrays(tmp_path / "arrays", {name: value.numpy() for name, value in tensors.items()})
    assert (tmp_path / "arrays").read_bytes() == (tmp_path / "tensors").read_bytes()
    arrays, text = read_arrays(tmp_path / "tensors")
    assert text == ""
    assert {name: value.tolist() for name, value in arrays.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }


def test_tensor_type_unknown_to_numpy_is_refused(tmp_path: Path) -> None:
    """A process of its own, because NumPy knows bfloat16 after the import of ml_dtypes, which onnx needs."""
    write_tensors(tmp_path / "t.safetensors", TENSORS)
    program = "import sys, pathlib, fedvisage.base.files as files; files.read_arrays(pathlib.Path(sys.argv[1]))"
    words = [sys.executable, "-c", program, str(tmp_path / "t.safetensors")]
    last = subprocess.run(words, capture_output=True, text=True).stderr.splitlines()[-1]
    assert "UserError" in last
    assert "bfloat16" in last


def test_missing_tensor_file_is_named(tmp_path: Path) -> None:
    with refused("nowhere", "exist"):
        read_tensors(tmp_path / "nowhere")


@pytest.mark.long
def test_sealed_file_detects_every_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    store.write_sealed(path, TENSORS, {"round": 3, "generations": {"A": 2}})
    whole = path.read_bytes()
    assert store.read_sealed(path, "")[1] == {"round": 3, "generations": {"A": 2}}
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with refused("sealed", "restore it"):
            store.read_sealed(path, "restore it")


def test_a_file_without_a_seal_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "t")
    with refused("t", "program"):
        store.read_sealed(tmp_path / "t", "")


@pytest.mark.parametrize("write", [json_text, json_line, json_key])
def test_written_json_is_standard_json(write: Callable[[object], str]) -> None:
    text = write({"rate": math.nan, "all": [math.inf, (1.5, -math.inf)], "né": np.float64("nan")})
    value = json.loads(text, parse_constant=pytest.fail)
    assert value == {"rate": None, "all": [None, [1.5, None]], "né": None}


def test_valid_json_is_written_unchanged() -> None:
    value = {"b": 1.5, "a": ["é", None, True]}
    assert json_text(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    assert json_line(value) == json.dumps(value, ensure_ascii=False) + "\n"
    assert json_key(value) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[" * 100_000, "[" * 70 + "]" * 70, '"\\ud800"', "9" * 5000, '{"a": 1} x', b"\xff\xfe"),
        *(b'"\xed\xa0\x80"', '"\\ud800"'.encode("utf-16")),
    ],
)
def test_malformed_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_nan_in_foreign_json_is_read_as_null() -> None:
    assert parse_json("[NaN, Infinity, 1e999, 1.5]") == [None, None, None, 1.5]
    assert parse_json('"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize(("content", "keyword"), [(b"[]", "object"), (b"{", "JSON"), (b"\xff", "UTF-8")])
def test_file_without_json_is_named_with_advice(content: bytes, keyword: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with refused(path, keyword):
        read_json(path, "write it again")


def test_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    truncated = list[bytes]()
    assert list(stream_lines(path, truncated)) == [{"a": 1}, {"a": 2}]
    assert truncated == [b'{"a"']
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with refused(path, "line 2"):
        list(stream_lines(path))


@pytest.mark.parametrize("read", [read_json, read_text, read_tensors])
def test_pipes_and_devices_are_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with refused(name, "regular file"):
            read(tmp_path / name)


def test_file_of_reported_size_zero_is_read_only_up_to_the_limit() -> None:
    """Files of /proc have size zero and are created while they are read."""
    with refused("status", "100"):
        read_text(Path("/proc/self/status"), 100)


def test_full_disk_is_named_with_the_advice_of_the_outermost_context() -> None:
    with (
        failed(NoRoom, "/dev/full: the disk is full; free some space", "continue with --resume"),
        disk_full_is_failure(Path("run"), RESUME),
        disk_full_is_failure(Path("/dev/full")),
        Path("/dev/full").open("wb", buffering=0) as file,
    ):
        file.write(b"some text")


def test_tensors_beyond_the_memory_limit_are_refused_in_one_line(tmp_path: Path) -> None:
    """The process has a memory limit, as in containers."""
    write_tensors(tmp_path / "t.safetensors", TENSORS)
    os.truncate(tmp_path / "t.safetensors", 1 << 33)
    words = f"""
import resource
from pathlib import Path
from fedvisage.base.files import read_tensors
from fedvisage.base.errors import UserError
resource.setrlimit(resource.RLIMIT_AS, (1 << 33, resource.RLIM_INFINITY))
try:
    read_tensors(Path({str(tmp_path / "t.safetensors")!r}))
except UserError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert process.stdout.startswith(str(tmp_path / "t.safetensors"))
    assert len(process.stdout.splitlines()) == 1
