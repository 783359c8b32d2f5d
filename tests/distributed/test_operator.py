"""The operator's side of a run, with answers in the form of NVFlare 2.9."""

import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import ClientInfo, InternalError, JobNotRunning, NoConnection
from tests.distributed.federations import LineReporter
from tests.refusals import check_keywords, failed
from tests.toy import Sets, recipe_of, tree
from typer.testing import CliRunner

from fedvisage.base.errors import RunFailed
from fedvisage.base.progress import Reporter
from fedvisage.cli import app
from fedvisage.nvflare import operator
from fedvisage.nvflare.greeting import VERSIONS, Admitted
from fedvisage.nvflare.job import Job
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.operator import (
    RECENT,
    RunProgress,
    end_if_stopped,
    follow,
    newest_job,
    read_record,
    recent_sites,
    report,
    retry_server_errors,
    sites_not_at_work,
    wait_for_sites,
)
from fedvisage.nvflare.outcome import (
    FILES,
    JobOutcome,
    dead_sites,
    fetch_result,
    note_death,
    read_trained,
    write_result,
    write_trained,
)
from fedvisage.nvflare.status import query_status
from fedvisage.runs.directory import NAME
from fedvisage.tasks import saved_model
from fedvisage.tasks.task import TrainingResult

AT_WORK = {"client_name": "A", "app_name": "app", "job_id": "one", "status": "started"}
ELSEWHERE = {"client_name": "B", "app_name": "app", "job_id": "two", "status": "started"}
IDLE = {"client_name": "C", "status": "no_jobs"}
SILENT = {"client_name": "D", "status": "no_reply"}
CONFUSED = {"client_name": "E", "status": "error"}


def test_silent_site_does_not_count_as_idle() -> None:
    """A silent site may be at work."""
    assert sites_not_at_work([AT_WORK, ELSEWHERE, IDLE, SILENT, CONFUSED], "one") == ["B", "C"]
    assert sites_not_at_work([AT_WORK, ELSEWHERE | {"client_name": "A"}], "one") == [], "a site can be at two jobs"


def test_newest_job_of_a_run_counts() -> None:
    """Jobs whose server died keep the status RUNNING."""
    old: dict[str, Any] = {"job_id": "old", "status": "RUNNING", "submit_time": "2026-11-21T10:00:00+00:00"}
    new = old | {"job_id": "new", "submit_time": "2026-11-21T10:05:00+00:00"}
    assert newest_job([new, old]) == newest_job([old, new]) == new
    assert newest_job([]) is None


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "LOOK", 0.0)


def course_of(sets: Sets, **values: Any) -> RunProgress:
    return RunProgress(Job("a-run", recipe_of(tree(sets, federation__quorum=2))), LineReporter(), **values)


def lines_of(course: RunProgress) -> list[str]:
    """Return the lines that the operator sees."""
    assert isinstance(course.reporter, LineReporter)
    return course.reporter.lines


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
def test_site_without_recent_contact_is_stale_by_the_servers_clock(clock: float) -> None:
    now = time.time() + clock
    session: Any = Listing({"A": now - 1, "B": now - RECENT - 1, "C": now - 500})
    assert recent_sites(session, clock) == {"A"}
    stale = {site.name: site.stale for site in query_status(session, admitted=Admitted(clock)).sites}
    assert stale == {"A": False, "B": True, "C": True}


@pytest.mark.long
@pytest.mark.parametrize("patience", [600.0, -1.0])
def test_internal_server_error_is_retried_within_the_patience_of_the_run(sets: Sets, patience: float) -> None:
    """A full disk, where NVFlare cannot write its audit log, may be temporary."""
    course = course_of(sets, patience=patience)
    trouble = InternalError("error: Exception Occurred: OSError: [Errno 28] No space left on device")
    if patience < 0:
        with pytest.raises(RunFailed, match="No space left"), retry_server_errors(course):
            raise trouble
    else:
        with retry_server_errors(course):
            raise trouble
        assert "No space left" in course.last_line


class Ending(Listing):
    """A job with a sequence of statuses, with or without a process at the server."""

    def __init__(self, *statuses: str, process: str = "") -> None:
        super().__init__({})
        self.statuses, self.process = list(statuses), process
        self.aborted: list[str] = []

    def get_system_info(self) -> Any:
        return SimpleNamespace(job_info=[SimpleNamespace(job_id=self.process)] if self.process else [])

    def get_client_job_status(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"client_name": name, "status": "no_jobs"} for name in names]

    def abort_job(self, number: str) -> None:
        self.aborted.append(number)

    def get_job_meta(self, number: str) -> dict[str, Any]:
        return {"status": self.statuses.pop(0)}

    def do_app_command(self, number: str, name: str, data: object) -> object:
        raise JobNotRunning(number)


@pytest.mark.parametrize(
    ("statuses", "jobs", "end"),
    [
        (["RUNNING"] * 50 + ["FINISHED:COMPLETED"], {"one"}, "FINISHED:COMPLETED"),  # it saves a large result
        (["RUNNING", "FINISHED:COMPLETED", "FINISHED:COMPLETED"], set(), "FINISHED:COMPLETED"),  # it ended just now
        (["RUNNING", "RUNNING"], {"another"}, "lost"),  # the server was started again
    ],
)
def test_job_is_lost_only_if_its_server_does_not_know_it(
    sets: Sets, statuses: list[str], jobs: set[str], end: str
) -> None:
    session: Any = Ending(*statuses)
    assert follow(session, course_of(sets), "one", lambda: jobs) == end


def test_late_result_is_awaited_without_aborting_its_job(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's process at the server has ended, and its sites are idle, as when a site has yet to report its end.

    The command has no patience left, and the time for a start is over, as after ten minutes of waiting.
    """
    monkeypatch.setattr("fedvisage.nvflare.operator.STARTING", -1.0)
    course = course_of(sets, patience=-1.0)
    lines = lines_of(course)
    session: Any = Ending(*["RUNNING"] * 50, "FINISHED:COMPLETED")
    meta, deployed = session.get_job_meta, [f"{name}: OK" for name in ("server", *"ABC")]
    monkeypatch.setattr(session, "get_job_meta", lambda number: {**meta(number), "job_deploy_detail": deployed})
    assert follow(session, course, "one", lambda: {"one"}) == "FINISHED:COMPLETED"
    assert session.aborted == []
    assert course.deaths == {}
    assert lines == ["the run has ended at the server; waiting for its result"]


def test_unanswered_run_is_aborted_after_its_patience(sets: Sets) -> None:
    session: Any = Ending("SUBMITTED", process="one")
    with failed(RunFailed, "submitted", "fedvisage status", "--patience"):
        follow(session, course_of(sets, patience=-1.0), "one", lambda: {"one"})
    assert session.aborted == ["one"]


class Federated:
    """NVFlare's end of a federation: jobs with statuses, and results that can be downloaded after some failures."""

    def __init__(self, jobs: Mapping[str, str], results: Mapping[str, Path], failures: int = 0) -> None:
        self.jobs, self.results, self.failures = dict(jobs), results, failures
        self.names = dict[str, str]()
        """The names of jobs that begin with the run's."""
        self.submitted = 0

    def list_jobs(self, detailed: bool, name_prefix: str) -> list[dict[str, Any]]:
        jobs = [{"job_id": job, "status": status, "submit_time": job} for job, status in self.jobs.items()]
        return [job | {"name": self.names.get(str(job["job_id"]), name_prefix)} for job in jobs]

    def get_job_meta(self, number: str) -> dict[str, Any]:
        return {"status": self.jobs[number]}

    def get_connected_client_list(self) -> list[ClientInfo]:
        return [ClientInfo(name, time.time()) for name in "ABC"]

    def download_job_result(self, number: str, place: str) -> str:
        if self.failures:
            self.failures -= 1
            raise NoConnection("the server is cut off")
        return str(shutil.copytree(self.results[number], Path(place) / number))

    def submit_job(self, directory: str) -> str:
        self.submitted += 1
        self.jobs[f"new {self.submitted}"] = "FINISHED:COMPLETED"
        return f"new {self.submitted}"

    def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def results(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The results of a finished, a failed and an aborted job, as a server writes them."""
    run, results = tmp_path_factory.mktemp("results") / "run", {}
    run.mkdir()
    for name in FILES:
        (run / name).write_text(name)
    for how in ("finished", "failed"):
        results[how] = run.parent / how
        write_result(JobOutcome(how, "", "why"), run, results[how] / "fedvisage")
    results["aborted"] = run.parent / "aborted"
    note_death(results["aborted"] / "fedvisage", "B")
    return results


def run_until_finished(
    session: Federated, course: RunProgress, kits: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Run with NVFlare's session replaced, and return the lines that the operator sees."""
    monkeypatch.setattr(operator, "new_secure_session", lambda *_, **__: session)
    monkeypatch.setattr(operator, "wait_for_admission", lambda *_, **__: Admitted())
    operator._run_until_finished(course, open_kit(kits / "operator", "operator"), out, 1e9)
    return lines_of(course)


def test_interrupted_download_is_repeated_without_another_submission(
    results: dict[str, Path], own_kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Federated({}, {"new 1": results["finished"]}, failures=2)
    run_until_finished(session, course_of(sets), own_kits, tmp_path, monkeypatch)
    assert session.submitted == 1
    assert (tmp_path / FILES[0]).read_text() == FILES[0]


def test_job_whose_name_only_begins_with_the_runs_is_not_fetched(
    results: dict[str, Path], own_kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = {"earlier": results["finished"], "new 1": results["finished"]}
    session = Federated({"earlier": "FINISHED:COMPLETED"}, finished)
    session.names = {"earlier": "a-run-of-another-operator"}
    run_until_finished(session, course_of(sets), own_kits, tmp_path, monkeypatch)
    assert session.submitted == 1


def test_result_of_another_recipe_under_the_runs_name_is_refused(
    pad_run: Path, own_kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator can submit any recipe under a name that ``fedvisage runs`` shows."""
    result = shutil.copytree(pad_run, tmp_path / "result")
    write_trained(result, TrainingResult(saved_model.load(result), 1, {}))
    write_result(JobOutcome("finished"), result, tmp_path / "stored" / "fedvisage")
    session, out = Federated({"foreign": "FINISHED:COMPLETED"}, {"foreign": tmp_path / "stored"}), tmp_path / "run"
    out.mkdir()
    monkeypatch.setattr(operator, "new_secure_session", lambda *_, **__: session)
    monkeypatch.setattr(operator, "wait_for_admission", lambda *_, **__: Admitted())
    kit, recipe = open_kit(own_kits / "operator", "operator"), recipe_of(tree(sets, training__rounds=2))
    with failed(RunFailed, "another recipe", "fedvisage runs", "--out"):
        operator.train_in_federation(recipe, out, LineReporter(), kit, wait=1e9)
    assert [path.name for path in out.iterdir()] == [NAME]


DAMAGES: list[tuple[str, str | None]] = [
    ("outcome.json", "{}"),
    ("outcome.json", "[1]"),
    ("died.json", '{"sites": 1}'),
    ("rounds.jsonl", None),
    ("trained.json", "{}"),
    ("trained.json", '{"rounds": "many", "heldout": {}, "personal": {}}'),
    ("trained.json", '{"rounds": 1, "heldout": {}, "personal": {"generic": {"A": [1]}}}'),
]


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_damaged_result_of_a_server_fails_in_one_line(
    name: str, content: str | None, pad_run: Path, tmp_path: Path
) -> None:
    result, place, out = shutil.copytree(pad_run, tmp_path / "result"), tmp_path / "job" / "fedvisage", tmp_path / "run"
    write_trained(result, TrainingResult(saved_model.load(result), 1, {}))
    write_result(JobOutcome("finished"), result, place)
    out.mkdir()
    if content is None:
        (place / name).unlink()
    else:
        (place / name).write_text(content)
    with failed(RunFailed, name, "server"):
        dead_sites(tmp_path / "job")
        fetch_result(tmp_path / "job", out)
        read_trained(out)


@pytest.mark.parametrize(("how", "submitted"), [("finished", 0), ("failed", 1), ("aborted", 1)])
def test_resumed_command_fetches_a_finished_run_and_submits_others(
    how: str,
    submitted: int,
    results: dict[str, Path],
    own_kits: Path,
    sets: Sets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Federated({"earlier": "FINISHED:COMPLETED"}, {"earlier": results[how], "new 1": results["finished"]})
    course = course_of(sets)
    run_until_finished(session, course, own_kits, tmp_path, monkeypatch)
    assert session.submitted == submitted
    assert (tmp_path / FILES[0]).read_text() == FILES[0]
    assert course.deaths == {}, "deaths in an earlier job do not count"


def test_end_of_a_job_is_explained_without_nvflares_terms(
    results: dict[str, Path], own_kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B's process dies in the first job; the second one is aborted for another reason."""
    (tmp_path / "nothing").mkdir()

    class Aborting(Federated):
        def submit_job(self, directory: str) -> str:
            number = super().submit_job(directory)
            if self.submitted < 3:
                self.jobs[number] = "FINISHED:ABORTED"
            return number

    results_by_job = {"new 1": results["aborted"], "new 2": tmp_path / "nothing", "new 3": results["finished"]}
    session = Aborting({}, results_by_job)
    lines = run_until_finished(session, course_of(sets), own_kits, tmp_path, monkeypatch)
    first, second = (line for line in lines if "submitting the run again" in line)
    assert "the process of B ended" in first
    assert "before its last round" in second
    assert not any("FINISHED" in line for line in lines)


def test_run_reports_a_revoked_site_and_does_not_wait_for_it(sets: Sets) -> None:
    course, now = course_of(sets), time.time()
    lines = lines_of(course)
    session: Any = Listing({"A": now, "B": now})
    revoked = Admitted(revoked={"C": "2026-11-27", "Z": "2026-11-27"})
    assert wait_for_sites(session, course, 1e9, lambda: course.enter(revoked)) == ["A", "B"]
    assert course.expected == {"A", "B"}
    course.enter(revoked)
    assert lines == ["C was revoked on 2026-11-27; `provision --renew C` readmits it", "starting without C"]


def test_run_without_a_quorum_waits_for_a_renewed_certificate(sets: Sets) -> None:
    course = course_of(sets)
    lines = lines_of(course)
    course.enter(Admitted(revoked={"B": "2026-11-27", "C": "2026-11-27"}))

    class Returning(Listing):
        def get_connected_client_list(self) -> list[ClientInfo]:
            clients = super().get_connected_client_list()
            self.seen = {**self.seen, "C": time.time()}
            return clients

    assert wait_for_sites(Returning({"A": time.time()}), course, 1e9) == ["A", "C"]
    assert lines[2:] == ["waiting for B, C to connect with a renewed certificate", "starting without B"]
    session: Any = Listing({"A": time.time()})
    with failed(RunFailed, "B (revoked)", "C (revoked)", "quorum"):
        wait_for_sites(session, course, -1.0)


def test_connected_sites_that_the_recipe_does_not_name_are_listed(sets: Sets) -> None:
    course = course_of(sets)

    class Misspelt(Listing):
        def get_connected_client_list(self) -> list[ClientInfo]:
            clients = super().get_connected_client_list()
            self.seen = dict.fromkeys("ABC", time.time())
            return clients

    session: Any = Misspelt(dict.fromkeys("Ab", time.time()))
    assert wait_for_sites(session, course, 1e9) == ["A", "B", "C"]
    assert lines_of(course) == ["waiting for B, C to connect; connected, and not in the recipe: b"]


def test_site_revoked_during_a_run_is_reported_when_a_round_lacks_it(sets: Sets) -> None:
    course = course_of(sets)
    lines = lines_of(course)
    row = {"round": 1, "asked": list("ABC"), "replied": list("AB"), "failed": {"C": "left"}, "loss": {}, "seconds": 1.0}

    class Running(Ending):
        def do_app_command(self, number: str, name: str, data: Any) -> object:
            return {"of": 3, "rounds": [row] if data["after"] < 1 else []}

    def jobs() -> set[str]:
        course.enter(Admitted(revoked={"C": "2026-11-27"}))
        return {"one"}

    session: Any = Running("RUNNING", "RUNNING", "FINISHED:COMPLETED", process="one")
    follow(session, course, "one", jobs)
    assert [line for line in lines if "revoked on 2026-11-27" in line] == [
        "C was revoked on 2026-11-27; `provision --renew C` readmits it"
    ]


class Joining(Listing):
    """A list of clients that grows by one site per query."""

    def get_connected_client_list(self) -> list[ClientInfo]:
        self.seen = {**self.seen, "ABC"[len(self.seen)]: time.time()} if len(self.seen) < 3 else self.seen
        return super().get_connected_client_list()


def test_restarted_run_does_not_wait_for_a_site_that_was_missing_before(sets: Sets, tmp_path: Path) -> None:
    session: Any = Joining({})
    assert wait_for_sites(session, course_of(sets), 1e9) == ["A", "B", "C"]
    session = Joining({})
    course = course_of(sets, record=tmp_path / NAME)
    course.note_missing(["C"])
    assert wait_for_sites(session, course, 1e9) == ["A", "B"], "a quorum, and only C is missing"
    assert read_record(tmp_path) == ("a-run", ("C",)), "--resume knows it as well"
    assert wait_for_sites(session, course, 1e9) == ["A", "B", "C"]
    assert read_record(tmp_path) == ("a-run", ()), "C is back"
    assert course.expected == {"A", "B", "C"}


def test_other_versions_of_a_site_that_connects_during_the_wait_are_named_before_the_run(sets: Sets) -> None:
    session: Any = Joining({})
    course = course_of(sets)

    def refresh() -> None:
        course.enter(Admitted(versions={name: "fedvisage 0.0" if name == "C" else VERSIONS for name in session.seen}))

    assert wait_for_sites(session, course, 1e9, refresh) == ["A", "B", "C"]
    assert [line for line in lines_of(course) if line.startswith("C runs fedvisage 0.0, this machine")]


def test_site_missing_after_the_wait_is_recorded_as_missing(sets: Sets) -> None:
    now = time.time()
    session: Any = Listing({"A": now, "B": now})
    course = course_of(sets)
    assert wait_for_sites(session, course, -1.0) == ["A", "B"]
    assert course.missing == ("C",)
    session = Listing({"A": now})
    with failed(RunFailed, "quorum", "B, C"):
        wait_for_sites(session, course, -1.0)


def test_waiting_lines_omit_sites_that_the_run_starts_without(sets: Sets) -> None:
    lines, now = list[str](), time.time()
    for missing in ((), ("C",)):
        course, session = (
            course_of(sets, missing=missing),
            Ending("SUBMITTED", "RUNNING", "RUNNING", "FINISHED:ABORTED", process="one"),
        )
        session.seen = {"A": now, "B": now}
        follow(session, course, "one", lambda: {"one"})
        lines += lines_of(course)
    assert all(re.search(r"\bC\b", line) for line in lines[:2]), lines
    assert len(lines) == 4
    assert not any(re.search(r"\bC\b", line) for line in lines[2:]), lines


class Training(Listing):
    """A job whose program answers, without a new round."""

    def do_app_command(self, number: str, name: str, data: object) -> object:
        return {"of": 3, "rounds": []}


@pytest.mark.parametrize(("age", "named"), [(RECENT + 1, True), (0.0, False)])
def test_stale_site_is_named_once_per_round_while_the_round_waits_for_it(sets: Sets, age: float, named: bool) -> None:
    course = course_of(sets, answering="one", quiet=(time.monotonic(), 60.0))
    session: Any = Training({"A": time.time(), "B": time.time(), "C": time.time() - age})
    for _ in range(2):
        course.checked = 0.0
        report(session, course, "one")
    assert lines_of(course) == ["round 1 of 3 waits for C (not connected, or silent for 20 s)"][:named]


def test_long_round_is_reported_at_growing_intervals(sets: Sets) -> None:
    began = time.monotonic() - 100
    course = course_of(sets, answering="one", quiet=(began, 60.0))
    session: Any = Training(dict.fromkeys("ABC", time.time()))
    for _ in range(2):
        report(session, course, "one")
    (line,) = lines_of(course)
    assert line.startswith("round 1 of 3 has been running")
    assert course.quiet == (began, 120.0)


def test_stopped_job_ends_its_command_but_not_the_command_that_resumes_it(sets: Sets) -> None:
    follower, resumer = course_of(sets), course_of(sets)
    follower.enter(Admitted())
    for course in (follower, resumer):
        course.enter(Admitted(stopped={"one": "anna"}))
    with failed(RunFailed, "anna", "--resume"):
        end_if_stopped(follower, "one")
    assert resumer.over == {"one"}, "it submits the run again"
    assert follower.over == set()


def test_interrupted_command_explains_that_a_submitted_run_continues(
    own_kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes with the first line, which reports that the server cannot be reached."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "say", interrupt)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(tree(sets)))
    words = ["run", recipe, "--on", "nvflare", "--kit", own_kits / "operator", "--out", tmp_path / "run"]
    error = CliRunner().invoke(app, list(map(str, words))).exception
    assert isinstance(error, RunFailed)
    check_keywords(str(error), ("interrupted", "continues at the server", "--resume", "fedvisage stop"))
