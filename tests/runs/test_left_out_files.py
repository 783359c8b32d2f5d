"""Files that an import leaves out: their reasons, and the rates of no response that follow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.data.left_out import LeftOut, read_left_out
from fedvisage.runs.evaluate import left_out_of, open_named

SIDE = 32


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of four genuine pictures and two prints; one and two others are not square, and one file is empty."""
    root, rng = tmp_path_factory.mktemp("left-out"), np.random.default_rng(0)
    numbers = {"real": (4, 1), "attack/print": (2, 2)}
    for place, (square, oblong) in numbers.items():
        for number in range(square + oblong):
            path = root / "photos" / place / f"person {number}" / f"{number}.png"
            path.parent.mkdir(parents=True)
            wide = SIDE if number < square else 2 * SIDE
            Image.fromarray(rng.integers(0, 255, (SIDE, wide, 3), dtype=np.uint8)).save(path)
    (root / "photos" / "real" / "person 0" / "empty.png").write_bytes(b"")
    words = ["data", "import", "folder", root / "photos", root / "set", "--size", SIDE, "--crop=none", "--quiet"]
    result = CliRunner().invoke(app, [*map(str, words), "--max-bad=1", "--workers=1"])
    assert result.exception is None, result.exception
    assert "6 of 10 files used, 4 left out: not square" in result.stdout
    return root / "set"


def test_set_shows_how_many_files_count_and_why_others_do_not(imported: Path) -> None:
    shown = CliRunner().invoke(app, ["data", "show", str(imported)]).stdout
    (line,) = [line for line in shown.splitlines() if "left out" in line]
    assert line.startswith("6 of 10 files used, 4 left out: ")
    for reason in ("not square, and no crop was requested (3)", "an empty file"):
        assert reason in line


def test_files_without_a_face_are_no_response_and_damaged_ones_are_not(imported: Path) -> None:
    left_out = read_left_out(imported)
    assert left_out is not None
    assert left_out.unanswered == {"bonafide": 1, "print": 2}
    figures = left_out_of(open_named(str(imported), imported), {"bpcer": 0.25, "apcer_pooled": 0.5})
    assert figures["bpnrr"] == pytest.approx(1 / 5)
    assert figures["apnrr"] == {"print": pytest.approx(2 / 4)}
    # One of four genuine pictures and one of two prints is wrong, and one and two get no response.
    assert figures["hter_with_nonresponses"] == pytest.approx(((1 + 1) / 5 + (1 + 2) / 4) / 2)


def test_names_and_sizes_do_not_divide_reasons() -> None:
    reasons = ["the same content as a.png", "the same content as b.png", "not square (1×2), and no crop was requested"]
    entries = [{"path": str(number), "reason": reason} for number, reason in enumerate(reasons)]
    left_out = LeftOut.of({"files": 5, "skipped": entries})
    assert left_out.reasons["the same content as another file"] == 2
    assert left_out.line.startswith("2 of 5 files used, 3 left out: the same content as another file (2)")
