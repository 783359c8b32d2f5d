"""The soak: ``python -m campaigns.soak --minutes 60`` (``make soak``) writes tables into docs/results/reliability.md.

Five sites, a server and an operator start from kits and connect over mutual TLS, each site through a cable that can be
cut. Supervisors restart the machines. Runs follow one another while faults are injected, and each run is then repeated
in one process.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from campaigns.soak import disks
from campaigns.soak.faults import FaultInjector, Federation
from campaigns.soak.machines import Machine, Supervisor, find_processes
from campaigns.soak.replay import ReplayTransport, RunRecord
from campaigns.soak.runs import Operator, Run
from campaigns.soak.sampling import Sampler
from campaigns.soak.table import Result, write
from tests.distributed.cable import Cable
from tests.distributed.faults import content_of
from tests.distributed.federations import comparable_files
from tests.toy import make_set, run_toy

from fedvisage.base.files import read_json
from fedvisage.nvflare.authority import FederationFile, OperatorEntry, ServerEntry, SiteEntry
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.runs.directory import NAME

SITES = ("A", "B", "C", "D", "E")
ROUNDS = 20
JOB_TIMEOUT = 90.0
"""Seconds after the last run within which all processes for jobs must end."""

CHANGES: Mapping[str, Any] = {
    "training__rounds": ROUNDS,
    "training__local": {"batches": 2},
    "federation__quorum": 2,
    "federation__deadline": 20.0,
    "federation__sit_out": 1,
    "evaluation__every": 10,
}


@dataclass
class Soak:
    """The federation of a soak, its runs and their result."""

    root: Path
    result: Result
    sets: Mapping[str, Path]
    content: Mapping[str, Any]
    machines: dict[str, Machine] = field(default_factory=dict)
    cables: dict[str, Cable] = field(default_factory=dict)

    def build(self) -> None:
        """Create the kits, copy each to its machine's disk, and connect the sites' cables."""
        port = free_port()
        sites = {name: SiteEntry(organisation=f"owner_of_{name}") for name in SITES}
        server = ServerEntry(host="localhost", port=port)
        people = (OperatorEntry(email="operator@localhost.org"),)
        provision(FederationFile(server=server, sites=sites, operator=people), self.root / "kits")
        for name in ("server", *SITES):
            disk = self.root / "machines" / name
            kit = disk / "kit"
            shutil.copytree(self.root / "kits" / ("server" if name == "server" else f"sites/{name}"), kit)
            words = ["server", str(kit)]
            if name != "server":
                words = ["site", str(kit), "--data", str(self.sets[name])]
                self.cables[name] = Cable(port)
                self.cables[name].plug_in(kit)
            command = [sys.executable, "-m", "fedvisage", *words]
            self.machines[name] = Machine(name, str(self.root), command, disk, self.root / f"{name}.log")

    def run(self, minutes: float, seed: int, calm: bool) -> None:
        """Start runs until the time is over, with faults unless ``calm``; the last run finishes without them."""
        result, root = self.result, str(self.root)
        operator = Operator(root, self.root / "kits" / "operator", dict(self.content), self.root / "runs")
        federation = Federation(self.machines, self.cables, result.own_disks, operator.kill)
        injector = FaultInjector(
            federation, SITES, seed, self.root / "events.jsonl", lambda: operator.rounds, result.events
        )
        sampler = Sampler(root, self.machines, self.root / "samples.csv", samples=result.samples)
        supervisor = Supervisor(self.machines)
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(2))
            # Also after an error, so that no thread and no process remains.
            stack.callback(supervisor.stop)
            stack.callback(sampler.stop.set)
            stack.callback(injector.stop.set)
            if calm:
                injector.stop.set()
            supervisor.start()
            result.began = time.time()
            sampling, injecting = pool.submit(sampler.run), pool.submit(injector.run)
            deadline = time.monotonic() + 60 * minutes
            threading.Timer(60 * minutes, injector.stop.set).start()
            while time.monotonic() < deadline:
                self._run_once(operator)
            result.ended = time.time()
            injector.stop.set()
            injecting.result()
            result.remaining_jobs = self._wait_for_jobs()
            sampler.stop.set()
            sampling.result()
            result.orphans = supervisor.stop()
        result.zombies = len(sampler.unreaped)
        result.orphans += sum(len(processes) for processes in find_processes(root).values())
        result.codes = {name: machine.codes for name, machine in self.machines.items()}
        result.lines = operator.lines

    def _run_once(self, operator: Operator) -> None:
        run = operator.run(len(self.result.runs) + 1)
        self.result.runs.append(run)
        print(f"{run.out.name}: {run.ended - run.began:.0f} s, {run.commands} commands, {run.failures}", flush=True)
        if (run.out / "metrics.json").exists():
            self._delete_run(run)
        else:
            self.result.errors.append(f"{run.out.name} did not finish: {run.failures[-1:]}")
        self.result.disk.append({name: disks.used_bytes(machine.disk) for name, machine in self.machines.items()})

    def _delete_run(self, run: Run) -> None:
        """Keep the server's log of a run, and delete the run from all machines, as deploy.md asks owners to do."""
        name = str(read_json(run.out / NAME)["run"])
        shutil.copy(self.machines["server"].disk / "kit" / "runs" / name / "log.jsonl", run.out / "server.jsonl")
        for machine in self.machines.values():
            folder = "runs" if machine.name == "server" else "state"
            shutil.rmtree(machine.disk / "kit" / folder / name, ignore_errors=True)

    def _wait_for_jobs(self) -> int:
        """Wait for the end of all processes of jobs; return the number of those that remain."""
        deadline = time.monotonic() + JOB_TIMEOUT
        while True:
            count = sum(len(machine.processes()) - 1 for machine in self.machines.values())
            if count <= 0 or time.monotonic() > deadline:
                return max(0, count)
            time.sleep(1)

    def compare_runs(self) -> None:
        """Compare each finished run with an undisturbed one, and otherwise with its repetition in this process."""
        reference = self.root / "whole"
        run_toy(self.content, reference)
        undisturbed = comparable_files(reference)
        for run in self.result.runs:
            if not (run.out / "metrics.json").exists():
                continue
            if comparable_files(run.out) == undisturbed:
                self.result.equal += 1
            elif differences := self._repeat(run.out):
                self.result.errors.append(f"{run.out.name} and its repetition: {differences}")
            else:
                self.result.repeated += 1

    def _repeat(self, out: Path) -> str:
        """Repeat a run with the same silent sites, and return the names of the files that differ."""
        again, record = out.with_name(f"{out.name}-again"), RunRecord.read(out, out / "server.jsonl")
        try:
            run_toy(self.content, again, wire=lambda site_workers: ReplayTransport(site_workers, record))
        except AssertionError as error:
            return repr(error)
        files, other = comparable_files(out), comparable_files(again)
        return ", ".join(name for name in files if files[name] != other[name])


def main() -> int:
    """Run the soak, compare its runs and write the tables; return 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a directory for logs, samples, events and runs")
    parser.add_argument("--calm", action="store_true", help="inject no faults, which shows growth without restarts")
    parser.add_argument("--no-table", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the exit stack removes mounts and processes
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="soak-"))) if options.keep is None else options.keep
        root = root.resolve()
        for name in ("tmp", "runs", "cache"):
            (root / name).mkdir(parents=True, exist_ok=True)
        sets = {name: make_set(root / "sets" / name, name, seed) for seed, name in enumerate((*SITES, "U"))}
        content = content_of(sets, CHANGES)
        content["data"]["sites"] = {name: str(sets[name]) for name in SITES}
        result = Result(options.minutes, options.seed, len(SITES), ROUNDS)
        paths = [root / "machines" / name for name in ("server", *SITES)]
        result.own_disks = stack.enter_context(disks.mount_disks(paths))
        soak = Soak(root, result, sets, content)
        soak.build()
        soak.run(options.minutes, options.seed, options.calm)
        soak.compare_runs()
        table, problems = result.table(), result.problems()
        print("\n".join([*table, *(f"PROBLEM: {problem}" for problem in problems)]), flush=True)
        if not options.no_table:
            write(table)
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
