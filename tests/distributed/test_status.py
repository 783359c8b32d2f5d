"""The status of a federation for programs."""

import pytest

from fedvisage.nvflare.status import (
    CertificateStatus,
    RunStatus,
    ServerRun,
    SiteStatus,
    Status,
    describe_run,
    prometheus,
)

STATUS = Status(
    (SiteStatus("bank", "2026-11-21T10:00:00+00:00", 3.5), SiteStatus("phone", "2026-11-21T09:59:00+00:00", 63.5)),
    (RunStatus("first-ab12", 4, 30, ("phone",), 1000, 2000),),
    (CertificateStatus("bank", "2026-12-01T10:00:00+00:00", 10.0),),
)


def test_prometheus_text_has_one_value_per_site_and_certificate_and_four_per_run() -> None:
    lines = list(prometheus(STATUS))
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values == {
        'fedvisage_site_seconds_since_seen{site="bank"}': "3.5",
        'fedvisage_site_seconds_since_seen{site="phone"}': "63.5",
        'fedvisage_certificate_days_left{member="bank"}': "10.0",
        'fedvisage_run_round{run="first-ab12"}': "4",
        'fedvisage_run_rounds{run="first-ab12"}': "30",
        'fedvisage_run_bytes_up{run="first-ab12"}': "1000",
        'fedvisage_run_bytes_down{run="first-ab12"}': "2000",
    }
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert typed == {name.partition("{")[0] for name in values}


def test_lost_run_has_no_figures() -> None:
    lost = Status((), (RunStatus("first-ab12", 0, 0, (), 0, 0, "lost"),))
    assert not [line for line in prometheus(lost) if not line.startswith("#")]


@pytest.mark.parametrize(
    ("status", "state", "alive"),
    [
        ("SUBMITTED", "waiting", "1"),
        ("DISPATCHED", "waiting", "1"),
        ("RUNNING", "running", "1"),
        ("RUNNING", "lost", ""),
        ("FINISHED:COMPLETED", "ended", "1"),
        ("FINISHED:ABORTED", "aborted", "1"),
        ("FINISHED:EXECUTION_EXCEPTION", "failed", "1"),
    ],
)
def test_listed_run_has_the_state_of_its_newest_job(status: str, state: str, alive: str) -> None:
    job = {
        "job_id": "1",
        "status": status,
        "submitter_name": "operator@example.org",
        "start_time": "2026-11-21 10:00:00.123456",
    }
    expected = ServerRun("first-ab12", state, "operator@example.org", "2026-11-21T10:00:00", "1")  # type: ignore[arg-type]
    assert describe_run("first-ab12", job, set(alive)) == expected
