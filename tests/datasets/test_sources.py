"""Data entries: directories are taken as they are, `synth:` lines are rendered once."""

from multiprocessing import get_context
from pathlib import Path

import pytest

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import in_steps, resolve
from fedvisage.errors import UserError

LINE = "synth: O subjects=2 videos=1 frames=1 size=32"


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve(str(tmp_path / "O"), tmp_path / "cache") == tmp_path / "O"
    assert list(tmp_path.iterdir()) == []


def test_a_synth_line_is_rendered_once_and_found_again(tmp_path: Path) -> None:
    said: list[str] = []
    first = resolve(LINE, tmp_path, say=said.append)
    written = (first / "set.json").stat().st_mtime_ns
    assert first.parent == tmp_path
    assert first.name.startswith("synth-O-")
    assert PreparedSet.open(first, verify=True).size == 32
    assert said[-1].startswith("rendering O: ")
    again = resolve(LINE.replace("synth: ", "synth:"), tmp_path, say=said.append)
    assert again == first
    assert (first / "set.json").stat().st_mtime_ns == written


def test_another_specification_is_another_set(tmp_path: Path) -> None:
    assert resolve(LINE, tmp_path) != resolve(LINE + " seed=1", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_faulty_synth_line_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        resolve("synth: O colour=blue", tmp_path)
    with pytest.raises(UserError):
        resolve("synth: NoSuchDomain", tmp_path)


@pytest.mark.slow
def test_two_processes_that_render_the_same_set_both_find_it_whole(tmp_path: Path) -> None:
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(resolve, [(LINE, tmp_path)] * 2, chunksize=1)
    assert found[0] == found[1]
    assert len(PreparedSet.open(found[0], verify=True)) > 0
    assert list(tmp_path.iterdir()) == [found[0]]


def test_progress_says_how_fast_it_goes_and_how_long_it_will_take() -> None:
    said: list[str] = []
    now = [0.0]
    progress = in_steps("importing", said.append, lambda: now[0])
    for done in range(1, 1001):  # ten a second
        now[0] = done / 10
        progress(done, 1000)
    assert said[0] == "importing: 1 of 1000"
    assert said[1] == "importing: 100 of 1000, 10.0 a second, 2 min left"
    assert "importing: 400 of 1000, 10.0 a second, 60 s left" in said
    assert said[-1] == "importing: 1000 of 1000"
    assert len(said) == 11


def test_slow_work_is_heard_of_every_half_minute_and_what_was_done_before_does_not_count_as_speed() -> None:
    said: list[str] = []
    now = [0.0]
    progress = in_steps("importing", said.append, lambda: now[0])
    for done in range(501, 504):  # an earlier attempt did 500; now one in 20 seconds
        now[0] += 20
        progress(done, 10_000)
    assert said == ["importing: 501 of 10000", "importing: 503 of 10000, 3.0 a minute, 53 h left"]
