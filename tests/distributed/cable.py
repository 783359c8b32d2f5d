"""A network cable that can be pulled: a site connects to the server through it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

from fedvisage.files import write_json


class Cable:
    """Passes bytes on between a port of its own and the server's, until it is cut."""

    def __init__(self, port: int) -> None:
        self._target, self._open, self._whole = port, list[socket.socket](), True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def plug_in(self, kit: Path) -> None:
        """Have a site's kit connect through the cable."""
        path = kit / "startup" / "fed_client.json"
        tree = json.loads(path.read_text())
        tree["servers"][0]["service"]["target"] = f"localhost:{self.port}"
        write_json(path, tree)

    def cut(self, seconds: float) -> None:
        """Break all connections, and let no new one through for some seconds."""
        self._whole = False
        for end in self._open:
            end.close()
        self._open.clear()
        threading.Timer(seconds, self._mend).start()

    def close(self) -> None:
        self._listener.close()

    def _mend(self) -> None:
        self._whole = True

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
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        end.close()
