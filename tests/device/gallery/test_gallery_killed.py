"""A process killed at any line of a change leaves a gallery that opens, with or without the change."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.device.gallery.files import KEY, MODEL, open_gallery

from fedvisage.base.errors import UserError
from fedvisage.device.gallery.migration import migrate
from fedvisage.device.gallery.search import Gallery

OLD = Path(__file__).parents[2] / "upgrade" / "from-0.1" / "gallery" / "door.gallery"
NEW = bytes(32)
NAMES = ("authenticated", "counter", "file", "migration", "store")
WRITING = (*(f"fedvisage/device/gallery/{name}.py" for name in NAMES), "fedvisage/base/files.py")


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A folder with a gallery of two people."""
    place = tmp_path / "template"
    place.mkdir()
    with Gallery.create(place / "door.gallery", KEY, counters=place / "counters") as gallery:
        gallery.add_collection()
        for name in ("anna", "bob"):
            gallery.enrol("default", name, np.ones((1, 4), np.float32), MODEL)
    return place


def enrol(place: Path) -> None:
    with open_gallery(place / "door.gallery") as gallery:
        gallery.enrol("default", "carol", np.ones((1, 4), np.float32), MODEL)


def remove(place: Path) -> None:
    with open_gallery(place / "door.gallery") as gallery:
        gallery.remove("default", "anna")


def rotate_key(place: Path) -> None:
    with open_gallery(place / "door.gallery") as gallery:
        gallery.turn_key(NEW, place / "new")


def migrate_gallery(place: Path) -> None:
    migrate(place / "door.gallery", KEY, place / "counters")


def run_traced(change: Callable[[Path], None], place: Path, on_line: Callable[[FrameType], None]) -> None:
    """Make a change, and call a function before each line of the writing code."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(WRITING):
            return None
        if event == "line":
            on_line(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        change(place)
    finally:
        sys.settrace(before)


def lines_of(change: Callable[[Path], None], place: Path) -> list[int]:
    """Make a change, and return the number of the last pass of each line of the writing code."""
    passes, last = count(1), dict[tuple[str, int], int]()

    def note(frame: FrameType) -> None:
        last[frame.f_code.co_filename, frame.f_lineno] = next(passes)

    run_traced(change, place, note)
    return sorted(last.values())


def kill_at(line: int, change: Callable[[Path], None], place: Path) -> None:
    """Make a change in a child process that is killed before its n-th line."""
    child = os.fork()
    if child:
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        return
    passes = count(1)

    def kill(frame: FrameType) -> None:
        if next(passes) == line:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        run_traced(change, place, kill)
    finally:
        os._exit(0)


def kill_at_every_line(change: Callable[[Path], None], template: Path, check: Callable[[Path], None]) -> None:
    """Make a change repeatedly, killed at each line in turn and finally completed; check each resulting gallery."""
    whole = template.with_name("whole")
    shutil.copytree(template, whole)
    lines = lines_of(change, whole)
    assert len(lines) > 60
    for line in lines:
        place = template.with_name(f"killed-{line}")
        shutil.copytree(template, place)
        kill_at(line, change, place)
        check(place)
        shutil.rmtree(place)
    check(whole)


@pytest.mark.long
@pytest.mark.parametrize(("change", "after"), [(enrol, {"anna", "bob", "carol"}), (remove, {"bob"})])
def test_killed_change_is_atomic(template: Path, change: Callable[[Path], None], after: set[str]) -> None:
    ends = []

    def check(place: Path) -> None:
        with open_gallery(place / "door.gallery") as gallery:
            ends.append({names.name for names in gallery.people("default")})
            gallery.enrol("default", "dave", np.ones((1, 4), np.float32), MODEL)
        with open_gallery(place / "door.gallery") as gallery:
            assert {names.name for names in gallery.people("default")} == ends[-1] | {"dave"}

    kill_at_every_line(change, template, check)
    assert {frozenset(names) for names in ends} == {frozenset({"anna", "bob"}), frozenset(after)}
    assert ends == sorted(ends, key=lambda names: names == after)


@pytest.mark.slow
def test_killed_key_rotation_is_atomic(template: Path) -> None:
    keys = []

    def check(place: Path) -> None:
        for key, counters in ((KEY, "counters"), (NEW, "new")):
            try:
                with open_gallery(place / "door.gallery", key, counters) as gallery:
                    assert len(gallery.people("default")) == 2
                    gallery.remove("default", "anna")
                keys.append(key)
                return
            except UserError:
                continue
        raise AssertionError("no key opens it")

    kill_at_every_line(rotate_key, template, check)
    assert set(keys) == {KEY, NEW}
    assert keys == sorted(keys, key=lambda key: key == NEW)


@pytest.mark.slow
def test_killed_migration_can_be_repeated(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    shutil.copy(OLD, template / "door.gallery")
    again = []

    def check(place: Path) -> None:
        try:
            with open_gallery(place / "door.gallery"):
                again.append(False)
        except UserError as error:
            assert "gallery migrate" in str(error)  # noqa: PT017
            migrate_gallery(place)
            again.append(True)
        with open_gallery(place / "door.gallery") as gallery:
            assert [person.name for person in gallery.people("default")] == ["anna", "bob", "carol"]
        assert (place / "door.gallery.v1").read_bytes() == OLD.read_bytes()

    kill_at_every_line(migrate_gallery, template, check)
    assert set(again) == {True, False}
