"""One process for each kit, state directory and port; a second one is refused. The kernel lets go of a dead one's."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import locked


@contextmanager
def held(*directories: Path) -> Iterator[None]:
    """Hold directories; whichever is already held is named, with the process that holds it."""
    with ExitStack() as stack:
        for directory in dict.fromkeys(directory.resolve() for directory in directories):
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory))
        yield


@contextmanager
def port_held(port: int) -> Iterator[None]:
    """Hold a port until this process ends, and refuse one that anybody listens on.

    gRPC lets two servers listen on one port, and connections then go to either. Looking whether somebody listens is not
    enough for two that begin at one moment. So a name is taken as well, in Linux' abstract sockets: like a port it
    belongs to the machine (or container), and to one process at most. Elsewhere only looking is left.
    """
    with socket.socket(socket.AF_UNIX) if sys.platform == "linux" else ExitStack() as name:
        try:
            if isinstance(name, socket.socket):
                name.bind(f"\0fedvisage-port-{port}")
            with socket.socket() as probe:  # without SO_REUSEPORT, so that it finds whoever listens
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            raise RunFailed(f"port {port} is taken ({error.strerror}); is another server running on it?") from error
        yield
