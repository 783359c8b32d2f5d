"""A process of a federation on this machine: it runs NVFlare's server or client from a kit.

It waits for runs, which have processes of their own, and so imports no torch.

Run as ``python -m fedvisage.nvflare.node KIT``. With ``--tied`` the process ends, with all its descendants, when its
parent ends: a rehearsal leaves nothing behind, however it ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.sec.audit import Auditor, AuditService

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.federation.secure.memory import ALLOW, PLAIN
from fedvisage.nvflare.admission import Admission, listen_with_admission
from fedvisage.nvflare.cells import SWITCH_INTERVAL, rules
from fedvisage.nvflare.cells.local_socket import DRIVERS, SCHEME, LocalSocketDriver
from fedvisage.nvflare.certificates import check, expiry_of, warning
from fedvisage.nvflare.greeting import address_in, announce_leave, wait_for_admission
from fedvisage.nvflare.kits import STARTUP, Kit, hold_directories, hold_port, open_kit, own_settings, state_directory
from fedvisage.nvflare.owner.policy import policy_path, read_policy
from fedvisage.nvflare.owner.record import SiteRecord
from fedvisage.nvflare.preparation import check_own_sets, prepare_server, prepare_site
from fedvisage.nvflare.terminal import LOG, Terminal, output_to_log
from fedvisage.nvflare.watching import ProcessContext
from fedvisage.tasks.checks import USUAL, Checks

logger = logging.getLogger("fedvisage.node")

MAKE = "`fedvisage site policy KIT` writes rules"

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
    path, terminal = Path(sys.argv[1]).resolve(), Terminal(_write, _write)
    if "--tied" in sys.argv[2:]:
        threading.Thread(target=_end_with, args=(os.getppid(), terminal), daemon=True).start()
    at_server = (path / "startup" / STARTUP["server"]).exists()
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
        admission.until[kit.name] = expiry_of(kit.credentials)
        listen_with_admission(admission, own_settings(kit.path))
        sys.setswitchinterval(SWITCH_INTERVAL)
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
        logs = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, kept + 1))]
        try:
            for newer, older in reversed(list(pairwise(logs))):
                if newer.exists():
                    newer.replace(older)
        finally:
            auditor.audit_file = log.open("a")


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


def _end_with(parent: int, terminal: Terminal) -> None:
    """End this process with all its descendants when the parent ends."""
    while os.getppid() == parent:
        time.sleep(GONE)
    terminal.leave(1)


# The functions behind `fedvisage server` and `fedvisage site`.


def start_server(
    kit: Path, state: Path | None, public: Path | None, weights: Path | None, terminal: Terminal, *, verbose: bool
) -> None:
    """Run the federation's server until stopped."""
    opened = open_kit(kit, "server")
    _check_credentials(opened, "server", terminal)
    port = address_in(opened).port
    with terminal.stoppable(), hold_directories(opened.path, state_directory(opened, state)), hold_port(port):
        prepare_server(opened, state, _entry(public), weights)
        serve_quietly(opened, terminal, verbose=verbose, port=port)


def start_site(
    kit: Path,
    data: Path,
    state: Path | None,
    public: Path | None,
    terminal: Terminal,
    *,
    verbose: bool,
    checks: Checks = USUAL,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
    require_secure: bool = False,
) -> None:
    """Run a site until stopped."""
    if require_secure and PLAIN in rosters:
        raise UserError("--require-secure", f"excludes {ALLOW} {PLAIN}; leave one of them out")
    opened = open_kit(kit, "site")
    _check_credentials(opened, opened.name, terminal)
    # The names of methods in the rules come with torch, which a waiting site must not hold.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        policy = pool.submit(read_policy, opened.path, opened.name).result()
    if policy is not None and "secure" in policy.require and PLAIN in rosters:
        fault = f"is secure, and {ALLOW} {PLAIN} was given; leave one of them out"
        raise UserError(f"{policy_path(opened.path)}: require", fault)
    with terminal.stoppable(), hold_directories(opened.path, state_directory(opened, state)):
        # All checks of this machine come before the first connection.
        SiteRecord(opened.path, state_directory(opened, state)).read()  # refuses one that was cut or edited
        if policy is None:
            terminal.say(f"note: {policy_path(opened.path)} does not exist, so this site accepts every run; {MAKE}")
        check_own_sets(opened, data, state, public, terminal.say, checks)
        prepare_site(opened, str(data.resolve()), state, _entry(public), weights, rosters, require_secure)
        for roster in rosters:
            runs = "runs without federation.secure" if roster == PLAIN else f"secure sums of {roster}"
            terminal.say(f"note: {runs} are allowed until the next start, whatever earlier runs did with this data")
        for line in wait_for_admission(opened, terminal.say).differences():
            terminal.say(line)
        serve_quietly(opened, terminal, verbose=verbose)


def _check_credentials(kit: Kit, called: str, terminal: Terminal) -> None:
    """Refuse invalid certificates, and print a warning if they end soon."""
    check(kit.credentials, kit.name)
    if line := warning(kit.credentials, called):
        terminal.say(line)


def _entry(directory: Path | None) -> str | None:
    return None if directory is None else str(directory.resolve())


if __name__ == "__main__":
    main()
