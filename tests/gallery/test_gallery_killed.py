"""A process that is killed at any line of a change leaves a gallery that its owner can open, changed or not."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fedvisage.errors import UserError
from fedvisage.gallery.migration import migrate
from fedvisage.gallery.search import Gallery

OLD = Path(__file__).parents[1] / "upgrade" / "from-0.1" / "gallery" / "door.gallery"
KEY, NEW, MODEL = bytes(range(32)), bytes(32), "sha256:" + "a" * 64
SOURCE = f"fedvisage{os.sep}gallery{os.sep}"


def opened(place: Path, key: bytes = KEY, counters: str = "counters") -> Gallery:
    return Gallery(place / "door.gallery", key, counters=place / counters)


def make(place: Path) -> None:
    with Gallery.create(place / "door.gallery", KEY, counters=place / "counters") as gallery:
        gallery.add_collection()
        for name in ("anna", "bob"):
            gallery.enrol("default", name, np.ones((1, 4), np.float32), MODEL)


def enrol(place: Path) -> None:
    with opened(place) as gallery:
        gallery.enrol("default", "carol", np.ones((1, 4), np.float32), MODEL)


def remove(place: Path) -> None:
    with opened(place) as gallery:
        gallery.remove("default", "anna")


def turn(place: Path) -> None:
    with opened(place) as gallery:
        gallery.turn_key(NEW, place / "new")


def killed_at(line: int, deed: Callable[[Path], None], place: Path) -> bool:
    """Do something in a child process that is killed at its n-th line in the gallery's code; return whether it was."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if SOURCE not in frame.f_code.co_filename:
            return None
        if event == "line" and (passed := passed + 1) == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    deed(place)
    os._exit(0)


def every_line(deed: Callable[[Path], None], template: Path, check: Callable[[Path], None], step: int = 1) -> int:
    """Do something again and again, killed at a later line each time, and check what was left; return the times."""
    for times, line in enumerate(range(1, 100_000, step)):
        place = template.with_name(f"killed-{line}")
        shutil.copytree(template, place)
        killed = killed_at(line, deed, place)
        check(place)
        shutil.rmtree(place)
        if not killed:
            return times
    raise AssertionError("never done")


@pytest.mark.parametrize(("deed", "after"), [(enrol, {"anna", "bob", "carol"}), (remove, {"bob"})])
def test_a_change_is_made_or_not(tmp_path: Path, deed: Callable[[Path], None], after: set[str]) -> None:
    template = tmp_path / "template"
    template.mkdir()
    make(template)
    ends = []

    def check(place: Path) -> None:
        with opened(place) as gallery:
            ends.append({one.name for one in gallery.people("default")})
            gallery.enrol("default", "dave", np.ones((1, 4), np.float32), MODEL)
        with opened(place) as gallery:
            assert {one.name for one in gallery.people("default")} == ends[-1] | {"dave"}

    assert every_line(deed, template, check, step=3) > 40
    assert {frozenset(one) for one in ends} == {frozenset({"anna", "bob"}), frozenset(after)}
    assert ends == sorted(ends, key=lambda one: one == after)


def test_a_key_is_turned_or_not(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    make(template)
    keys = []

    def check(place: Path) -> None:
        for key, counters in ((KEY, "counters"), (NEW, "new")):
            try:
                with opened(place, key, counters) as gallery:
                    assert len(gallery.people("default")) == 2
                    gallery.remove("default", "anna")
                keys.append(key)
                return
            except UserError:
                continue
        raise AssertionError("no key opens it")

    assert every_line(turn, template, check, step=3) > 40
    assert set(keys) == {KEY, NEW}
    assert keys == sorted(keys, key=lambda one: one == NEW)


def test_a_gallery_is_migrated_or_can_be(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    shutil.copy(OLD, template / "door.gallery")
    again = []

    def check(place: Path) -> None:
        try:
            with opened(place):
                again.append(False)
        except UserError as error:
            assert "gallery migrate" in str(error)  # noqa: PT017
            migrate(place / "door.gallery", KEY, place / "counters")
            again.append(True)
        with opened(place) as gallery:
            assert [one.name for one in gallery.people("default")] == ["anna", "bob", "carol"]
        assert (place / "door.gallery.v1").read_bytes() == OLD.read_bytes()

    assert every_line(lambda place: (migrate(place / "door.gallery", KEY, place / "counters"), None)[1], template,
                      check, step=11) > 40  # fmt: skip
    assert set(again) == {True, False}
