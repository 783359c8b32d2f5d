"""The operator's commands with a running federation: status, stop, and runs that cannot continue."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.distributed.federations import WAIT, LineReporter, run_through
from tests.refusals import failed, refused
from tests.toy import SITES, Sets, recipe_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare import operator
from fedvisage.nvflare.job import write_job
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.node import end
from fedvisage.nvflare.operator import connect_to_server
from fedvisage.nvflare.outcome import last_round
from fedvisage.nvflare.rehearsal import Rehearsal
from fedvisage.nvflare.status import Status, list_runs, query_status, status_of, stop_run, write_page
from fedvisage.runs.directory import NAME

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


ROUNDS = 18
"""Enough rounds for two queries of a busy machine during the run."""


class Observer(LineReporter):
    """Queries the federation at the end of a round, and records the messages of the run."""

    def __init__(self, kit: Path) -> None:
        super().__init__()
        self.kit, self.seen, self.pages = kit, list[Status](), list[str]()

    def advance(self, done: int, total: int, note: str) -> None:
        if not self.seen:
            self.seen.append(status_of(self.kit, WAIT))
            write_page(self.kit.parent / "console.html", self.kit, WAIT)
            self.pages.append((self.kit.parent / "console.html").read_text())


@pytest.mark.long
def test_status_shows_a_run_and_its_progress_while_it_runs(federation: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    observer = Observer(federation.operator.path)
    content = tree(sets, training__rounds=ROUNDS, tracking="tensorboard")
    run_through(federation, content, tmp_path / "seen", reporter=observer)
    ((run,),) = (status.runs for status in observer.seen)
    assert re.fullmatch(r"seen-[0-9a-f]+", run.run)
    assert (run.state, run.rounds) == ("running", ROUNDS)
    assert 1 <= run.round <= ROUNDS
    assert run.bytes_up > 0 < run.bytes_down
    (page,) = observer.pages
    assert all(word in page for word in (run.run, "FedPAD", f"of {ROUNDS}", "log at the server", *SITES))
    trackers = json.loads((tmp_path / "seen/tracking/told.json").read_text())
    assert trackers == {"tensorboard": {"run": "tensorboard", "round": ROUNDS, "ended": True}}
    assert list((tmp_path / "seen/tensorboard").glob("events.*"))
    assert "tracking" not in next(federation.server.path.parents[1].glob("runs/seen-*/recipe.yaml")).read_text()
    words = " ".join(observer.lines)
    assert words.index("submitted") < words.index("waiting for A, B, C to start") < words.index("started")
    assert not [one for one in status_of(federation.operator.path, WAIT).runs if one.run == run.run], "it is over"
    (listed,) = (entry for entry in list_runs(federation.operator.path, WAIT) if entry.run == run.run)
    assert (listed.state, listed.submitter) == ("ended", federation.operator.name)
    for kit in federation.sites.values():
        first, last = read_records(kit, run.run)
        assert (first["event"], first["submitter"], first["method"]) == ("started", federation.operator.name, "fedpad")
        assert (last["event"], last["round"], last["rounds"]) == ("ended", ROUNDS, ROUNDS)
        lines = [line for line in (kit.path / "process.log").read_text().splitlines() if run.run in line]
        assert [line.partition(run.run)[2].split()[0].strip(";:") for line in lines] == ["arrived", "ended"]


def read_records(kit: Kit, run: str) -> list[dict[str, Any]]:
    """Return the two entries of a run in a site's record; a site notices the end of its process within seconds."""
    path = Path(own_settings(kit.path)["state"]) / "runs.jsonl"
    while True:
        entries = [entry for entry in read_lines(path) if entry["run"] == run]
        if len(entries) == 2:
            return entries
        time.sleep(0.2)


@pytest.mark.slow
def test_stopping_a_run_ends_its_operators_command_and_resume_continues_it(
    federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    class Stopper(Observer):
        def advance(self, done: int, total: int, note: str) -> None:
            if done == 2:
                self.stopping = threading.Thread(target=stop_run, args=(self.kit, str(tmp_path / "stopped"), WAIT))
                self.stopping.start()

    observer, content = Stopper(federation.operator.path), tree(sets, training__rounds=200)
    with failed(RunFailed, federation.operator.name, "stopped", "--resume"):
        run_through(federation, content, tmp_path / "stopped", reporter=observer)
    observer.stopping.join()
    assert not any("submitting the run again" in text for text in observer.lines)
    name = json.loads((tmp_path / "stopped" / NAME).read_text())["run"]
    with refused(name, "aborted"):
        stop_run(federation.operator.path, str(tmp_path / "stopped"), WAIT)
    with refused("another-run", "fedvisage runs"):
        stop_run(federation.operator.path, "another-run", WAIT)
    before = last_round(next(federation.server.path.parents[1].glob("runs/stopped-*")))

    class Reached(Exception):
        """The resumed run is beyond the round in which it was stopped."""

    class Follower(Observer):
        def advance(self, done: int, total: int, note: str) -> None:
            if done > before:
                raise Reached

    with pytest.raises(Reached):
        run_through(federation, content, tmp_path / "stopped", resume=True, reporter=Follower(federation.operator.path))
    assert stop_run(federation.operator.path, name, WAIT) == name


def wait_for_contact(federation: Rehearsal) -> None:
    """Wait until all sites are in contact: a site that an earlier test stopped stays in NVFlare's list meanwhile."""
    while [site.stale for site in status_of(federation.operator.path, WAIT).sites] != [False] * 3:
        time.sleep(0.2)


@contextmanager
def suspend(federation: Rehearsal, *names: str) -> Iterator[None]:
    """Suspend sites, or all of them; their connections stay open."""
    sites = [federation.processes[name].pid for name in names or federation.sites]
    for pid in sites:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in sites:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_suspended_site_is_stale_and_the_waiting_run_names_it(
    federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    observer, recipe = Observer(federation.operator.path), recipe_of(tree(sets, federation__quorum=3))
    (tmp_path / "waiting").mkdir()
    wait_for_contact(federation)
    kit = federation.operator.path
    with suspend(federation, "B"):
        while "B" not in {site.name for site in status_of(kit, WAIT).sites if site.stale}:
            time.sleep(0.2)
        with failed(RunFailed, "not connected", "B"):
            operator.train_in_federation(recipe, tmp_path / "waiting", observer, federation.operator, wait=5)
    assert "waiting for B to connect" in observer.lines


@pytest.mark.slow
def test_run_with_unresponsive_sites_ends_after_its_patience(
    federation: Rehearsal, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sites are suspended at the submission, however long the command took to connect before it."""
    observer, recipe = Observer(federation.operator.path), recipe_of(tree(sets, training__rounds=1))
    (tmp_path / "dead").mkdir()
    wait_for_contact(federation)
    with ExitStack() as suspended:

        def stop_sites_and_write_job(*arguments: Any) -> None:
            suspended.enter_context(suspend(federation))
            write_job(*arguments)

        monkeypatch.setattr(operator, "write_job", stop_sites_and_write_job)
        with failed(RunFailed, "fedvisage status", "--patience"):
            operator.train_in_federation(
                recipe, tmp_path / "dead", observer, federation.operator, wait=WAIT, patience=15
            )
    with connect_to_server(federation.operator, WAIT) as session:
        while query_status(session).runs:  # until the server has ended it
            time.sleep(0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_site_stopped_during_an_order_does_not_delay_the_round(
    number: signal.Signals, federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    """B's program of the run is suspended, so that its order is pending when B is stopped. The deadline is a day."""

    class Stopper(Observer):
        def advance(self, done: int, total: int, note: str) -> None:
            if done == 2:
                site = psutil.Process(federation.processes["B"].pid)
                for child in site.children(recursive=True):
                    child.suspend()
                site.send_signal(number)

    wait_for_contact(federation)
    observer = Stopper(federation.operator.path)
    content = tree(sets, training__rounds=ROUNDS, federation={"quorum": 2, "deadline": 86_400.0})
    run_through(federation, content, tmp_path / "left", reporter=observer)
    rows = read_lines(tmp_path / "left/rounds.jsonl")
    assert len(rows) == ROUNDS
    assert "was stopped at the site" in {row["failed"].get("B") for row in rows}
    assert all(row["counted"] in (["A", "C"], ["A", "B", "C"]) for row in rows)
    assert "stopped" in (federation.sites["B"].path / "process.log").read_text().splitlines()


@pytest.mark.slow
def test_run_restarts_at_once_when_a_site_dies_during_its_start(
    federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    """NVFlare waits five minutes for a site to start whose process is gone, though the site is up again."""

    class Striker(Observer):
        def say(self, text: str) -> None:
            if "running at the server" in text and not any("running at the server" in one for one in self.lines):
                federation.kill("B")
                federation.start("B")
            super().say(text)

    observer = Striker(federation.operator.path)
    run_through(federation, tree(sets, training__rounds=2), tmp_path / "struck", reporter=observer)
    assert any(text.startswith("B lost its part") for text in observer.lines)


@pytest.mark.slow
def test_operator_retries_a_server_with_a_full_disk(federation: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    """NVFlare notes each request in a file before it answers; it says that it cannot, and the run goes on meanwhile."""

    class Filler(Observer):
        def advance(self, done: int, total: int, note: str) -> None:
            if done == 1:
                self.server = psutil.Process(federation.processes["server"].pid)
                self.unlimited = self.server.rlimit(psutil.RLIMIT_FSIZE)
                self.server.rlimit(psutil.RLIMIT_FSIZE, (0, self.unlimited[1]))

        def say(self, text: str) -> None:
            super().say(text)
            if "trying again" in text:
                self.server.rlimit(psutil.RLIMIT_FSIZE, self.unlimited)

    observer = Filler(federation.operator.path)
    run_through(federation, tree(sets, training__rounds=6), tmp_path / "filled", reporter=observer)
    assert any("trying again" in text for text in observer.lines)
    assert (tmp_path / "filled" / "metrics.json").exists()


@pytest.mark.slow
def test_site_returns_when_a_process_with_a_copy_of_its_kit_dies(federation: Rehearsal, tmp_path: Path) -> None:
    """The other process has a copy of the kit, as on another machine: no lock can stop it."""
    kit = shutil.copytree(federation.sites["A"].path, tmp_path / "kit", ignore=shutil.ignore_patterns("socket"))
    began = time.time()
    with connect_to_server(federation.operator, WAIT) as session, (tmp_path / "log").open("wb") as log:
        while not _seen_since(query_status(session), began):
            time.sleep(0.2)
        settings = kit / "local" / "fedvisage.json"
        settings.write_text(settings.read_text().replace('"state": "', f'"state": "{tmp_path}'))
        command = [sys.executable, "-m", "fedvisage.nvflare.node", str(kit), "--tied"]
        other = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while "connected" not in (tmp_path / "log").read_text():
                assert other.poll() is None
                time.sleep(0.2)
        finally:
            end(other.pid)
            other.wait()
        died = time.time()
        while not _seen_since(query_status(session), died + 1):
            time.sleep(0.5)


def _seen_since(status: Status, moment: float) -> bool:
    """Return whether site A had contact after a moment."""
    return any(site.name == "A" and time.time() - site.seconds_ago > moment for site in status.sites)
