"""Messages of a hostile member or server, sent from the inside of its real process, with all that NVFlare adds to them.

``HOSTILE`` names the cell that attacks and the file of its attacks: a process that has this cell carries them out.
"""

import base64
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

JOB = "6f1d3c52-8a40-4c1b-9d5e-2b7f90a1c3e4"
NEEDED = {
    "scheduler.check_resource",
    "train.deploy",
    "train.start_job",
    "train.check_status",
    "train.notify_job_status",
    "train.abort",
}
"""The requests of the server that runs need."""

ROOT = Path(__file__).parents[2]
TIMEOUT = 4.0
"""Seconds that an attack waits for a reply."""


@contextmanager
def hostile_environment(cell: str, attacks: list[dict[str, Any]], place: Path) -> Iterator[Path]:
    """Have the processes that start meanwhile attack as this cell; return the file of the results."""
    place.mkdir()
    (place / "sitecustomize.py").write_text("import tests.distributed.attacks\ntests.distributed.attacks.begin()\n")
    (place / "attacks.json").write_text(json.dumps(attacks))
    before = os.environ.copy()
    source = os.pathsep.join((str(place), str(ROOT), *before.get("PYTHONPATH", "").split(os.pathsep)))
    os.environ |= {"HOSTILE": f"{cell}:{place}", "PYTHONPATH": source}
    try:
        yield place / "results.json"
    finally:
        os.environ.clear()
        os.environ.update(before)


def begin() -> None:
    """Attack once the cell of the environment is up in this process, and NVFlare has logged in."""
    threading.Thread(target=_attack_when_up, daemon=True).start()


def _attack_when_up() -> None:
    cell_name, _, place = os.environ["HOSTILE"].partition(":")
    while (module := sys.modules.get("nvflare.fuel.f3.cellnet.core_cell")) is None or not hasattr(module, "CoreCell"):
        time.sleep(0.2)
    while (cell := module.CoreCell.ALL_CELLS.get(cell_name)) is None:
        time.sleep(0.2)
    go = Path(place) / "go"
    while not go.exists():
        time.sleep(0.2)
    attacks = json.loads((Path(place) / "attacks.json").read_text())
    cell.add_outgoing_request_filter("*", "*", _forge)
    results = dict[str, str]()
    with ThreadPoolExecutor(16) as pool:
        for phase in sorted({attack.get("phase", 0) for attack in attacks}):
            at_once = [attack for attack in attacks if attack.get("phase", 0) == phase]
            replies = pool.map(partial(_carry_out, cell), at_once)
            results |= {attack["name"]: reply for attack, reply in zip(at_once, replies, strict=True)}
    (Path(place) / "results.json.new").write_text(json.dumps(results))
    (Path(place) / "results.json.new").rename(Path(place) / "results.json")


def _forge(message: Any) -> None:
    """Write the headers that an attack states, after NVFlare has written its own."""
    for name, value in (message.headers.pop("forged", None) or {}).items():
        message.set_header(name, value)


def _carry_out(cell: Any, attack: dict[str, Any]) -> str:
    """Send one message, and return what came back."""
    admin, messages = (importlib.import_module(f"nvflare.{name}") for name in ("private.admin_defs", "fuel.f3.message"))
    listener = importlib.import_module("socket").create_server(("127.0.0.1", 0)) if attack.get("listens") else None
    payload = attack.get("payload")
    if attack.get("reserves"):
        payload = _start(cell, admin, messages, attack)
    elif "topic_in_body" in attack:
        payload = admin.Message(attack["topic_in_body"], base64.b64decode(attack.get("body", "")))
        payload.set_headers(attack.get("body_headers", {}))
    forged = dict(attack.get("forged", {}))
    if listener is not None:
        forged["cn__conn_url"] = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    request = messages.Message({"forged": forged}, payload)
    reply = cell.send_request(attack["channel"], attack["topic"], attack["target"], request, timeout=TIMEOUT)
    if listener is not None:
        listener.settimeout(TIMEOUT)
        try:
            listener.accept()[0].close()
        except TimeoutError:
            return "timeout"
        return "was connected to"
    code = str(reply.get_header("cn__return_code"))
    return f"{code}: {getattr(reply.payload, 'body', reply.payload)}" if code == "ok" else code


def _start(cell: Any, admin: Any, messages: Any, attack: dict[str, Any]) -> Any:
    """Return a request to start a job, after a site has reserved what it needs, as NVFlare's server does."""
    check = admin.Message("scheduler.check_resource", {})
    check.set_headers(attack["body_headers"])
    reply = cell.send_request("admin", "admin", attack["target"], messages.Message({}, check), timeout=TIMEOUT)
    start = admin.Message("train.start_job", {})
    token = reply.payload.body.get_header("_resource_reserve_token") if reply.payload else None
    start.set_headers(attack["body_headers"] | {"_resource_reserve_token": token})
    return start
