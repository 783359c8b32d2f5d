"""One process of a federation on this machine: NVFlare's server or client, started from a kit.

Run as ``python -m fedvisage.nvflare.node KIT``. With ``--tied`` it ends, with all that it started, when the
process that started it ends: a rehearsal leaves nothing behind, however it ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from nvflare.fuel.f3.mpm import MainProcessMonitor

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import HELD_OUT, PUBLIC, check_apart, look_for_overlap
from fedvisage.data.prepared import SPLITS, PreparedSet
from fedvisage.datasets.sources import without_part
from fedvisage.nvflare import kits
from fedvisage.nvflare.admission import Admission, guard
from fedvisage.nvflare.certificates import expires, papers_in
from fedvisage.nvflare.kits import ANEW, STARTUP, Kit, open_kit, own_settings
from fedvisage.nvflare.locks import held
from fedvisage.nvflare.terminal import LOG, Front, hushed
from fedvisage.nvflare.trust import ROSTERS, as_setting
from fedvisage.nvflare.watching import Post
from fedvisage.tasks.checks import USUAL, Checks

# What NVFlare leaves in a kit of each job, for ever: folders with logs, and at the server the results once more.
#
# The newest are kept, for whoever wants to know why a run failed. A result is in the run's own directory, too, from
# where
# an operator who was away gets it.


KEPT = 20
"""Jobs whose traces stay."""

STORE = "jobs"
"""The server's store of submitted jobs, in its kit."""

WAITING = ("SUBMITTED", "APPROVED", "DISPATCHED")
"""What NVFlare calls jobs that are still to begin."""


def tidy(kit: Path, keep: int = KEPT) -> None:
    """Delete what is left of old jobs; to be called while nothing of the kit runs."""
    for place in (kit, kit / STORE):
        jobs = [path for path in place.iterdir() if _is_job(path)] if place.is_dir() else []
        for path in sorted(jobs, key=lambda one: one.stat().st_mtime, reverse=True)[keep:]:
            if not _waits(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_job(path: Path) -> bool:
    """Return whether a folder has the name that NVFlare gives to a job's."""
    try:
        return str(uuid.UUID(path.name)) == path.name and path.is_dir()
    except ValueError:
        return False


def _waits(path: Path) -> bool:
    """Return whether a job of the store has not begun; one that is half written never will."""
    try:
        return read_json(path / "meta")["status"] in WAITING
    except (UserError, KeyError):
        return False


# Getting a kit ready to start on this machine: where its stores, runs, data and private state are.


def runs_in(kit: Kit, state: Path | None) -> Path:
    """Return where a server keeps its runs."""
    return (state or kit.path / "runs").resolve()


def kept_in(kit: Kit, state: Path | None) -> Path:
    """Return where a site keeps its private state."""
    return (state or kit.path / "state").resolve()


def prepare_server(kit: Kit, state: Path | None = None, public: str | None = None, weights: Path | None = None) -> None:
    """Settle where runs, jobs and snapshots lie: by default in the kit, never in a place that federations share."""
    tidy(kit.path)
    runs = runs_in(kit, state)
    runs.mkdir(parents=True, exist_ok=True)
    write_json(kit.own, own_settings(kit.path) | {"state": str(runs)} | _public(public) | _weights(weights))
    jobs, snapshots = str(kit.path / STORE), str(kit.path / "snapshots")
    _close(kit, lambda tree: kits.server_resources(tree, jobs, snapshots))


def checked_in(kept: Path) -> Path:
    """Return where a site keeps what it found out about its sets, beside its runs, which have longer names."""
    return kept / "cache"


def check_own_sets(
    kit: Kit,
    data: Path,
    state: Path | None,
    public: Path | None,
    say: Say,
    checks: Checks = USUAL,
) -> None:
    """Refuse a site's sets if bytes were changed, or if pictures are at two places of this machine.

    The places are what the site trains on, what it holds out, and the public set. All of it stays here.
    """
    cache, places = checked_in(kept_in(kit, state)), {}
    for path in (data, *(() if public is None else (public,))):
        found = PreparedSet.open(path)
        check_bytes(path, cache, whole=checks.verify, say=say)
        if path == public:
            places[PUBLIC] = [View.of(found)]
        else:
            trained = View.of(found, "train")
            places["--data"] = [trained]
            places[f"--data{HELD_OUT}"] = [View.of(found, split) for split in SPLITS if split != "train"]
    for line in check_apart(look_for_overlap(places, cache, say), checks.allow_overlap):
        say(f"note: {line}")


def prepare_site(
    kit: Kit,
    data: str,
    state: Path | None = None,
    public: str | None = None,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
) -> None:
    """Settle whose data a site trains on: its own prepared set, looked at before anything starts.

    ``rosters`` are allowed in secure sums until the next start, whatever the site remembers.
    """
    _check_set(data)
    allowed = as_setting(rosters)
    tidy(kit.path)
    kept = kept_in(kit, state)
    kept.mkdir(parents=True, exist_ok=True)
    own = {"data": data, "state": str(kept), ROSTERS: allowed}
    write_json(kit.own, own_settings(kit.path) | own | _public(public) | _weights(weights))
    _close(kit, kits.site_resources)


def _close(kit: Kit, closed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write a kit's resources as they must be, whatever was made of them since it was provisioned."""
    path = kit.path / "local" / "resources.json"
    try:
        write_json(path, closed(read_json(path, ANEW)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def _public(entry: str | None) -> dict[str, str]:
    if entry is None:
        return {}
    _check_set(entry)
    return {"public": entry}


def _weights(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    if not path.is_file():
        raise UserError(str(path), "does not exist; --weights names a safetensors file")
    return {"weights": str(path.resolve())}


def _check_set(entry: str) -> None:
    PreparedSet.open(Path(without_part(entry)[0].strip()))


logger = logging.getLogger("fedvisage.node")

SERVER, SITE = "nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"
GONE = 0.5
"""Seconds between two looks at whether the parent is still there, or a server listens."""

TRIMMED = 60.0
"""Seconds after which a server hands memory back that nobody uses."""

LISTENING = 60.0
"""Seconds that a server has until it listens."""


def main() -> None:
    """Become NVFlare's process, which writes where it was told to."""
    path, tied = Path(sys.argv[1]).resolve(), "--tied" in sys.argv[2:]
    if tied:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    at_server = (path / "startup" / STARTUP["server"]).exists()
    front = Front(_write, _write)
    try:
        kit = open_kit(path, "server" if at_server else "site")
        with held(kit.path, Path(own_settings(kit.path)["state"])):
            serve(kit, front)
    except (UserError, RunFailed) as error:
        front.end(error)


def serve(kit: Kit, front: Front, *, port: int | None = None) -> None:
    """Run NVFlare's server or client in this process, until it ends."""
    (kit.path / "transfer").mkdir(exist_ok=True)
    name = SERVER if kit.kind == "server" else SITE
    words = ["secure_train=true", "config_folder=config", f"org={own_settings(kit.path)['organisation']}"]
    if kit.kind == "site":
        words.append(f"uid={kit.name}")
    sys.argv = [name, "-m", str(kit.path), "-s", STARTUP[kit.kind], "--set", *words]
    Post.kit, Post.front = kit, front
    if kit.kind == "server":
        Post.admission = _admission(kit, front)
        guard(Post.admission, own_settings(kit.path))
        threading.Thread(target=_hand_memory_back, daemon=True).start()
    if port is not None:
        threading.Thread(target=_say_when_listening, args=(port, front), daemon=True).start()
    module = importlib.import_module(name)
    arguments = module.parse_arguments()
    MainProcessMonitor.run(main_func=_guarded(module.main, kit, front), run_dir=str(kit.path), args=arguments)


def _admission(kit: Kit, front: Front) -> Admission:
    """Return whom a server lets in, by the list in its kit."""
    admission = Admission(kit.path, front.say)
    admission.read()
    admission.until[kit.name] = expires(papers_in(kit.path, at_server=True))
    return admission


def serve_quietly(kit: Kit, front: Front, *, verbose: bool, port: int | None = None) -> None:
    """Run it so that a person sees a few lines, and all others are in the kit's log."""
    front.say(f"log: {kit.path / LOG}")
    with hushed(kit.path, verbose=verbose):
        serve(kit, front, port=port)


def _guarded(work: Callable[[Any], object], kit: Kit, front: Front) -> Callable[[Any], object]:
    """Have NVFlare's main function end with a line instead of a traceback, and before its monitor ends the process."""

    def run(args: Any) -> object:
        try:
            return work(args)
        except (UserError, RunFailed) as error:
            front.end(error)
        except Exception as error:  # the boundary to NVFlare: whatever it raises is in the log
            logger.exception("NVFlare ended")
            what = "the server did not take this site in" if "Login failed" in str(error) else "NVFlare ended by itself"
            front.end(RunFailed(f"{what} ({type(error).__name__}: {error}); {kit.path / LOG} says more"))

    return run


def _hand_memory_back() -> None:
    """Free each minute what NVFlare's messages leave: circles of a few objects around a mebibyte each.

    Python looks for circles by counting objects, and would find these only when hundreds of them lie about; what is
    free then goes back to the system where the C library can (glibc).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", int)
    while True:
        time.sleep(TRIMMED)
        gc.collect()
        trim(0)


def _say_when_listening(port: int, front: Front) -> None:
    """Say that a server is up, or end it: NVFlare goes on without a word when it could not listen."""
    own, until = psutil.Process(), time.monotonic() + LISTENING
    while not any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in own.net_connections("tcp")):
        if time.monotonic() > until:
            front.end(RunFailed(f"cannot listen on port {port}; is another program using it?"))
        time.sleep(GONE)
    front.say(f"listening on port {port}, waiting for sites and runs")


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def end(pid: int) -> None:
    """End a process and all its descendants, by their ids, at once."""
    try:
        root = psutil.Process(pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(GONE)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(1)


if __name__ == "__main__":
    main()
