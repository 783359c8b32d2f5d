"""Verification pairs in one file: every known writer's files are read, and all others are refused."""

import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.imports import import_photographs
from tests.datasets.people.test_rec_files import png
from tests.refusals import refused

from fedvisage.data.lists import read_pairs
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.people.bin import read_pickle, write_pickle

PICTURES = [b"first \x80\xff\0", b"second", b"x" * 300, b"second"]
PYTHON_2 = b"\x80\x02]q\x01(T\x05\x00\x00\x00ab\xff\x00cq\x02U\x02deq\x03e]q\x04\x88a\x86q\x05."
"""As Python 2 writes it: long and short strings, and a list of one."""


def write_file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "lfw.bin").write_bytes(content)
    return tmp_path / "lfw.bin"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", ["bytes", "array", "column"])
def test_every_protocol_and_form_of_a_picture_is_read(protocol: int, form: str, tmp_path: Path) -> None:
    rows = [np.frombuffer(one, np.uint8).copy() for one in PICTURES]
    pictures: list[Any] = PICTURES if form == "bytes" else [one[:, None] if form == "column" else one for one in rows]
    for same in ([True, False], [np.True_, np.False_], [1, 0]):
        portions, alike = read_pickle(write_file(tmp_path, pickle.dumps((pictures, same), protocol)))
        assert [one.read() for one in portions] == PICTURES
        assert alike == [True, False]


def test_python_2_pickles_are_read_and_written(tmp_path: Path) -> None:
    portions, same = read_pickle(write_file(tmp_path, PYTHON_2))
    assert [one.read() for one in portions] == [b"ab\xff\0c", b"de"]
    assert same == [True]
    assert pickle.loads(write_pickle(PICTURES, [True, False]), encoding="bytes") == (PICTURES, [True, False])


class Touch:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 4])
def test_malicious_pickle_is_refused_without_effect(protocol: int, tmp_path: Path) -> None:
    path = write_file(tmp_path, pickle.dumps(([b"a", Touch(tmp_path / "done")], [True]), protocol))
    with refused("lfw.bin", f"{os.mkdir.__module__}.mkdir"):
        import_photographs("bin", path, tmp_path / "set")
    assert [one.name for one in tmp_path.iterdir()] == ["lfw.bin"]


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (PYTHON_2[:-1], "cut off"),
        (PYTHON_2[:12], "byte 11"),
        (PYTHON_2 + b"x", "end"),
        (b"\x80\x02](T\xff\xff\xff\x7fabc", "2,147,483,647 bytes"),
        (b"\x80\x02](T\xff\xff\xff\xffabc", "-1 bytes"),
        (b"(lp0\nS'a'\np1\na.", "protocol"),
        (b"\x80\x02}.", "b'}'"),
        (b"\x80\x02cposix\nsystem\nU\x02ls\x85R.", "posix.system"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0utf-8\x86R.", "encoding"),
        (b"\x80\x02h\x05.", "stored"),
        (b"\x80\x02a.", "value"),
        (b"\x80\x02]e.", "mark"),
        (b"\x80\x02]q\0h\0a]\x86.", "not bytes"),
        (b"\x80\x02](NNe]\x88a\x86.", "not bytes"),
        (b"\x80\x02](U\1aU\1be]K\x02a\x86.", "true"),
        (b"\x80\x02](U\1aU\1be.", "lists"),
        (b"\x80\x02](U\1ae]\x88a\x86.", "1 pairs"),
        (b"\x80\x02](" + b"\x88" * (1 << 22) + b"e.", "2,097,152"),
        (b"\x80\x02" + b"(" * (1 << 22), "2,097,152"),
        (b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", key) for key in range((1 << 21) + 1)), "2,097,152"),
        (pickle.dumps(([np.zeros((4, 4), np.uint8)] * 2, [True])), "array"),
        (pickle.dumps(([np.zeros(4, np.float32)] * 2, [True])), "array"),
        (b"", "cut off"),
    ],
)
def test_other_pickles_are_refused(content: bytes, keyword: str, tmp_path: Path) -> None:
    with refused("lfw.bin", keyword):
        import_photographs("bin", write_file(tmp_path, content), tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_pictures_of_absurd_size_are_refused_undecoded(tmp_path: Path) -> None:
    """A picture of 400 million pixels in a few bytes: only its header is read."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with refused("lfw.bin", "pair000000/pair000000_0001", "64 million"):
        content = write_pickle([bomb, bomb], [True])
        import_photographs("bin", write_file(tmp_path, content), tmp_path / "set")
    assert [one.name for one in tmp_path.iterdir()] == ["lfw.bin"]


def test_bin_import_writes_a_set_and_ten_folds_of_pairs(tmp_path: Path) -> None:
    pictures = [png(tmp_path / "p.png", value) for value in range(40)]
    same = [number % 3 == 0 for number in range(20)]
    path = write_file(tmp_path, write_pickle(pictures, same))
    report = import_photographs("bin", path, tmp_path / "set")
    prepared, listed = PreparedSet.open(tmp_path / "set"), read_pairs(tmp_path / "set-pairs.txt")
    assert listed.same.tolist() == same
    assert listed.fold.tolist() == [number // 2 for number in range(20)]
    values = dict(zip(prepared.rows.item.tolist(), prepared.images[:, 0, 0, 0].tolist(), strict=True))
    assert [values[one] for one in listed.first] == list(range(0, 40, 2))
    assert [values[one] for one in listed.second] == list(range(1, 40, 2))
    assert "heldout" not in prepared.rows.split
    assert "only known within pairs" in "\n".join(report.lines())
    with refused("set-pairs.txt", "exists"):
        import_photographs("bin", path, tmp_path / "set")
