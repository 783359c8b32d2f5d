"""Our eyes inside NVFlare's long-lived processes: what they notice is told, and a stale registration mended.

NVFlare builds these two components from a kit's ``local/resources.json``, without arguments; whoever starts the process
puts the front there that they talk to. In processes of jobs there is none, and they are silent.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, JobFailureMsgKey

from fedvisage.base.errors import UserError
from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.greeting import Unreachable, address_in, greet, knock
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.outcome import RESULT, note_death
from fedvisage.nvflare.terminal import Front

logger = logging.getLogger("fedvisage.watch")

LOST = 30.0
"""Seconds of silence after which a site's server, or a registration, counts as gone; sites send every ten."""

CRASHED = (ProcessExitCode.EXCEPTION, ProcessExitCode.CONFIG_ERROR, ProcessExitCode.INFRASTRUCTURE_ERROR)
"""What NVFlare reports of a process that ended by itself."""

ALREADY = "already registered"
"""In what the server answers to a site whose place another process has taken."""


class Post:
    """Where the watches of this process find what they need; empty in a process of a job."""

    kit: Kit | None = None
    front: Front | None = None
    admission: Admission | None = None
    """Whom this server lets in."""


class SiteWatch(FLComponent):  # type: ignore[misc]
    """Says when a site is connected, loses its server or its place, and has them again."""

    def __init__(self) -> None:
        """Begin unconnected."""
        super().__init__()
        self._heard, self._state = 0.0, "new"

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the site's registration and its heartbeats."""
        if Post.front is None or Post.kit is None:
            return
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            place = CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT
            cell.core_cell.add_incoming_reply_filter(*place, self._answered)
            self._heard = time.monotonic()
        elif event_type == EventType.SYSTEM_START:
            self._become("connected", f"connected to {address_in(Post.kit)}, waiting for runs")
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT and time.monotonic() - self._heard > LOST:
            self._become("lost", "lost the server; trying again until it answers")
            self._look_again(Post.kit, Post.front)

    def _answered(self, message: Any) -> None:
        """Take the server's answer to a heartbeat."""
        self._heard = time.monotonic()
        if message.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK:
            self._become("connected", "connected again, waiting for runs")
        elif ALREADY in str(message.get_header(MessageHeaderKey.ERROR)):
            self._become("taken", "another process has this site's place at the server; waiting for it to be silent")

    def _become(self, state: str, text: str) -> None:
        if self._state != state:
            self._state = state
            assert Post.front is not None
            Post.front.say(text)

    def _look_again(self, kit: Kit, front: Front) -> None:
        """Find out whether the server would greet at all: papers may have ended, or another one be there."""
        try:
            greet(kit)
            knock(kit)
        except Unreachable as reason:
            logger.info("%s", reason)
        except UserError as error:
            front.end(error)


class ServerWatch(FLComponent):  # type: ignore[misc]
    """Gives a site its place back that a process took which has died since, and takes that of one that is revoked.

    It notes whose process of a job ended by itself, for the operator who submits the run again.

    A second process of a site takes its place; when it dies, NVFlare refuses the first one for ten minutes. So long it
    would also count a site whose connection was cut among those who are there.
    """

    _server: Any = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Look at each heartbeat that was refused, and hear of those who are cut off."""
        if event_type == EventType.SYSTEM_START and Post.admission is not None:
            server = self._server = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            Post.admission.dropped = partial(_log_out, server)
            # in the place of NVFlare's own, which it calls; a filter would hide those that check who is asking
            place = CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE
            server.cell.register_request_cb(*place, self._job_failed)
        if event_type != EventType.CLIENT_HEARTBEAT_PROCESSED:
            return
        refused = str(fl_ctx.get_prop(FLContextKey.COMMUNICATION_ERROR) or "")
        if ALREADY in refused:
            clients = fl_ctx.get_engine().client_manager
            for token, client in list(clients.get_clients().items()):
                if refused.endswith(f": {client.name}") and time.time() - client.last_connect_time > LOST:
                    logger.warning("%s comes back: its place was held by a process that is silent", client.name)
                    clients.remove_client(token)

    def _job_failed(self, message: Any) -> Any:  # a method, for NVFlare asks what it calls for its name
        """Note a site whose process of a job ended by itself; NVFlare then aborts the job, and says of nobody why."""
        client = self._server.client_manager.clients.get(message.get_header(CellMessageHeaderKeys.TOKEN))
        report = message.payload if isinstance(message.payload, dict) else {}
        job, crashed = report.get(JobFailureMsgKey.JOB_ID), report.get(JobFailureMsgKey.CODE) in CRASHED
        # only of a job that exists, and has this site
        if (
            client
            and crashed
            and Post.kit
            and self._server.engine.job_runner.is_client_outcome_pending(job, client.name)
        ):
            note_death(Post.kit.path / str(job) / RESULT, client.name)
        return self._server.process_job_failure(message)


def _log_out(server: Any, name: str) -> None:
    """Have NVFlare's server count a member as gone, in its runs as well."""
    for token, client in list(server.client_manager.get_clients().items()):
        if client.name == name:
            server.logout_client(token)
