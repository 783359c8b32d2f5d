"""Locks: one process per kit, state directory and port. The kernel releases the locks of a dead process."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import lock_directory


@contextmanager
def hold_directories(*directories: Path) -> Iterator[None]:
    """Hold directories; the error for a directory that is already held names the process that holds it."""
    with ExitStack() as stack:
        for directory in dict.fromkeys(directory.resolve() for directory in directories):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_directory(directory))
        yield


@contextmanager
def hold_port(port: int) -> Iterator[None]:
    """Hold a port, and refuse a port with another listener.

    gRPC lets two servers listen on one port, and connections then go to either. A check for a listener is not enough
    for two servers that start at the same moment. So this function also takes a name in Linux' abstract sockets: like a
    port it belongs to the machine (or container), and to one process at most. Other systems only have the check.
    """
    with socket.socket(socket.AF_UNIX) if sys.platform == "linux" else ExitStack() as name_socket:
        try:
            if isinstance(name_socket, socket.socket):
                name_socket.bind(f"\0fedvisage-port-{port}")
            with socket.socket() as probe:  # without SO_REUSEPORT, so that it detects any listener
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            raise RunFailed(
                f"port {port} is already in use ({error.strerror}); is another server running on it?"
            ) from error
        yield
