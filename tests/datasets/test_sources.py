"""Data entries: directories are taken as they are, `synth:` lines are rendered once."""

import io
import itertools
import json
from multiprocessing import get_context
from pathlib import Path

import pytest

from fedvisage.base.progress import JsonReporter
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import resolve

LINE = "synth: O subjects=2 videos=1 frames=1 size=32"


def test_directory_entry_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path / "O"), tmp_path / "cache") == tmp_path / "O"
    assert list(tmp_path.iterdir()) == []


def test_synth_line_is_rendered_once(tmp_path: Path) -> None:
    output, hours = io.StringIO(), itertools.count(step=3600)
    reporter = JsonReporter(output, clock=lambda: float(next(hours)))
    first = resolve(LINE, tmp_path, say=reporter)
    modified = (first / "set.json").stat().st_mtime_ns
    assert first.parent == tmp_path
    assert first.name.startswith("synth-O-")
    assert PreparedSet.open(first, verify=True).size == 32
    last = json.loads(output.getvalue().splitlines()[-1])
    assert (last["event"], last["what"]) == ("progress", "rendering O")
    assert last["done"] == last["of"]
    again = resolve(LINE.replace("synth: ", "synth:"), tmp_path, say=reporter)
    assert again == first
    assert (first / "set.json").stat().st_mtime_ns == modified


def test_other_specification_is_another_set(tmp_path: Path) -> None:
    assert resolve(LINE, tmp_path) != resolve(LINE + " seed=1", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_two_processes_may_render_the_same_set(tmp_path: Path) -> None:
    with get_context("spawn").Pool(2) as pool:
        paths = pool.starmap(resolve, [(LINE, tmp_path)] * 2, chunksize=1)
    assert paths[0] == paths[1]
    assert len(PreparedSet.open(paths[0], verify=True)) > 0
    assert list(tmp_path.iterdir()) == [paths[0]]
