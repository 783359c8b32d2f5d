"""A process of a federation on this machine: prepare a kit, and run NVFlare's server or client from it.

Run as ``python -m fedvisage.nvflare.node KIT``. With ``--tied`` the process ends, with all its descendants, when its
parent ends: a rehearsal leaves nothing behind, however it ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.sec.audit import Auditor, AuditService

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import HELD_OUT, PUBLIC, find_overlap, refuse_overlap
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import SPLITS
from fedvisage.datasets.sources import without_part
from fedvisage.nvflare import kits
from fedvisage.nvflare.admission import Admission, listen_with_admission, move_memory
from fedvisage.nvflare.cells import rules
from fedvisage.nvflare.cells.local_socket import DRIVERS, SCHEME, LocalSocketDriver
from fedvisage.nvflare.certificates import credentials_in, expiry_of
from fedvisage.nvflare.greeting import announce_leave
from fedvisage.nvflare.kits import ANEW, STARTUP, Kit, hold_directories, open_kit, own_settings
from fedvisage.nvflare.terminal import LOG, Terminal, output_to_log
from fedvisage.nvflare.trust import PERSON_BUDGET, REQUIRE_SECURE, ROSTERS, as_setting
from fedvisage.nvflare.watching import ProcessContext
from fedvisage.tasks.checks import USUAL, Checks

# Folders of old jobs. NVFlare keeps them in a kit forever: logs, and at the server another copy of the results. The
# newest are kept to explain failed runs. A result is in the run's own directory, too, where an operator who was away
# gets it.


KEPT = 20
"""Jobs whose folders are kept."""

STORE = "jobs"
"""The server's store of submitted jobs, in its kit."""

WAITING = ("SUBMITTED", "APPROVED", "DISPATCHED")
"""NVFlare's statuses of jobs that have not begun."""


def remove_old_jobs(kit: Path) -> None:
    """Delete the folders of old jobs; call this while no process uses the kit."""
    for place in (kit, kit / STORE):
        paths = place.iterdir() if place.is_dir() else ()
        jobs = [path for path in paths if rules.is_job_id(path.name) and path.is_dir()]
        for path in sorted(jobs, key=lambda job: job.stat().st_mtime, reverse=True)[KEPT:]:
            if not _is_waiting(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_waiting(path: Path) -> bool:
    """Return whether a job in the store has not begun; a half-written job never will."""
    try:
        return read_json(path / "meta")["status"] in WAITING
    except (UserError, KeyError):
        return False


# Preparation of a kit on this machine: the places of its stores, runs, data and private state.


def runs_directory(kit: Kit, state: Path | None) -> Path:
    """Return the directory of a server's runs."""
    return (state or kit.path / "runs").resolve()


def state_directory(kit: Kit, state: Path | None) -> Path:
    """Return the directory of a site's private state."""
    return (state or kit.path / "state").resolve()


def prepare_server(kit: Kit, state: Path | None = None, public: str | None = None, weights: Path | None = None) -> None:
    """Set the places of runs, jobs and snapshots: in the kit by default, never in a place that federations share."""
    remove_old_jobs(kit.path)
    runs = runs_directory(kit, state)
    runs.mkdir(parents=True, exist_ok=True)
    move_memory(kit.path, Path(own_settings(kit.path).get("state", runs)), runs)
    write_json(kit.own, own_settings(kit.path) | {"state": str(runs)} | _public(public) | _weights(weights))
    jobs, snapshots = str(kit.path / STORE), str(kit.path / "snapshots")
    _close(kit, lambda tree: kits.server_resources(tree, jobs, snapshots))


def checks_directory(kept: Path) -> Path:
    """Return the directory of a site's cached checks, next to its runs, which have longer names."""
    return kept / "cache"


def check_own_sets(
    kit: Kit,
    data: Path,
    state: Path | None,
    public: Path | None,
    say: Say,
    checks: Checks = USUAL,
) -> None:
    """Refuse a site's sets if their files were changed, or if pictures are at two places of this machine.

    The places are the site's training images, its held-out images, and the public set. All results stay here.
    """
    cache, places = checks_directory(state_directory(kit, state)), {}
    for path in (data, *(() if public is None else (public,))):
        prepared = PreparedSet.open(path)
        check_bytes(path, cache, whole=checks.verify, say=say)
        if path == public:
            places[PUBLIC] = [View.of(prepared)]
        else:
            trained = View.of(prepared, "train")
            places["--data"] = [trained]
            places[f"--data{HELD_OUT}"] = [View.of(prepared, split) for split in SPLITS if split != "train"]
    for line in refuse_overlap(find_overlap(places, cache, say), checks.allow_overlap):
        say(f"note: {line}")


def prepare_site(
    kit: Kit,
    data: str,
    state: Path | None = None,
    public: str | None = None,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
    require_secure: bool = False,
    person_epsilon: float | None = None,
) -> None:
    """Set a site's own prepared set, which is checked before anything starts.

    ``rosters`` are allowed in secure sums until the next start, whatever the site remembers. With ``require_secure``,
    the site refuses all other runs. ``person_epsilon`` limits the privacy cost of a person over all runs.
    """
    _check_set(data)
    allowed = as_setting(rosters)
    remove_old_jobs(kit.path)
    kept = state_directory(kit, state)
    kept.mkdir(parents=True, exist_ok=True)
    settings = {"data": data, "state": str(kept), ROSTERS: allowed, REQUIRE_SECURE: "yes" if require_secure else "no"}
    settings[PERSON_BUDGET] = str(person_epsilon or "")
    write_json(kit.own, own_settings(kit.path) | settings | _public(public) | _weights(weights))
    _close(kit, kits.site_resources)


def _close(kit: Kit, closed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write a kit's resources with their restrictions, whatever was changed since it was provisioned."""
    path = kit.path / "local" / "resources.json"
    try:
        write_json(path, closed(read_json(path, ANEW)))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def _public(entry: str | None) -> dict[str, str]:
    """Return the setting for a public set, which must be a prepared set."""
    if entry is None:
        return {}
    _check_set(entry)
    return {"public": entry}


def _weights(path: Path | None) -> dict[str, str]:
    """Return the setting for a file of weights, which must exist."""
    if path is None:
        return {}
    if not path.is_file():
        raise UserError(str(path), "does not exist; --weights must name a safetensors file")
    return {"weights": str(path.resolve())}


def _check_set(entry: str) -> None:
    PreparedSet.open(Path(without_part(entry)[0].strip()))


logger = logging.getLogger("fedvisage.node")

SERVER, SITE = "nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"
GONE = 0.5
"""Seconds between two checks that the parent still exists, or that a server listens."""

TRIMMED = 60.0
"""Seconds between two times at which a server returns unused memory to the system, and an audit log is checked."""

LISTENING = 60.0
"""Seconds that a server has to start listening."""


def main() -> None:
    """Run NVFlare's process for the kit that the command line names."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path, tied = Path(sys.argv[1]).resolve(), "--tied" in sys.argv[2:]
    if tied:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    at_server = (path / "startup" / STARTUP["server"]).exists()
    terminal = Terminal(_write, _write)
    try:
        kit = open_kit(path, "server" if at_server else "site")
        with terminal.stoppable(), hold_directories(kit.path, Path(own_settings(kit.path)["state"])):
            serve(kit, terminal)
    except (UserError, RunFailed) as error:
        terminal.end(error)


def serve(kit: Kit, terminal: Terminal, *, port: int | None = None) -> None:
    """Run NVFlare's server or client in this process, until it ends."""
    (kit.path / "transfer").mkdir(exist_ok=True)
    name = SERVER if kit.kind == "server" else SITE
    words = ["secure_train=true", "config_folder=config", f"org={own_settings(kit.path)['organisation']}"]
    if kit.kind == "site":
        words.append(f"uid={kit.name}")
    sys.argv = [name, "-m", str(kit.path), "-s", STARTUP[kit.kind], "--set", *words]
    # NVFlare builds the watches and the guard without arguments, so they read these values.
    ProcessContext.kit, ProcessContext.terminal = kit, terminal
    rules.install(terminal.say)
    LocalSocketDriver.path = kit.path / "socket" / "jobs"
    # Variables, because the processes of jobs need the driver, too.
    os.environ |= {"NVFLARE_INTERNAL_CONN_SCHEME": SCHEME, "NVFLARE_COMM_DRIVER_PATH": str(DRIVERS)}
    if kit.kind == "site":
        rules.restrict_administration()
    else:
        admission = ProcessContext.admission = Admission(kit.path, terminal.say)
        admission.read()
        _ = admission.stopped  # refuse a damaged file before the start
        admission.until[kit.name] = expiry_of(credentials_in(kit.path, at_server=True))
        listen_with_admission(admission, own_settings(kit.path))
    threading.Thread(target=_limit_memory_and_log, daemon=True, kwargs={"at_server": kit.kind == "server"}).start()
    if port is not None:
        threading.Thread(target=_say_when_listening, args=(port, terminal), daemon=True).start()
    module = importlib.import_module(name)
    arguments = module.parse_arguments()
    MainProcessMonitor.run(
        main_func=_report_errors_of(module.main, kit, terminal), run_dir=str(kit.path), args=arguments
    )


def serve_quietly(kit: Kit, terminal: Terminal, *, verbose: bool, port: int | None = None) -> None:
    """Run NVFlare with a few lines on the terminal and all other output in the kit's log."""
    terminal.say(f"log: {kit.path / LOG}")
    with output_to_log(kit.path, verbose=verbose):
        serve(kit, terminal, port=port)


def _report_errors_of(work: Callable[[Any], object], kit: Kit, terminal: Terminal) -> Callable[[Any], None]:
    """Have NVFlare's main function end with a line, before its monitor ends the process; it never ends as a success."""

    def run(args: Any) -> None:
        try:
            work(args)
            terminal.end(RunFailed(f"NVFlare ended, as on a request over the network; see {kit.path / LOG}"))
        except KeyboardInterrupt:
            if ProcessContext.token:
                announce_leave(kit, ProcessContext.token)
            raise
        except (UserError, RunFailed) as error:
            terminal.end(error)
        except Exception as error:  # the boundary to NVFlare: every exception goes to the log
            logger.exception("NVFlare ended")
            message = (
                "the server did not admit this site" if "Login failed" in str(error) else "NVFlare ended unexpectedly"
            )
            terminal.end(RunFailed(f"{message} ({type(error).__name__}: {error}); see {kit.path / LOG}"))

    return run


def _limit_memory_and_log(*, at_server: bool) -> None:
    """Return unused memory of a server to the system, and rotate a large audit log, every minute.

    NVFlare's messages leave reference cycles: a few objects around a mebibyte each. Python searches for cycles by the
    number of objects, and would free these only after hundreds of them. The C library then returns free memory to the
    system where it can (glibc). NVFlare's audit log has a line per request and would grow without limit.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", int)
    while True:
        time.sleep(TRIMMED)
        if at_server:
            gc.collect()
            trim(0)
        if (auditor := AuditService.get_auditor()) is not None:
            rotate_audit_log(auditor)


AUDIT_LOG, OLDER = 5_000_000, 5
"""Bytes of the log from which it is rotated, and the number of older files that stay: ``audit.log.1`` is the newest."""


def rotate_audit_log(auditor: Auditor, largest: int = AUDIT_LOG, kept: int = OLDER) -> None:
    """Begin a new file if the log is large; NVFlare's lock keeps other threads from writing meanwhile."""
    with auditor._lock:
        file = auditor.audit_file
        if file is None or file.tell() < largest:
            return
        log = Path(file.name)
        file.close()
        try:
            for number in range(kept, 0, -1):
                older = _older_log(log, number - 1) if number > 1 else log
                if older.exists():
                    older.replace(_older_log(log, number))
        finally:
            auditor.audit_file = log.open("a")


def _older_log(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def _say_when_listening(port: int, terminal: Terminal) -> None:
    """Report that a server listens, or end it: NVFlare continues silently when it cannot listen."""
    process, until = psutil.Process(), time.monotonic() + LISTENING
    while not any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in process.net_connections("tcp")
    ):
        if time.monotonic() > until:
            terminal.end(RunFailed(f"cannot listen on port {port}; is another program using it?"))
        time.sleep(GONE)
    terminal.say(f"listening on port {port}, waiting for sites and runs")


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def end(pid: int) -> None:
    """End a process and all its descendants, by their ids; the process first, so that it reports none of their ends."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=10)


def _end_with(parent: int) -> None:
    """End this process with all its descendants when the parent ends."""
    while os.getppid() == parent:
        time.sleep(GONE)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(1)


if __name__ == "__main__":
    main()
