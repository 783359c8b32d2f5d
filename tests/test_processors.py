"""The suite under settings of other processors."""

from pathlib import Path

import pytest
from tests.processors import SETTINGS, Setting, main

TESTS = """
import os
def test_setting():
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "FEDVISAGE_TEST_THREADS")
    assert [os.environ.get(name) for name in names] == ["avx2", "SSE41", "2"]
def test_that_passes():
    pass
"""


@pytest.mark.long
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
    (tmp_path / "test_setting.py").write_text(TESTS)
    assert main([str(tmp_path / "test_setting.py"), "--workers", "0", "--settings", ",".join(settings)]) == code
    table, *output = capsys.readouterr().out.split("\n\n")
    assert [line.split()[:4] for line in table.splitlines()[1:]] == rows
    assert ("AssertionError" in "".join(output)) is bool(code)


@pytest.mark.long
def test_missing_tests_count_as_failed(tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere.py"), "--workers", "0", "--settings", "native/native/1"]) == 1


def test_settings_have_every_pair_of_kernels() -> None:
    pairs = {(setting.pytorch, setting.onednn) for setting in map(Setting.of, SETTINGS)}
    expected = {(pytorch, onednn) for pytorch in ("default", "avx2") for onednn in ("SSE41", "AVX2", "AVX512_CORE")}
    assert pairs == expected | {("native", "native")}
