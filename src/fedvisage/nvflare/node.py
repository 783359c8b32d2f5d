"""One process of a federation on this machine: NVFlare's server or client, started from a kit.

Run as ``python -m fedvisage.nvflare.node KIT``. With ``--tied`` it ends, with all that it started, when the
process that started it ends: a rehearsal leaves nothing behind, however it ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path

import psutil

from fedvisage.nvflare.kits import STARTUP, open_kit, own_settings

SERVER, SITE = "nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"
GONE = 0.5
"""Seconds between two looks at whether the parent is still there."""


def main() -> None:
    """Become NVFlare's process."""
    kit, tied = Path(sys.argv[1]).resolve(), "--tied" in sys.argv[2:]
    if tied:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve(kit)


def serve(kit: Path) -> None:
    """Run NVFlare's server or client in this process, until it ends."""
    (kit / "transfer").mkdir(exist_ok=True)
    at_server = (kit / "startup" / STARTUP["server"]).exists()
    module, file = (SERVER, STARTUP["server"]) if at_server else (SITE, STARTUP["site"])
    words = ["secure_train=true", "config_folder=config", f"org={own_settings(kit)['organisation']}"]
    if not at_server:
        words.append(f"uid={open_kit(kit, 'site').name}")
    sys.argv = [module, "-m", str(kit), "-s", file, "--set", *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


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
