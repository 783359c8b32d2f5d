"""A network cable that can be cut, jammed or slowed; a site connects to the server through it."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedvisage.base.files import write_json


class Cable:
    """Passes bytes between a port of its own and the server's."""

    def __init__(self, port: int) -> None:
        self._target, self._open, self._whole = port, set[socket.socket](), True
        self._free, self._delay = threading.Event(), 0.0
        self._free.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def plug_in(self, kit: Path) -> None:
        """Have a site's kit connect through the cable."""
        path = kit / "startup" / "fed_client.json"
        tree = json.loads(path.read_text())
        tree["servers"][0]["service"]["target"] = f"localhost:{self.port}"
        write_json(path, tree)

    def reset(self) -> None:
        """Break all connections; new ones are let through."""
        for end in list(self._open):
            _close(end)

    def cut(self, seconds: float | None = None) -> None:
        """Break all connections, and let no new one through for some seconds, or until the cable is mended."""
        self._whole = False
        self.reset()
        _call_after(seconds, self._mend)

    def jam(self, seconds: float | None = None) -> None:
        """Keep all connections, and let nothing through until then, as a firewall that forgot them would."""
        self._free.clear()
        _call_after(seconds, self._free.set)

    def slow(self, seconds: float | None = None, delay: float = 0.1) -> None:
        """Hold back each piece for a moment, until then."""
        self._delay = delay
        _call_after(seconds, self._quicken)

    def mend(self) -> None:
        """Undo a cut, a jam and delays."""
        self._mend()
        self._free.set()
        self._quicken()

    def close(self) -> None:
        self._listener.close()

    def _mend(self) -> None:
        self._whole = True

    def _quicken(self) -> None:
        self._delay = 0.0

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._whole:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._free.wait()
                if self._delay:
                    time.sleep(self._delay)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            _close(end)
            self._open.discard(end)


def _call_after(seconds: float | None, change: Callable[[], None]) -> None:
    """Call a function after some seconds, or never."""
    if seconds is not None:
        threading.Timer(seconds, change).start()


def _close(end: socket.socket) -> None:
    """Close both ways, so that a waiting ``recv`` returns."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
