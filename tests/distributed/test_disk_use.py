"""Kits do not grow with each job: folders of old jobs are deleted, but not the newest and waiting ones."""

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nvflare.fuel.sec.audit import Auditor
from tests.distributed.federations import copy_kit
from tests.toy import make_set

from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.node import rotate_audit_log
from fedvisage.nvflare.preparation import KEPT, prepare_server, prepare_site


def make_job_folder(place: Path, status: str | None, age: int) -> Path:
    path = place / str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{place} {status} {age}"))
    path.mkdir(parents=True)
    if status is not None:
        (path / "meta").write_text(json.dumps({"status": status}))
    os.utime(path, (10_000 - age, 10_000 - age))
    return path


@pytest.mark.parametrize("of", ["server", "sites/bank"])
def test_folders_of_old_jobs_are_deleted_at_the_start(own_kits: Path, tmp_path: Path, of: str) -> None:
    place = copy_kit(own_kits / of, tmp_path)
    folders = [make_job_folder(place, None, age) for age in range(KEPT + 3)]
    own = place / "not-a-job"
    own.mkdir()
    _prepare(place, of, tmp_path)
    assert [path.exists() for path in folders] == [True] * KEPT + [False] * 3
    assert own.is_dir()
    assert (place / "startup").is_dir()


def test_waiting_jobs_stay_and_incomplete_jobs_are_deleted(own_kits: Path, tmp_path: Path) -> None:
    place = copy_kit(own_kits / "server", tmp_path)
    for age in range(KEPT):
        make_job_folder(place / "jobs", "FINISHED:COMPLETED", age)
    lost = make_job_folder(place / "jobs", "RUNNING", 30)
    half = make_job_folder(place / "jobs", None, 31)
    waiting = make_job_folder(place / "jobs", "SUBMITTED", 32)
    _prepare(place, "server", tmp_path)
    assert (lost.exists(), half.exists(), waiting.exists()) == (False, False, True)
    assert len(list((place / "jobs").iterdir())) == KEPT + 1


def _prepare(place: Path, of: str, scratch: Path) -> None:
    if of == "server":
        prepare_server(open_kit(place, "server"))
    else:
        prepare_site(open_kit(place, "site"), str(make_set(scratch / "set", "bank", 1)))


def test_audit_log_is_rotated_without_losing_lines(tmp_path: Path) -> None:
    """NVFlare writes a line per request from many threads, and the log has no other limit."""
    auditor = Auditor(str(tmp_path / "audit.log"))

    def write(user: int) -> None:
        for number in range(50):
            auditor.add_event(f"operator-{user}", f"command-{number}")

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, user) for user in range(4)]
        while not all(task.done() for task in writing):
            rotate_audit_log(auditor, largest=1000, kept=100)
    rotate_audit_log(auditor, largest=1, kept=100)  # the threads may have ended before the first rotation
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == 200
    assert (tmp_path / "audit.log.1").exists()
    auditor.close()


def test_rotation_keeps_a_number_of_older_files(tmp_path: Path) -> None:
    auditor = Auditor(str(tmp_path / "audit.log"))
    for number in range(6):
        auditor.add_event("operator", f"command-{number}")
        rotate_audit_log(auditor, largest=1, kept=3)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(kept) == {"audit.log", "audit.log.1", "audit.log.2", "audit.log.3"}
    assert kept["audit.log"] == ""
    assert all(f"command-{6 - age}]" in kept[f"audit.log.{age}"] for age in (1, 2, 3))
    auditor.close()
