"""What a person sees of a server or site: a few lines. All that NVFlare and OpenSSL say goes to the kit's log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Say

LOG = "log.txt"
"""NVFlare's log in a kit."""

LOGGING, DEFAULT = "log_config.json", "log_config.json.default"
SCREEN = "consoleHandler"


@dataclass(frozen=True)
class Front:
    """What is told, and how a process ends that NVFlare's threads would keep alive."""

    say: Say
    complain: Say
    """Says why the process ends badly."""

    def end(self, error: UserError | RunFailed) -> NoReturn:
        """Say why, and end this process with all that it started."""
        self.complain(str(error))
        self.leave(2 if isinstance(error, UserError) else 1)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turn Ctrl-C into an end on request."""
        try:
            yield
        except KeyboardInterrupt:
            self.say("stopped")
            self.leave(0)

    def leave(self, code: int) -> NoReturn:
        """End this process with all that it started."""
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(code)


@contextmanager
def hushed(kit: Path, *, verbose: bool) -> Iterator[None]:
    """Send what this process and its children write to the kit's log; with ``verbose`` to the screen as well."""
    _screen(kit, shown=verbose)
    if verbose:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    log = os.open(kit / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), kept, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(log)


def _screen(kit: Path, *, shown: bool) -> None:
    """Have NVFlare log to its files, and to the screen only where it is shown."""
    default = kit / "local" / DEFAULT
    if not default.exists():
        return  # the owner has a logging of their own
    tree = read_json(default)
    root = tree["loggers"]["root"]
    root["handlers"] = [name for name in root["handlers"] if shown or name != SCREEN]
    write_json(kit / "local" / LOGGING, tree)
