"""What the operator's end reads from NVFlare's answers; the shapes are those that NVFlare 2.9 gives."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import InternalError
from rich.console import Console
from tests.toy import recipe_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter
from fedvisage.nvflare.job import Job
from fedvisage.nvflare.operator import RunProgress, newest_job, retry_server_errors, sites_not_at_work

AT_WORK = {"client_name": "A", "app_name": "app", "job_id": "one", "status": "started"}
ELSEWHERE = {"client_name": "B", "app_name": "app", "job_id": "two", "status": "started"}
IDLE = {"client_name": "C", "status": "no_jobs"}
SILENT = {"client_name": "D", "status": "no_reply"}
CONFUSED = {"client_name": "E", "status": "error"}


def test_a_site_without_a_process_says_so_itself() -> None:
    """One that is silent may be at work: it is not a reason to begin a run again."""
    assert sites_not_at_work([AT_WORK, ELSEWHERE, IDLE, SILENT, CONFUSED], "one") == ["B", "C"]
    assert sites_not_at_work([AT_WORK, ELSEWHERE | {"client_name": "A"}], "one") == [], "a site can be at two jobs"


def test_only_the_newest_job_of_a_run_can_be_under_way() -> None:
    """Jobs whose server died are RUNNING for ever; a command that followed each would lose 20 s with each."""
    old: dict[str, Any] = {"job_id": "old", "status": "RUNNING", "submit_time": "2026-11-21T10:00:00+00:00"}
    new = old | {"job_id": "new", "submit_time": "2026-11-21T10:05:00+00:00"}
    assert newest_job([new, old]) == newest_job([old, new]) == new
    assert newest_job([]) is None


@pytest.mark.parametrize("patience", [600.0, -1.0])
def test_a_server_that_cannot_do_as_asked_is_asked_again_for_as_long_as_a_run_has(
    sets: Mapping[str, Path], patience: float
) -> None:
    """Its disk may be full for a moment: the audit log of what it is asked cannot be written."""
    reporter = Reporter(Console(file=io.StringIO()), quiet=True)
    course = RunProgress(Job("a-run", recipe_of(tree(sets))), reporter, patience=patience)
    trouble = InternalError("error: Exception Occurred: OSError: [Errno 28] No space left on device")
    if patience < 0:
        with pytest.raises(RunFailed, match="No space left"), retry_server_errors(course):
            raise trouble
    else:
        with retry_server_errors(course):
            raise trouble
        assert "No space left" in course.last_line
