"""Messages of a hostile member to other members and to the server: false names, other channels, forged headers.

A case passes one message through the checks of the server and of the destination cell, and compares an accepted message
with those of a recorded run. Administration requests to a site vary in topic and job.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Case, Rejected, WronglyAccepted, pick
from nvflare.private.admin_defs import Message
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fedvisage.nvflare.cells.rules import CheckedProcessor, fault

JOB = "0f0c5a3e-8f43-4d6b-9f53-1b6c5d0f6a11"
OPERATOR = "_admin_5a1d4a4e-93b5-4a58-8a0e-0d0a6f5b8c52"
FROM_SITE = {
    ("server", channel, topic)
    for channel, topic in (
        *(("task", topic) for topic in ("challenge", "register", "heart_beat", "report_job_failure", "quit")),
        ("cellnet.channel", "bye"),
    )
} | {
    (f"server.{JOB}", channel, topic)
    for channel, topic in (
        ("server_command", "get_task"),
        ("server_command", "submit_update"),
        *(("aux_communication", f"__{topic}__") for topic in ("sync_runner", "task_check", "job_heartbeat")),
        ("cellnet.channel", "bye"),
    )
}
"""The requests of a site: destination, channel and topic, beside replies in streams and downloads."""

NAMES = ("border", f"border.{JOB}", "bank", f"bank.{JOB}", "server", f"server.{JOB}", OPERATOR, "border.bank")
ODD: tuple[Any, ...] = (
    "Bank",
    " bank",
    "bank ",
    "server.",
    ".bank",
    "bank..x",
    "bänk",
    "bank\n",
    "server\0",
    "",
    "*",
    None,
    0,
    [],
    {},
)
CHANNELS = (
    *("admin", "task", "server_command", "server_parent_listener", "client_command", "client_sub_worker_command"),
    *("aux_communication", "return_only", "hci_channel", "cellnet.channel", "_net_manager", "credential_manager"),
    *("collab", "download_service__", "sm__STREAM", "edge_request", "*", "admin:*", ""),
)
TOPICS = (
    *("admin", "abort", "shutdown", "stop", "bulk", "bye", "call", "command", "get_task", "register", "heartbeat"),
    *("update_run_status", "sm__DATA", "sm__ACK", "sm__ERROR", "__end_run__", "*", "fed.event"),
)
ADMINISTRATION = frozenset(
    {
        "scheduler.check_resource",
        "train.deploy",
        "train.start_job",
        "train.check_status",
        "train.notify_job_status",
        "train.abort",
    }
)
JOBS = (
    JOB,
    JOB,
    JOB.upper(),
    JOB.replace("-", ""),
    f"../{JOB}",
    "../startup",
    "startup",
    "state",
    ".",
    "/",
    "",
    None,
    1,
)


class Members:
    """The cells of the server and of sites, by their names."""

    def __init__(self, prepared: Path) -> None:
        """Prepare nothing."""

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Create one message, or one administration request."""
        if draws.random() < 0.2:
            topic, job = pick(draws, _topics()), pick(draws, JOBS)
            return Case(["administration", topic, str(job)], partial(_check_administration, topic, job))
        sender = pick(draws, ("border", f"border.{JOB}", "border", OPERATOR))
        destination, channel, topic = pick(draws, sorted(FROM_SITE))
        headers: dict[str, Any] = {
            "cn__origin": sender,
            "cn__destination": destination,
            "cn__channel": channel,
            "cn__topic": topic,
            "cn__msg_type": "req",
        }
        if draws.random() < 0.4:
            headers |= {"sm__ch": channel, "sm__tp": topic, "cn__channel": "sm__STREAM", "cn__topic": "sm__DATA"}
        changes = [sender, *(pick(draws, MUTATIONS)(headers, draws) for _ in range(int(draws.integers(0, 4))))]
        return Case(changes, partial(_check_message, sender, headers))


def _topics() -> list[str]:
    return [topic for processor in ClientRequestProcessors.request_processors for topic in processor.get_topics()]


def _header_mutation(key: str, values: tuple[Any, ...]) -> Callable[[dict[str, Any], np.random.Generator], str]:
    def set_header(headers: dict[str, Any], draws: np.random.Generator) -> str:
        headers[key] = pick(draws, values)
        return f"{key} {headers[key]!r}"

    return set_header


MUTATIONS = (
    _header_mutation("cn__origin", NAMES),
    _header_mutation("cn__origin", ODD),
    _header_mutation("cn__destination", NAMES),
    _header_mutation("cn__destination", NAMES),
    _header_mutation("cn__destination", ODD),
    _header_mutation("cn__channel", (*CHANNELS, *ODD)),
    _header_mutation("cn__channel", CHANNELS),
    _header_mutation("cn__topic", (*TOPICS, *ODD)),
    _header_mutation("sm__ch", (*CHANNELS, *ODD)),
    _header_mutation("sm__tp", (*TOPICS, *ODD)),
    _header_mutation("cn__msg_type", ("reply", "return", "REQ", *ODD)),
    _header_mutation("cn__conn_url", ("tcp://192.0.2.1:1", "", None)),
    _header_mutation("cn__from", NAMES),
    _header_mutation("cn__to", NAMES),
)


def _check_message(sender: str, headers: dict[str, Any]) -> None:
    """Send a message to the server and on to its destination; check that an arriving message is harmless."""
    if reason := fault("server", sender, headers, is_local=False, is_operator=False):
        raise Rejected(ascii(reason))
    destination, origin = headers["cn__destination"], headers["cn__origin"]
    if destination not in ("server", f"server.{JOB}"):
        raise WronglyAccepted(f"the server forwards it to {destination!r}")
    if destination != "server" and (reason := fault(destination, "server", headers, is_local=True, is_operator=False)):
        raise Rejected(ascii(reason))
    if origin not in ("border", f"border.{JOB}", "border.bank") or "cn__conn_url" in headers or sender == OPERATOR:
        raise WronglyAccepted(f"{sender} is accepted as {origin!r}")
    channel, topic = headers["cn__channel"], headers["cn__topic"]
    if (channel, topic) == ("sm__STREAM", "sm__DATA"):
        channel, topic = headers["sm__ch"], headers["sm__tp"]
    is_reply = headers["cn__msg_type"] != "req" or (channel == "sm__STREAM" and topic in ("sm__ACK", "sm__ERROR"))
    is_answer = destination != "server" and channel in ("return_only", "download_service__")
    if not is_reply and not is_answer and (destination, channel, topic) not in FROM_SITE:
        raise WronglyAccepted(f"{channel!r}/{topic!r} reaches {destination}")


def _check_administration(topic: str, job: object) -> None:
    """Send an administration request to a site, as its server would."""
    processors = map(CheckedProcessor, ClientRequestProcessors.request_processors)
    processor = next((each for each in processors if topic in each.get_topics()), None)
    if processor is None:
        raise Rejected(f"{topic} is not listed")
    request = Message(topic, "")
    request.set_header("job_id", job)
    try:
        reply = processor.process(request, None)
    except (TypeError, ValueError, AttributeError):  # NVFlare's processor was reached, and has no engine
        reply = None
    if reply is not None and reply.body == "invalid job id":
        raise Rejected(f"{topic}: {reply.body}")
    if topic not in ADMINISTRATION:
        raise WronglyAccepted(f"a site does {topic}")
    if topic != "train.check_status" and not (isinstance(job, str) and str(uuid.UUID(job)) == job):
        raise WronglyAccepted(f"a site does {topic} for {job!r}")
