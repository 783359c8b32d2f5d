"""The status of a federation for programs."""

from datetime import UTC, datetime

import pytest
from tests.prometheus_text import read_metrics

from fedvisage.cli.federation import print_tables
from fedvisage.nvflare.status import (
    CertificateStatus,
    RunStatus,
    ServerRun,
    SiteStatus,
    Status,
    describe_run,
    metrics_of,
)

STATUS = Status(
    (SiteStatus("bank", "2026-11-21T10:00:00+00:00", 3.5), SiteStatus("phone", "2026-11-21T09:59:00+00:00", 63.5)),
    (RunStatus("first-ab12", 4, 30, ("phone",), 1000, 2000),),
    (CertificateStatus("bank", "2026-12-01T10:00:00+00:00", 10.0),),
)


def test_metrics_have_one_value_per_site_and_certificate_and_four_per_run() -> None:
    moments = [datetime(2026, 11, 21, 10, tzinfo=UTC), datetime(2026, 11, 21, 9, 59, tzinfo=UTC)]
    seen, ends = "fedvisage_site_last_contact_timestamp_seconds", "fedvisage_certificate_end_timestamp_seconds"
    assert read_metrics(metrics_of(STATUS)) == {
        (seen, (("site", "bank"),)): moments[0].timestamp(),
        (seen, (("site", "phone"),)): moments[1].timestamp(),
        (ends, (("member", "bank"),)): moments[0].timestamp() + 10 * 86_400,
        ("fedvisage_run_round", (("run", "first-ab12"),)): 4,
        ("fedvisage_run_rounds", (("run", "first-ab12"),)): 30,
        ("fedvisage_run_bytes_up", (("run", "first-ab12"),)): 1000,
        ("fedvisage_run_bytes_down", (("run", "first-ab12"),)): 2000,
    }


def test_text_of_a_server_is_listed_without_markup_or_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    job = {"job_id": "1", "status": "SUBMITTED", "submitter_name": "[/b]\x1b[2J", "start_time": "\x1b[2J"}
    described = describe_run("[/b]\x1b[2J\nfirst", job, set())
    assert (described.run, described.submitter, described.started) == (
        "[/b]\N{REPLACEMENT CHARACTER}[2J first",
        "[/b]\N{REPLACEMENT CHARACTER}[2J",
        "\N{REPLACEMENT CHARACTER}[2J",
    )
    site = SiteStatus("[/b]", "", 1.0)
    print_tables(Status((site,), (RunStatus(described.run, 1, 2, ("[/b]",), 0, 0),)))
    assert capsys.readouterr().out.count("[/b]") == 3


def test_lost_run_has_no_figures() -> None:
    lost = Status((), (RunStatus("first-ab12", 0, 0, (), 0, 0, "lost"),))
    assert read_metrics(metrics_of(lost)) == {}


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
