"""Trying the suite under other settings: what a test sees of a setting, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processors import SETTINGS, Setting, main

SEES = """
import os
def test_setting():
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "FEDVISAGE_TEST_THREADS")
    assert [os.environ.get(name) for name in names] == ["avx2", "SSE41", "2"]
def test_that_passes():
    pass
"""


@pytest.mark.parametrize(
    ("settings", "code", "rows"),
    [
        (["avx2/SSE41/2"], 0, [["avx2/SSE41/2", "2", "0", "0"]]),
        (["avx2/SSE41/2", "avx2/AVX2/2"], 1, [["avx2/SSE41/2", "2", "0", "0"], ["avx2/AVX2/2", "1", "1", "0"]]),
    ],
)
def test_tests_see_the_setting_and_failures_are_counted(
    settings: list[str], code: int, rows: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_sees.py").write_text(SEES)
    assert main([str(tmp_path / "test_sees.py"), "--workers", "0", "--settings", ",".join(settings)]) == code
    table, *said = capsys.readouterr().out.split("\n\n")
    assert [line.split()[:4] for line in table.splitlines()[1:]] == rows
    assert ("AssertionError" in "".join(said)) is bool(code)


def test_tests_that_cannot_be_found_have_failed(tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere.py"), "--workers", "0", "--settings", "native/native/1"]) == 1


def test_every_pair_of_kernels_is_tried() -> None:
    tried = {(setting.pytorch, setting.onednn) for setting in map(Setting.of, SETTINGS)}
    expected = {(one, other) for one in ("default", "avx2") for other in ("SSE41", "AVX2", "AVX512_CORE")}
    assert tried == expected | {("native", "native")}
