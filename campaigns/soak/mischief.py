"""What goes wrong in a soak, in an order that follows from a seed: kills, silence, networks, full disks."""

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
from campaigns.soak.units import Unit, send
from tests.distributed.cable import Cable

from fedvisage.base.streams import numpy_rng

PAUSES = (20.0, 60.0)
"""Seconds between two mistakes: at least, at most."""

WAITING = 0.75
"""How many of them wait until a run has gone on since the last one: else a slow machine would never get anywhere."""

GONE_ON = 5
"""Rounds that they wait for."""

LONGEST = 180.0
"""Seconds after which they wait no longer."""


@dataclass(frozen=True)
class Plan:
    """One mistake to come."""

    pause: float
    kind: str
    site: str
    seconds: float
    waits: bool
    """Whether it waits until a run has gone on since the last one; the others also meet jobs that start or end."""


@dataclass
class Event:
    """One mistake that was made."""

    at: float
    kind: str
    where: str
    seconds: float


@dataclass
class Federation:
    """What mistakes are made to."""

    units: Mapping[str, Unit]
    cables: Mapping[str, Cable]
    own_disks: bool
    kill_operator: Callable[[], bool]

    def kill(self, name: str) -> bool:
        """Kill all that runs on a machine."""
        return self.units[name].kill() > 0

    def kill_job(self, name: str) -> bool:
        """Kill a machine's process for the job, if it has one."""
        family = self.units[name].family()[1:]
        for process in family:
            send(process, signal.SIGKILL)
        return bool(family)

    def silence(self, name: str, seconds: float) -> bool:
        """Stop all processes of a machine for some seconds."""
        stopped = self.units[name].family()
        for process in stopped:
            send(process, signal.SIGSTOP)
        threading.Timer(seconds, lambda: [send(process, signal.SIGCONT) for process in stopped]).start()
        return bool(stopped)

    def fill_disk(self, name: str, seconds: float) -> bool:
        """Have no room on a machine's disk for some seconds."""
        unit = self.units[name]
        if self.own_disks:
            disks.fill(unit.disk)
            threading.Timer(seconds, disks.empty, (unit.disk,)).start()
        else:
            disks.limit(unit.family(), 0)
            threading.Timer(seconds, lambda: disks.limit(unit.family())).start()
        return True

    def network(self, name: str, what: Callable[..., None], *seconds: float) -> bool:
        """Do something to a site's cable."""
        what(self.cables[name], *seconds)
        return True

    def restart_everything(self) -> bool:
        """Stop all machines as a shutdown would; supervisors start them again. The operator's is switched off."""
        self.kill_operator()
        threads = [threading.Thread(target=unit.stop) for unit in self.units.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return True


Deed = Callable[[Federation, str, float], bool]
"""What is done to a federation, at a site, for how long; returns whether there was something to do it to."""

KINDS: Mapping[str, tuple[int, tuple[float, float], Deed]] = {
    "a site's processes are killed": (3, (0, 0), lambda f, site, s: f.kill(site)),
    "a site's process for the job is killed": (2, (0, 0), lambda f, site, s: f.kill_job(site)),
    "the server's processes are killed": (2, (0, 0), lambda f, site, s: f.kill("server")),
    "the server's process for the job is killed": (2, (0, 0), lambda f, site, s: f.kill_job("server")),
    "the operator's command is killed": (1, (0, 0), lambda f, site, s: f.kill_operator()),
    "a site is stopped": (2, (4, 45), lambda f, site, s: f.silence(site, s)),
    "a site's network is cut": (2, (2, 45), lambda f, site, s: f.network(site, Cable.cut, s)),
    "a site's connections are reset": (1, (0, 0), lambda f, site, s: f.network(site, Cable.reset)),
    "a site's network lets nothing through": (2, (2, 45), lambda f, site, s: f.network(site, Cable.jam, s)),
    "a site's network is slow": (1, (5, 30), lambda f, site, s: f.network(site, Cable.slow, s)),
    "a site's disk is full": (2, (5, 30), lambda f, site, s: f.fill_disk(site, s)),
    "the server's disk is full": (1, (5, 20), lambda f, site, s: f.fill_disk("server", s)),
    "everything is stopped and started": (1, (0, 0), lambda f, site, s: f.restart_everything()),
}
"""By what a person would call it: how often it is drawn, for how many seconds, and what is done."""


def plan(seed: int, number: int, sites: tuple[str, ...]) -> Plan:
    """Draw the mistake with a number."""
    rng = numpy_rng(seed, "soak", number)
    weights = np.array([often for often, _, _ in KINDS.values()], float)
    kind = list(KINDS)[int(rng.choice(len(KINDS), p=weights / weights.sum()))]
    pause, site = float(rng.uniform(*PAUSES)), sites[int(rng.integers(len(sites)))]
    seconds, waits = float(rng.uniform(*KINDS[kind][1])), bool(rng.random() < WAITING)
    return Plan(round(pause, 1), kind, site, round(seconds, 1), waits)


@dataclass
class Mischief:
    """Makes one mistake after another until told to stop, and writes each down."""

    federation: Federation
    sites: tuple[str, ...]
    seed: int
    path: Path
    rounds: Callable[[], int]
    """How many rounds were told so far."""
    events: list[Event] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def _waited_in_vain(self, waits: bool) -> bool:
        """Wait until some more rounds are over; return whether the soak ended meanwhile."""
        known, until = self.rounds(), time.monotonic() + LONGEST
        while waits and self.rounds() < known + GONE_ON and time.monotonic() < until:
            if self.over.wait(0.5):
                return True
        return False

    def go_on(self) -> None:
        """Make mistakes until told to stop."""
        number = 0
        while True:
            number += 1
            coming = plan(self.seed, number, self.sites)
            if self.over.wait(coming.pause) or self._waited_in_vain(coming.waits):
                return
            where = coming.site if coming.kind.startswith("a site") else ""
            event = Event(time.time(), coming.kind, where, coming.seconds)
            if not KINDS[coming.kind][2](self.federation, coming.site, coming.seconds):
                continue
            self.events.append(event)
            with self.path.open("a") as file:
                file.write(json.dumps(vars(event)) + "\n")
