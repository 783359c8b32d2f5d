"""A rehearsal: the whole federation on this machine, with kits, mutual TLS and a process for each member.

It takes every step of a real run, from provisioning to fetching the result; only the separate machines are missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedvisage import recipe as recipes
from fedvisage.base.files import write_json
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View
from fedvisage.datasets.sources import without_part
from fedvisage.nvflare import operator
from fedvisage.nvflare.authority import FederationFile, OperatorEntry, ServerEntry, SiteEntry
from fedvisage.nvflare.kits import REHEARSAL, Kit, open_kit, own_settings
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.node import end
from fedvisage.nvflare.preparation import prepare_server, prepare_site
from fedvisage.recipe.data import named_weights
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

WAIT = 180.0
"""Seconds for all processes to start and connect."""

LOOK = 1.0
"""Seconds between two checks that all members are running."""


def train_in_rehearsal(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
    """Train on a federation that exists only for this call."""
    recipe = setup.recipe
    sets = {name: _entry(recipe.data.sites[name], site.train) for name, site in data.sites.items()}
    public_set = data.people.public if data.people else None
    public = None if public_set is None or recipe.data.public is None else _entry(recipe.data.public, public_set)
    weights = next((Path(path) for path in named_weights(recipes.tree_of(recipe)).values()), None)
    with rehearsal(out / "rehearsal", sets, public, weights) as federation:
        return operator.train_in_federation(recipe, out, reporter, federation.operator, wait=WAIT)


def _entry(entry: str, opened: View) -> str:
    """Return a data entry with the set's directory instead of its name; a share of a set stays a share."""
    return str(opened.slices[0].set.path.resolve()) + entry[len(without_part(entry)[0]) :]


@dataclass(frozen=True)
class Rehearsal:
    """A federation on this machine."""

    operator: Kit
    server: Kit
    sites: Mapping[str, Kit]
    processes: dict[str, subprocess.Popen[bytes]]

    def keep_up(self, over: threading.Event) -> None:
        """Restart members whose processes ended by themselves, as systemd would on their own machines."""
        while not over.wait(LOOK):
            for name, process in list(self.processes.items()):
                if process.poll() is not None and self.processes.get(name) is process:
                    self.start(name)

    def start(self, name: str) -> None:
        """Start the process of a member (again)."""
        kit = self.server if name == "server" else self.sites[name]
        log = (kit.path / "process.log").open("ab")
        command = [sys.executable, "-m", "fedvisage.nvflare.node", str(kit.path), "--tied"]
        environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        self.processes[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        log.close()

    def kill(self, name: str) -> None:
        """End the process of a member and all its descendants."""
        process = self.processes.pop(name)
        end(process.pid)
        process.wait()


@contextmanager
def rehearsal(
    directory: Path, sets: Mapping[str, str], public: str | None = None, weights: Path | None = None
) -> Iterator[Rehearsal]:
    """Provision a federation below a directory, start it, and end it; the files of runs and sites stay."""
    kits = directory / "kits"
    shutil.rmtree(kits, ignore_errors=True)  # an earlier federation, whose keys are useless now
    directory.mkdir(parents=True, exist_ok=True)
    sites = {name: SiteEntry(organisation=f"owner_of_{name}".replace("-", "_")) for name in sets}
    server = ServerEntry(host="localhost", port=free_port())
    provision(
        FederationFile(server=server, sites=sites, operator=(OperatorEntry(email="operator@localhost.org"),)), kits
    )
    federation = Rehearsal(
        open_kit(kits / "operator", "operator"),
        open_kit(kits / "server", "server"),
        {name: open_kit(kits / "sites" / name, "site") for name in sets},
        {},
    )
    prepare_server(federation.server, directory / "runs", public, weights)
    for name, kit in federation.sites.items():
        prepare_site(kit, sets[name], directory / "sites" / name, public, weights)
        write_json(kit.own, own_settings(kit.path) | {REHEARSAL: "yes"})
    over = threading.Event()
    watch = threading.Thread(target=federation.keep_up, args=(over,), daemon=True)
    try:
        for name in ("server", *federation.sites):
            federation.start(name)
        watch.start()
        yield federation
    finally:
        over.set()
        if watch.is_alive():
            watch.join()  # before the end of the processes, which it would start again
        for name in list(federation.processes):
            federation.kill(name)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
