"""Kits do not grow with each job: what NVFlare leaves is deleted, but for the newest and for what still waits."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from tests.distributed.papers import copy_of
from tests.toy import make_set

from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.node import KEPT, prepare_server, prepare_site


def leave(place: Path, status: str | None, age: int) -> Path:
    path = place / str(uuid.uuid4())
    path.mkdir(parents=True)
    if status is not None:
        (path / "meta").write_text(json.dumps({"status": status}))
    os.utime(path, (10_000 - age, 10_000 - age))
    return path


@pytest.mark.parametrize("of", ["server", "sites/bank"])
def test_what_old_jobs_left_is_deleted_at_the_start(own_kits: Path, tmp_path: Path, of: str) -> None:
    place = copy_of(own_kits / of, tmp_path)
    folders = [leave(place, None, age) for age in range(KEPT + 3)]
    own = place / "not-a-job"
    own.mkdir()
    _prepare(place, of, tmp_path)
    assert [path.exists() for path in folders] == [True] * KEPT + [False] * 3
    assert own.is_dir()
    assert (place / "startup").is_dir()


def test_a_job_that_waits_is_not_deleted_and_one_half_written_is(own_kits: Path, tmp_path: Path) -> None:
    place = copy_of(own_kits / "server", tmp_path)
    for age in range(KEPT):
        leave(place / "jobs", "FINISHED:COMPLETED", age)
    lost = leave(place / "jobs", "RUNNING", 30)
    half = leave(place / "jobs", None, 31)
    waiting = leave(place / "jobs", "SUBMITTED", 32)
    _prepare(place, "server", tmp_path)
    assert (lost.exists(), half.exists(), waiting.exists()) == (False, False, True)
    assert len(list((place / "jobs").iterdir())) == KEPT + 1


def _prepare(place: Path, of: str, scratch: Path) -> None:
    if of == "server":
        prepare_server(open_kit(place, "server"))
    else:
        prepare_site(open_kit(place, "site"), str(make_set(scratch / "set", "bank", 1)))
