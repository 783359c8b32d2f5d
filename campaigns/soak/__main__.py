"""The soak: ``python -m campaigns.soak --minutes 60`` writes its figures into ``docs/reliability.md`` (``make soak``).

Five sites, a server and an operator, from kits, over mutual TLS; a supervisor for each machine; a cable between each
site and the server. Runs follow one another while mistakes are made. Afterwards every run is repeated in one process.
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
from campaigns.soak.mischief import Federation, Mischief
from campaigns.soak.replay import Record, Replayed
from campaigns.soak.runs import Operator, Run
from campaigns.soak.table import Soak, write
from campaigns.soak.units import Supervisor, Unit, families
from campaigns.soak.watch import Watch
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
SETTLING = 90.0
"""Seconds after the last run in which all processes for jobs must have ended."""

CHANGES: Mapping[str, Any] = {
    "training__rounds": ROUNDS,
    "training__local": {"batches": 2},
    "federation__quorum": 2,
    "federation__deadline": 20.0,
    "federation__sit_out": 1,
    "evaluation__every": 10,
}


@dataclass
class Conduct:
    """A soak that goes on."""

    root: Path
    soak: Soak
    sets: Mapping[str, Path]
    content: Mapping[str, Any]
    units: dict[str, Unit] = field(default_factory=dict)
    cables: dict[str, Cable] = field(default_factory=dict)

    def build(self) -> None:
        """Make kits, put each on its machine's disk, and lay the cables."""
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
            self.units[name] = Unit(name, str(self.root), command, disk, self.root / f"{name}.log")

    def go_on(self, minutes: float, seed: int, calm: bool) -> None:
        """Have runs done until time is over, while things go wrong; then in peace to the end of the last one."""
        operator = Operator(str(self.root), self.root / "kits" / "operator", dict(self.content), self.root / "runs")
        federation = Federation(self.units, self.cables, self.soak.own_disks, operator.kill)
        mischief = Mischief(
            federation, SITES, seed, self.root / "events.jsonl", lambda: operator.told, self.soak.events
        )
        watch = Watch(str(self.root), self.units, self.root / "samples.csv", samples=self.soak.samples)
        supervisor = Supervisor(self.units)
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(2))
            stack.callback(supervisor.end)
            stack.callback(watch.over.set)
            stack.callback(mischief.over.set)
            if calm:
                mischief.over.set()
            supervisor.begin()
            self.soak.began = time.time()
            watching, making = pool.submit(watch.go_on), pool.submit(mischief.go_on)
            until = time.monotonic() + 60 * minutes
            threading.Timer(60 * minutes, mischief.over.set).start()
            while time.monotonic() < until:
                self._one(operator)
            self.soak.ended = time.time()
            mischief.over.set()
            making.result()
            self.soak.left_over = self._wait_for_peace()
            watch.over.set()
            watching.result()
            self.soak.orphans = supervisor.end()
        self.soak.unburied = len(watch.unburied)
        self.soak.orphans += sum(len(family) for family in families(str(self.root)).values())
        self.soak.codes = {name: unit.codes for name, unit in self.units.items()}
        self.soak.lines = operator.lines

    def _one(self, operator: Operator) -> None:
        run = operator.run(len(self.soak.runs) + 1)
        self.soak.runs.append(run)
        print(f"{run.out.name}: {run.ended - run.began:.0f} s, {run.commands} commands, {run.failures}", flush=True)
        name = self.tidy(run)
        self.soak.disk.append({name: disks.used(unit.disk) for name, unit in self.units.items()})
        if name is None:
            self.soak.problems.append(f"{run.out.name} came to no end: {run.failures[-1:]}")

    def tidy(self, run: Run) -> str | None:
        """Keep the server's log of a run and delete what machines keep of it, as deploy.md has owners do."""
        if not (run.out / "metrics.json").exists():
            return None

        named = run.out / NAME
        name = str(read_json(named)["run"])
        shutil.copy(self.units["server"].disk / "kit" / "runs" / name / "log.jsonl", run.out / "server.jsonl")
        for unit in self.units.values():
            shutil.rmtree(unit.disk / "kit" / ("runs" if unit.name == "server" else "state") / name, ignore_errors=True)
        return name

    def _wait_for_peace(self) -> int:
        """Return how many processes of jobs are left when all should be over."""
        until = time.monotonic() + SETTLING
        while True:
            left = sum(len(unit.family()) - 1 for unit in self.units.values())
            if left <= 0 or time.monotonic() > until:
                return max(0, left)
            time.sleep(1)

    def judge(self) -> None:
        """Repeat every run in this process, and compare."""
        whole = self.root / "whole"
        run_toy(self.content, whole)
        undisturbed = comparable_files(whole)
        for run in self.soak.runs:
            if not (run.out / "metrics.json").exists():
                continue
            found = comparable_files(run.out)
            if found == undisturbed:
                self.soak.equal += 1
                continue
            if differing := self._differing(run.out, found):
                self.soak.problems.append(f"{run.out.name} and its repetition: {differing}")
            else:
                self.soak.repeated += 1

    def _differing(self, out: Path, found: Mapping[str, bytes]) -> str:
        """Return in what a run differs from itself in one process, with the same sites silent."""
        again, record = out.with_name(f"{out.name}-again"), Record.of(out, out / "server.jsonl")
        try:
            run_toy(self.content, again, wire=lambda site_workers: Replayed(site_workers, record))
        except (AssertionError, StopIteration) as error:
            return f"{error!r}"
        other = comparable_files(again)
        return ", ".join(name for name in found if found[name] != other[name])


def main() -> int:
    """Soak, judge, write."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--minutes", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--keep", type=Path, help="a directory for logs, samples, events and runs")
    words.add_argument("--calm", action="store_true", help="make no mistakes: what grows then grows by itself")
    words.add_argument("--no-table", action="store_true")
    given = words.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory(prefix="soak-"))) if given.keep is None else given.keep
        root = root.resolve()
        for name in ("tmp", "runs", "cache"):
            (root / name).mkdir(parents=True, exist_ok=True)
        names = (*SITES, "U")
        sets = {name: make_set(root / "sets" / name, name, seed) for seed, name in enumerate(names)}
        content = content_of(sets, CHANGES)
        content["data"]["sites"] = {name: str(sets[name]) for name in SITES}
        places = [root / "machines" / name for name in ("server", *SITES)]
        soak = Soak(given.minutes, given.seed, len(SITES), ROUNDS)
        soak.own_disks = stack.enter_context(disks.disks(places))
        conduct = Conduct(root, soak, sets, content)
        conduct.build()
        conduct.go_on(given.minutes, given.seed, given.calm)
        conduct.judge()
        lines, problems = soak.lines_of_table(), soak.found()
        print("\n".join([*lines, *(f"PROBLEM: {one}" for one in problems)]), flush=True)
        if not given.no_table:
            write(lines)
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
