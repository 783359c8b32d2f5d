"""Members that only speak the protocol: ``python -m tests.distributed.light KITS PORT FIRST LAST``.

A process of a real site needs the memory of torch, so that a machine has room for a few. Here one process holds many
members. Each has its own certificate and the two streams of a site in a run, one of its kit and one of the run, and
answers orders by NVFlare's coder with what a site of the smallest network would send.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import torch
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from fedvisage.federation.wire.schema import MessageLimits
from fedvisage.nvflare import bounds, transport
from fedvisage.nvflare.cells import SWITCH_INTERVAL

CHANNEL, TOPIC = "light", "order"
LIMITS = MessageLimits(tensors=4, size=1 << 20, largest=1 << 20)


def cell_of(name: str, port: int, startup: Path, stem: str) -> Cell:
    """Connect to the server, or listen as it, with a kit's certificate."""
    side = {
        "server": (DriverParams.SERVER_CERT, DriverParams.SERVER_KEY),
        "client": (DriverParams.CLIENT_CERT, DriverParams.CLIENT_KEY),
    }[stem]
    credentials = {
        DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
        side[0].value: str(startup / f"{stem}.crt"),
        side[1].value: str(startup / f"{stem}.key"),
    }
    return Cell(
        fqcn=name,
        root_url=f"grpc://localhost:{port}",
        secure=True,
        credentials=credentials,
        create_internal_listener=False,
    )


def answer(request: Any) -> Any:
    """Answer an order with its weights, moved a little."""
    order = transport.unpack_order(request.payload)
    reply = {name: value + order.round for name, value in order.message.items()}
    return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, transport.pack_reply(reply, order.ticket))


def main() -> None:
    """Hold members until the process that started this one ends its input."""
    kits, port, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL)  # fifty members share this process
    bounds.install()
    for number in range(first, last):
        name = f"site-{number}"
        for cell in (
            cell_of(name, port, kits / "sites" / name / "startup", "client"),
            cell_of(f"{name}.run", port, kits / "sites" / name / "startup", "client"),
        ):
            bounds.limit([LIMITS], cell)
            cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=answer)
            threading.Thread(target=cell.start, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
