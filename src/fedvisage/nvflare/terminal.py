"""The terminal output of a server or site: a few lines. Output of NVFlare and OpenSSL goes to the kit's log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
class Terminal:
    """The output functions of a process, and its end, which NVFlare's threads would otherwise prevent."""

    say: Say
    complain: Say
    """Prints the reason for an unsuccessful end."""

    def end(self, error: UserError | RunFailed) -> NoReturn:
        """Print the reason, and end this process with all its descendants."""
        self.complain(str(error))
        self.leave(2 if isinstance(error, UserError) else 1)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Turn Ctrl-C and SIGTERM into a successful end."""
        try:
            yield
        except KeyboardInterrupt:
            self.say("stopped")
            self.leave(0)

    def leave(self, code: int) -> NoReturn:
        """End this process with all its descendants."""
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(code)


@contextmanager
def output_to_log(kit: Path, *, verbose: bool) -> Iterator[None]:
    """Send the output of this process and its children to the kit's log; with ``verbose`` show it instead.

    NVFlare also writes its own log to the kit, in both cases.
    """
    default = kit / "local" / DEFAULT
    if default.exists():  # otherwise the owner has a custom logging configuration
        config = read_json(default)
        root = config["loggers"]["root"]
        root["handlers"] = [name for name in root["handlers"] if verbose or name != SCREEN]
        write_json(kit / "local" / LOGGING, config)
    if verbose:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    log = os.open(kit / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(log)
