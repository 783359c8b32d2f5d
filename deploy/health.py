"""Says by its exit code whether the process of a kit is there, and of a server whether it takes connections.

Called every few seconds by a container's health check, so it imports nothing heavy. A kit is in use while its file
``.lock`` is locked; the kernel lets go of it when the process dies. A site that waits for its server is healthy: to
start it again would mend nothing.
"""

import fcntl
import json
import socket
import sys
from pathlib import Path

SECONDS = 5.0


def trouble(kit: Path) -> str:
    """Return what is wrong; nothing if nothing is."""
    try:
        with (kit / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _closed(kit / "startup" / "fed_server.json")
    except OSError as error:
        return f"{kit}: no process has used this kit ({error.strerror})"
    return f"{kit}: no process uses this kit"


def _closed(settings: Path) -> str:
    """Say that a server does not listen."""
    if not settings.exists():
        return ""  # a site listens nowhere
    port = int(json.loads(settings.read_text())["servers"][0]["service"]["target"].rpartition(":")[2])
    try:
        socket.create_connection(("127.0.0.1", port), SECONDS).close()
    except OSError as error:
        return f"port {port} takes no connection ({error})"
    return ""


if __name__ == "__main__":
    sys.exit(trouble(Path(sys.argv[1])) or 0)
