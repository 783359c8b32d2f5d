"""Faults of a soak, in an order that follows from a seed: kills, stopped processes, networks, full disks."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from campaigns.soak import disks
from campaigns.soak.machines import Machine, send_signal
from tests.distributed.cable import Cable

from fedvisage.base.streams import numpy_rng

PAUSES = (20.0, 60.0)
"""Least and greatest number of seconds between two faults."""

WAITING_SHARE = 0.75
"""Share of faults that wait until the run has progressed; otherwise a slow machine would never finish a run."""

ROUNDS_BETWEEN = 5
"""Rounds for which such a fault waits."""

LONGEST_WAIT = 180.0
"""Seconds after which it waits no longer."""


@dataclass(frozen=True)
class PlannedFault:
    """A fault that is to be injected."""

    pause: float
    kind: str
    site: str
    seconds: float
    waits: bool
    """True if it waits until the run has progressed; the others also hit jobs that start or end."""


@dataclass
class Event:
    """A fault that was injected."""

    at: float
    kind: str
    where: str
    seconds: float


@dataclass
class Federation:
    """The machines and cables of a federation, with the faults that can be injected into them."""

    machines: Mapping[str, Machine]
    cables: Mapping[str, Cable]
    own_disks: bool
    kill_operator: Callable[[], bool]

    def kill(self, name: str) -> bool:
        """Kill all processes of a machine."""
        return self.machines[name].kill() > 0

    def kill_job(self, name: str) -> bool:
        """Kill a machine's process for the job, if it has one."""
        processes = self.machines[name].processes()[1:]
        for process in processes:
            send_signal(process, signal.SIGKILL)
        return bool(processes)

    def suspend(self, name: str, seconds: float) -> bool:
        """Suspend all processes of a machine for some seconds."""
        processes = self.machines[name].processes()

        def resume() -> None:
            for process in processes:
                send_signal(process, signal.SIGCONT)

        for process in processes:
            send_signal(process, signal.SIGSTOP)
        threading.Timer(seconds, resume).start()
        return bool(processes)

    def fill_disk(self, name: str, seconds: float) -> bool:
        """Fill a machine's disk for some seconds."""
        machine = self.machines[name]
        if self.own_disks:
            disks.fill(machine.disk)
            threading.Timer(seconds, disks.empty, (machine.disk,)).start()
        else:
            disks.limit_file_size(machine.processes(), 0)
            threading.Timer(seconds, lambda: disks.limit_file_size(machine.processes())).start()
        return True

    def disturb_network(self, name: str, disturb: Callable[..., None], *seconds: float) -> bool:
        """Cut, jam, slow or reset a site's cable."""
        disturb(self.cables[name], *seconds)
        return True

    def restart_everything(self) -> bool:
        """Shut down all machines, which supervisors restart, and kill the operator's command."""
        self.kill_operator()
        threads = [threading.Thread(target=machine.shut_down) for machine in self.machines.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return True


Inject = Callable[[Federation, str, float], bool]
"""Injects a fault into a federation, at a site, for some seconds; returns whether there was a target for it."""

KINDS: Mapping[str, tuple[int, tuple[float, float], Inject]] = {
    "a site's processes are killed": (3, (0, 0), lambda f, site, s: f.kill(site)),
    "a site's process for the job is killed": (2, (0, 0), lambda f, site, s: f.kill_job(site)),
    "the server's processes are killed": (2, (0, 0), lambda f, site, s: f.kill("server")),
    "the server's process for the job is killed": (2, (0, 0), lambda f, site, s: f.kill_job("server")),
    "the operator's command is killed": (1, (0, 0), lambda f, site, s: f.kill_operator()),
    "a site is stopped": (2, (4, 45), lambda f, site, s: f.suspend(site, s)),
    "a site's network is cut": (2, (2, 45), lambda f, site, s: f.disturb_network(site, Cable.cut, s)),
    "a site's connections are reset": (1, (0, 0), lambda f, site, s: f.disturb_network(site, Cable.reset)),
    "a site's network lets nothing through": (2, (2, 45), lambda f, site, s: f.disturb_network(site, Cable.jam, s)),
    "a site's network is slow": (1, (5, 30), lambda f, site, s: f.disturb_network(site, Cable.slow, s)),
    "a site's disk is full": (2, (5, 30), lambda f, site, s: f.fill_disk(site, s)),
    "the server's disk is full": (1, (5, 20), lambda f, site, s: f.fill_disk("server", s)),
    "everything is stopped and started": (1, (0, 0), lambda f, site, s: f.restart_everything()),
}
"""By name: weight in the draw, range of seconds, and the function that injects the fault."""


def plan_fault(seed: int, number: int, sites: tuple[str, ...]) -> PlannedFault:
    """Draw the fault with a number."""
    rng = numpy_rng(seed, "soak", number)
    weights = np.array([weight for weight, _, _ in KINDS.values()], float)
    kind = list(KINDS)[int(rng.choice(len(KINDS), p=weights / weights.sum()))]
    pause, site = float(rng.uniform(*PAUSES)), sites[int(rng.integers(len(sites)))]
    seconds, waits = float(rng.uniform(*KINDS[kind][1])), bool(rng.random() < WAITING_SHARE)
    return PlannedFault(round(pause, 1), kind, site, round(seconds, 1), waits)


@dataclass
class FaultInjector:
    """Injects one fault after another, and writes each into a file."""

    federation: Federation
    sites: tuple[str, ...]
    seed: int
    path: Path
    count_rounds: Callable[[], int]
    """Returns the number of rounds that the operator's command has reported so far."""
    events: list[Event] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Inject faults until ``stop`` is set."""
        number = 0
        while True:
            number += 1
            fault = plan_fault(self.seed, number, self.sites)
            if self.stop.wait(fault.pause) or (fault.waits and self._wait_for_rounds()):
                return
            where = fault.site if fault.kind.startswith("a site") else ""
            event = Event(time.time(), fault.kind, where, fault.seconds)
            if KINDS[fault.kind][2](self.federation, fault.site, fault.seconds):
                self.events.append(event)
                with self.path.open("a") as file:
                    file.write(json.dumps(vars(event)) + "\n")

    def _wait_for_rounds(self) -> bool:
        """Wait until more rounds are over; return whether the soak has ended meanwhile."""
        goal, deadline = self.count_rounds() + ROUNDS_BETWEEN, time.monotonic() + LONGEST_WAIT
        while self.count_rounds() < goal and time.monotonic() < deadline:
            if self.stop.wait(0.5):
                return True
        return False
