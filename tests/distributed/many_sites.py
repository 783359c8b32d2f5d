"""Two hundred sites at one server: ``python -m tests.distributed.many_sites DIRECTORY``.

Streams, certificates, orders and replies are real; the members' computations are not. The server is in this process.
NVFlare keeps the cells of a process in a table, so a process with a server cannot be the operator of another
federation.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import torch
from nvflare.collab.api.exceptions import CollabCallError
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from tests.distributed.light import CHANNEL, LIMITS, TOPIC, cell_of

from fedvisage.federation.wire.message import Order
from fedvisage.nvflare import bounds
from fedvisage.nvflare.admission import Admission, AdmissionListener, listen_with_admission
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.cells import SWITCH_INTERVAL
from fedvisage.nvflare.kits import own_settings
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.nvflare.transport import CollabTransport
from fedvisage.recipe import Federation

SITES, PROCESSES = 200, 4
NAMES = tuple(f"site-{number}" for number in range(SITES))


class Proxy:
    """NVFlare's end of a site, as its collab API has it: one call, one request of the server's cell."""

    def __init__(self, name: str, cell: Cell) -> None:
        self.name, self.cell, self.timeout = name, cell, 0.0

    def __call__(self, timeout: float) -> Self:
        self.timeout = timeout
        return self

    def restore(self, generation: int) -> dict[str, Any]:
        return {"words": {"ticket": ""}, "tensors": {}}

    def carry_out(self, order: dict[str, Any]) -> object:
        request = new_cell_message({}, order)
        reply = self.cell.send_request(
            channel=CHANNEL, target=f"{self.name}.run", topic=TOPIC, request=request, timeout=self.timeout
        )
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
            raise CollabCallError(self.name, "carry_out", str(reply.headers))
        return reply.payload


@contextmanager
def federation(kits: Path) -> Iterator[tuple[Cell, Admission]]:
    """Start a server that listens as ``fedvisage server`` does, and its members."""
    port = free_port()
    content = {
        "server": {"host": "localhost", "port": port},
        "operator": {"email": "operator@example.org"},
        "sites": {name: {"organisation": "member"} for name in NAMES},
    }
    provision(FederationFile.model_validate(content), kits)
    bounds.install()
    sys.setswitchinterval(SWITCH_INTERVAL)
    admission = Admission(kits / "server", lambda text: None)
    admission.read()
    listen_with_admission(admission, own_settings(kits / "server"))
    server = cell_of("server", port, kits / "server" / "startup", "server")
    bounds.limit([LIMITS], server)
    server.start()
    share, members = SITES // PROCESSES, list[subprocess.Popen[bytes]]()
    for first in range(0, SITES, share):
        command = [
            sys.executable,
            "-m",
            "tests.distributed.light",
            str(kits),
            str(port),
            str(first),
            str(first + share),
        ]
        members.append(subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]))
    try:
        yield server, admission
    finally:
        for member in members:
            member.kill()
            member.wait()
        server.stop()
        AdmissionListener.admission = None


def main() -> None:
    """Send two rounds of orders to all sites, and check all replies."""
    with federation(Path(sys.argv[1]) / "kits") as (server, admission):
        began = time.monotonic()
        while {*NAMES, *(f"{name}.run" for name in NAMES)} - set(server.core_cell.agents):
            time.sleep(0.1)
        print(f"{SITES} sites connected: {time.monotonic() - began:.1f} s")
        assert set(NAMES) <= admission.until.keys(), "each with its own certificate"
        proxies = [Proxy(name, server) for name in NAMES]
        transport = CollabTransport(NAMES, proxies, Federation(deadline=120.0), lambda: False)
        transport.restore(dict.fromkeys(NAMES, 0))
        weights = {"model.weight": torch.zeros(64, 64), "model.bias": torch.zeros(64)}
        for number in (1, 2):
            orders = {name: Order("train", number, weights, 1, f"{name} {number}") for name in NAMES}
            began = time.monotonic()
            replies = list(transport.call(orders))
            seconds = time.monotonic() - began
            assert [reply.site for reply in replies] == sorted(NAMES)
            failures = {reply.site: reply.failure for reply in replies if reply.failure or reply.message is None}
            assert not failures, failures
            assert all(reply.ticket == f"{reply.site} {number}" for reply in replies)
            assert all(
                torch.equal(reply.message["model.bias"], weights["model.bias"] + number)
                for reply in replies
                if reply.message is not None
            )
            print(f"round {number}, {len(replies)} replies: {seconds:.1f} s", flush=True)
        print(f"memory of the server: {psutil.Process().memory_full_info().pss / 2**20:.0f} MiB")
        transport.close()


if __name__ == "__main__":
    main()
