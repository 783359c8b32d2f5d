"""The connection of this process to a Ray cluster, whose faults are one line each."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError, RpcError

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.progress import Say
from fedvisage.runs.cluster import token_path

HEAD = "127.0.0.1:6379"
"""The address of a head node on this machine with Ray's usual port."""
GUIDE = "docs/scale.md shows how to start a cluster"


@contextmanager
def silence_standard_error() -> Iterator[None]:
    """Drop the lines that Ray's libraries write on standard error themselves; ours replace them."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


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
    no_token = UserError(
        "RAY_AUTH_TOKEN_PATH",
        f"the token of this process is missing or not that of the cluster at {address}; set RAY_AUTH_MODE=token, and "
        "RAY_AUTH_TOKEN_PATH to a copy of the head node's token",
    )
    asks_for_token = os.environ.get("RAY_AUTH_MODE") == "token"
    if asks_for_token and "RAY_AUTH_TOKEN" not in os.environ and not token_path().is_file():
        raise no_token  # Ray would abort this process
    before = signal.getsignal(signal.SIGTERM)
    try:
        with silence_standard_error():
            GcsClient(address=address)  # knows a wrong token at once; ray.init takes 20 seconds
            ray.init(address=address, namespace="fedvisage", log_to_driver=False, logging_level="ERROR")
    except AuthenticationError:
        raise no_token from None
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
    if not asks_for_token:
        say("warning: the cluster has no token, so that anyone who reaches its ports can run code there; docs/scale.md")
    return host, int(port)
