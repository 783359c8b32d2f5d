"""The connection between a kit's process and its processes of jobs: a socket that only the kit's owner can open.

NVFlare's own choice is a port without encryption on 127.0.0.1, which every user of the machine can connect to.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import quote, unquote

from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection

SCHEME = "local"
DRIVERS = Path(__file__).parent / "drivers"
"""The folder from which NVFlare loads the driver, in processes of jobs as well."""


class _Listener(ThreadingUnixStreamServer):
    """The listening end, with what NVFlare's handler of connections reads."""

    daemon_threads = True
    ssl_context = None

    def __init__(self, driver: BaseDriver, connector: ConnectorInfo, path: str) -> None:
        self.driver, self.connector = driver, connector
        super().__init__(path, ConnectionHandler)


class LocalSocketDriver(BaseDriver):  # type: ignore[misc]
    """NVFlare's driver for a Unix socket in a kit's directory."""

    path = Path()
    """Set before a kit's process begins; NVFlare makes drivers without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._server: ThreadingUnixStreamServer | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        """Return the scheme of our addresses."""
        return [SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Return that the driver has heartbeats, and no encryption."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """Return the address to connect to, and that to listen at."""
        url = f"{scheme}://kit{quote(str(LocalSocketDriver.path))}"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        """Accept connections of the processes of jobs, until the driver shuts down."""
        self.connector = connector
        path = Path(unquote(connector.params[DriverParams.PATH.value]))
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)  # a process that was killed leaves it; the kit belongs to one process at a time
        with _Listener(self, connector, _shortest(path)) as self._server:
            self._server.serve_forever()

    def connect(self, connector: ConnectorInfo) -> None:
        """Connect to the kit's process, and read until the end."""
        self.connector = connector
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(_shortest(Path(unquote(connector.params[DriverParams.PATH.value]))))
            connection = SocketConnection(end, connector)
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    def shutdown(self) -> None:
        """Close all connections, and stop listening."""
        self.close_all()
        if self._server is not None:
            self._server.shutdown()


def _shortest(path: Path) -> str:
    """Return the shortest form of a path, because a socket's may have about 100 characters.

    NVFlare's processes work in the kit's directory, so that the relative path is always short enough.
    """
    return min(str(path), os.path.relpath(path), key=len)
