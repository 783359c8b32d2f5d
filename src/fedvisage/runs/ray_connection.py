"""The connection of this process to a Ray cluster, whose faults are one line each."""

from __future__ import annotations

import os
import signal
import socket

import ray
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError, RpcError

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.progress import Say

HEAD = "127.0.0.1:6379"
"""The address of a head node on this machine with Ray's usual port."""
GUIDE = "docs/scale.md shows how to start a cluster"


def connect(address: str | None, say: Say) -> tuple[str, int]:
    """Connect to a cluster, after checks that name the fault sooner than Ray does; return the head node's address."""
    address = address or os.environ.get("RAY_ADDRESS") or HEAD
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UserError(
            "--address",
            f"{address} is not HOST:PORT of a head node; for Ray's client (ray://) there is no support: run this on a "
            "node of the cluster",
        )
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError as error:
        raise UserError("--address", f"no cluster answers at {address} ({error.strerror or error}); {GUIDE}") from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        GcsClient(address=address)  # knows a wrong token at once; ray.init takes 20 seconds
        ray.init(address=address, namespace="fedvisage", log_to_driver=False, logging_level="ERROR")
    except AuthenticationError:
        raise UserError(
            "RAY_AUTH_TOKEN_PATH",
            f"the token of this process is missing or not that of the cluster at {address}; set RAY_AUTH_MODE=token, "
            "and RAY_AUTH_TOKEN_PATH to a copy of the head node's token",
        ) from None
    except (RpcError, ConnectionError, RuntimeError, ValueError) as error:
        fault = plain_line(str(error), 400)
        if "version" in fault.lower():
            raise UserError(
                "--address", f"the cluster has another version of Ray or Python: {fault}; install the same here"
            ) from None
        advice = f"run this on a node of the cluster, which `ray start --address={address}` makes of a machine"
        raise UserError("--address", f"{address} cannot be used from here; {advice} ({fault})") from None
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's handler would end the process without our line
    # Ray also prints the faults of nodes on standard output, where our lines name them.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if os.environ.get("RAY_AUTH_MODE") != "token":
        say("warning: the cluster has no token, so that anyone who reaches its ports can run code there; docs/scale.md")
    return host, int(port)
