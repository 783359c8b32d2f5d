"""What the operator's end reads from NVFlare's answers; the shapes are those that NVFlare 2.9 gives."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import ClientInfo, InternalError
from rich.console import Console
from tests.toy import recipe_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter
from fedvisage.nvflare.job import Job
from fedvisage.nvflare.operator import (
    RECENT,
    RunProgress,
    newest_job,
    recent_sites,
    retry_server_errors,
    sites_not_at_work,
)
from fedvisage.nvflare.status import query_status

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


class Listing:
    """NVFlare's list of clients, with the times of their last contact on the server's clock."""

    def __init__(self, seen: Mapping[str, float]) -> None:
        self.seen = seen

    def get_connected_client_list(self) -> list[ClientInfo]:
        return [ClientInfo(name, last) for name, last in self.seen.items()]

    def get_system_info(self) -> Any:
        return SimpleNamespace(job_info=[])

    def list_jobs(self, detailed: bool) -> list[Any]:
        return []


@pytest.mark.parametrize("clock", [0.0, -3600.0, 86_400.0])
def test_a_site_without_recent_contact_is_stale_by_the_servers_clock(clock: float) -> None:
    now = time.time() + clock
    session: Any = Listing({"A": now - 1, "B": now - RECENT - 1, "C": now - 500})
    assert recent_sites(session, clock) == {"A"}
    stale = {site.name: site.stale for site in query_status(session, clock=clock).sites}
    assert stale == {"A": False, "B": True, "C": True}


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
