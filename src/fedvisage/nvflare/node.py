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
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from nvflare.fuel.f3.mpm import MainProcessMonitor

from fedvisage.errors import RunFailed, UserError
from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import expires, papers_in
from fedvisage.nvflare.front import LOG, Front, hushed
from fedvisage.nvflare.guarding import guard
from fedvisage.nvflare.holding import held
from fedvisage.nvflare.kits import STARTUP, Kit, open_kit, own_settings
from fedvisage.nvflare.watching import Post

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
