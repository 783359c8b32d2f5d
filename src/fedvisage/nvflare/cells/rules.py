"""Rules for messages between cells: members reach the server alone, and the server alone gives sites orders.

NVFlare calls the processes of a federation cells: ``server`` and ``bank``, and ``server.JOB`` and ``bank.JOB`` for each
job. It forwards a message between any two cells, believes the origin that the message states, and lets every origin
administer a site. So each cell checks a message before NVFlare forwards, decodes or answers it. What a cell accepts is
a closed list. The name of the neighbour that sent or forwarded a message is authentic: NVFlare compares it with the
certificate of a connection, and only the owner of a kit can connect to its local socket.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames, ReservedTopic, ServerCommandNames
from nvflare.collab.runtime.dispatch import MSG_CHANNEL, MSG_TOPIC
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.file_transfer_defs import PULL_FOLDER_FQN, PUSH_FOLDER_FQN
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fedvisage.base.errors import RunFailed, plain_line
from fedvisage.base.progress import Say, discard
from fedvisage.nvflare.cells.local_socket import LocalSocketDriver

logger = logging.getLogger("fedvisage.cells")

SERVER = "server"
OPERATOR_SHOWN = "fedvisage_operator"
"""Key among a connection's properties: whether its certificate belongs to an operator or a viewer."""

NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
REPLIES = (MessageType.REPLY, MessageType.RETURN)

DOWNLOADS = "download_service__"
BYE = {CellChannel.CELLNET: frozenset({CellChannelTopic.Bye})}
ANY = None
"""Any topic of a channel, or any channel of a pair of cells."""

Topics = frozenset[str] | None

REQUESTS: Mapping[tuple[str, str], Mapping[str, Topics] | None] = {
    ("site", "server"): BYE
    | {
        CellChannel.SERVER_MAIN: frozenset(
            {
                CellChannelTopic.Challenge,
                CellChannelTopic.Register,
                CellChannelTopic.HEART_BEAT,
                CellChannelTopic.REPORT_JOB_FAILURE,
                CellChannelTopic.Quit,
            }
        )
    },
    ("site job", "server"): BYE,
    ("site job", "server job"): BYE
    | {
        CellChannel.SERVER_COMMAND: frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE}),
        CellChannel.AUX_COMMUNICATION: frozenset(
            {ReservedTopic.SYNC_RUNNER, ReservedTopic.JOB_HEART_BEAT, ReservedTopic.TASK_CHECK}
        ),
        CellChannel.RETURN_ONLY: ANY,
        DOWNLOADS: ANY,
    },
    ("operator", "server"): BYE
    | dict.fromkeys(
        (CellChannel.HCI, CellChannel.SERVER_MAIN, CellChannel.AUX_COMMUNICATION, CellChannel.RETURN_ONLY, DOWNLOADS)
    ),
    ("server", "site"): BYE | {CellChannel.CLIENT_MAIN: ANY},
    ("server", "site job"): BYE,
    ("server job", "site"): {},
    ("server job", "site job"): BYE
    | {
        MSG_CHANNEL: frozenset({MSG_TOPIC}),
        CellChannel.AUX_COMMUNICATION: frozenset({ReservedTopic.END_RUN, ReservedTopic.ABORT_ASK}),
        CellChannel.RETURN_ONLY: ANY,
        DOWNLOADS: ANY,
    },
    ("site job", "site"): BYE | {CellChannel.CLIENT_MAIN: ANY},
    ("site", "site job"): BYE | {CellChannel.CLIENT_COMMAND: ANY},
    ("server", "server job"): ANY,
    ("server job", "server"): ANY,
}
"""The requests from one kind of cell to another, by channel and topic; replies go the other way. There are none between
sites, nor between operators and sites. A cell may send all to another cell of the server."""


def fault(own: str, sender: str, headers: Mapping[str, Any], *, is_local: bool, is_operator: bool) -> str | None:
    """Return the reason why a cell drops a message of a neighbour, or None."""
    origin, destination = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
    if not (isinstance(origin, str) and NAME.fullmatch(origin)):
        return "it has no valid origin"
    if not (isinstance(destination, str) and NAME.fullmatch(destination)):
        return "it has no valid destination"
    here, neighbour, ends = _root(own), _root(sender), {_root(origin), _root(destination)}
    if is_local != (neighbour == here) or is_operator != (_kind(sender) == "operator"):
        return f"its sender is not {sender}"
    if own.startswith(f"{sender}."):
        is_authentic = True  # our parent has checked it
    elif sender == SERVER:
        is_authentic = _root(origin) == SERVER
    else:
        is_authentic = origin == sender or origin.startswith(f"{sender}.")
    if not is_authentic:
        return f"it states the origin {origin}"
    if MessageHeaderKey.CONN_URL in headers:
        return "it names an address to connect to"
    is_on_its_way = SERVER in ends if here == SERVER else ends <= {here, SERVER}
    if not is_on_its_way or not _is_listed(headers, _kind(origin), _kind(destination)):
        what = ", ".join(str(part) for part in _request(headers))
        return f"{origin} may not send it to {destination} ({what})"
    return None


def _is_listed(headers: Mapping[str, Any], origin: str, destination: str) -> bool:
    """Return whether one kind of cell may send this request or reply to another."""
    (channel, topic), kind = _request(headers), headers.get(MessageHeaderKey.MSG_TYPE)
    if kind in REPLIES or (channel == STREAM_CHANNEL and topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)):
        return (origin, destination) in REQUESTS or (destination, origin) in REQUESTS
    channels = REQUESTS.get((origin, destination), {})
    if kind != MessageType.REQ or not isinstance(channel, str) or not isinstance(topic, str):
        return False
    if channels is None:
        return True
    topics = channels.get(channel, frozenset())
    return topics is None or topic in topics


def _request(headers: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the channel and topic of a message, or of the stream that it belongs to."""
    channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
    if channel == STREAM_CHANNEL and topic == STREAM_DATA_TOPIC:
        return headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
    return channel, topic


def _root(name: str) -> str:
    return name.partition(".")[0]


def _kind(name: str) -> str:
    """Return the kind of a cell."""
    if is_valid_admin_client_name(name):
        return "operator"
    return ("server" if _root(name) == SERVER else "site") + (" job" if "." in name else "")


MOST_REPORTED, LONGEST = 100, 300
"""Faults that a process reports, because a member could invent ever new ones, and characters of each."""

_process_message = CoreCell.process_message


def install(say: Say = discard) -> None:
    """Have all cells of this process drop messages against the rules, and report each fault once."""
    reported = set[str]()

    def check_and_process(cell: Any, endpoint: Any, connection: Any, app: int, message: Any) -> None:
        own, sender = cell.my_info.fqcn, str(endpoint.name)
        if sender != own:  # else a cell sends to itself
            is_local = isinstance(connection.connector.driver, LocalSocketDriver)
            is_operator = bool(connection.get_conn_properties().get(OPERATOR_SHOWN))
            reason = fault(own, sender, message.headers or {}, is_local=is_local, is_operator=is_operator)
            if reason is not None:
                line = plain_line(f"dropped a message from {sender}: {reason}", LONGEST)
                if line not in reported and len(reported) < MOST_REPORTED:
                    reported.add(line)
                    logger.warning("%s", line)
                    say(line)
                return
        _process_message(cell, endpoint, connection, app, message)

    CoreCell.process_message = check_and_process


# Administration at a site. The topic and the id of the job are in the body of a message, so NVFlare's processors are
# what can check them, whichever way a message came.


ADMINISTRATION = frozenset(
    {
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.DEPLOY,
        TrainingTopic.START_JOB,
        TrainingTopic.CHECK_STATUS,
        TrainingTopic.NOTIFY_JOB_STATUS,
        TrainingTopic.ABORT,
    }
)
"""The topics that a run needs: NVFlare answers others, such as a shutdown, as invalid requests."""


def is_job_id(name: object) -> bool:
    """Return whether a name has the form that NVFlare gives to the id of a job."""
    try:
        return isinstance(name, str) and str(uuid.UUID(name)) == name
    except ValueError:
        return False


class CheckedProcessor(RequestProcessor):  # type: ignore[misc]
    """One of NVFlare's processors, for the listed topics and for valid ids of jobs: paths are made of an id."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def get_topics(self) -> list[str]:
        """Return the topics of the processor that are listed."""
        return [topic for topic in self._processor.get_topics() if topic in ADMINISTRATION]

    def process(self, req: AdminMessage, app_ctx: Any) -> AdminMessage:
        """Process a request whose job has a valid id; a question about all jobs has none."""
        if req.topic != TrainingTopic.CHECK_STATUS and not is_job_id(req.get_header(RequestHeader.JOB_ID)):
            return error_reply("invalid job id")
        return self._processor.process(req, app_ctx)


def restrict_administration() -> None:
    """Leave NVFlare's client the listed topics."""
    processors = map(CheckedProcessor, ClientRequestProcessors.request_processors)
    ClientRequestProcessors.request_processors = [each for each in processors if each.get_topics()]


# Files at an operator. NVFlare's console takes from the server's replies the paths of a result's files, the place to
# which it moved them, and the commands with which it sends a folder or fetches one. Without these checks the server
# could write, move or read every file of the operator.


TRANSFERS = {AdminCommandNames.SUBMIT_JOB: PUSH_FOLDER_FQN, AdminCommandNames.DOWNLOAD_JOB: PULL_FOLDER_FQN}
"""The commands that transfer files, and NVFlare's functions for them."""


class CheckedTransfers(file_transfer.FileTransferModule):  # type: ignore[misc]
    """NVFlare's transfers of files, for the listed commands, and with all files of a result in its own folder."""

    def generate_module_spec(self, server_cmd_spec: Any) -> Any:
        """Return NVFlare's function for a listed command of the server, and None for others."""
        is_listed = TRANSFERS.get(server_cmd_spec.name) == server_cmd_spec.client_cmd
        return super().generate_module_spec(server_cmd_spec) if is_listed else None

    def pull_folder(self, args: list[str], ctx: Any) -> Any:
        """Fetch the result of a job with a valid id; a reply without files may name another place."""
        if len(args) != 2 or not is_job_id(args[1]):
            raise _dishonest(f"the id {args[-1]!r} of a job")
        result = super().pull_folder(args, ctx)
        meta = result.get(ProtoKey.META)
        place = meta.get(MetaKey.LOCATION) if isinstance(meta, dict) else None
        if place is not None and Path(str(place)).resolve().parent != Path(self.download_dir).resolve():
            raise _dishonest(f"the place {place!r} of a result")
        return result

    def pull_binary_file(self, args: list[str], ctx: Any) -> Any:
        """Fetch a file of a result into its folder."""
        _, _, transfer, _, job, name = args[:6]
        folder = Path(self._tx_path(transfer, job)).resolve()
        is_inside = folder in (folder / name).resolve().parents
        if not is_inside or folder.parent != Path(self.download_dir).resolve():
            raise _dishonest(f"the file {name!r} in a result, with the transfer {transfer!r}")
        return super().pull_binary_file(args, ctx)


def _dishonest(named: str) -> RunFailed:
    """Return the error for a reply with a place of the operator's machine."""
    line = plain_line(f"the server names {named}, outside the folder of the result", LONGEST)
    return RunFailed(f"{line}; nothing was written there; do not use this server before its owner has an explanation")


def restrict_transfers() -> None:
    """Have NVFlare's console check transfers; call this before a session begins."""
    file_transfer.FileTransferModule = CheckedTransfers
