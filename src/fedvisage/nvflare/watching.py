"""Components in NVFlare's long-lived processes that report connections, and repair stale registrations.

NVFlare builds these two components from a kit's ``local/resources.json``, without arguments. The parent stores its
terminal in ``ProcessContext``. Job processes have none, so the components are inactive there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, JobFailureMsgKey

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import json_line
from fedvisage.base.progress import Say, format_count
from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import certificates_in, name_of
from fedvisage.nvflare.greeting import Unreachable, address_in, check_handshake, request_admission
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.outcome import RESULT, last_failure, last_round, log_size, note_death, note_left
from fedvisage.nvflare.owner.statement import verify_run
from fedvisage.nvflare.owner.submission import NotReady, read_submission
from fedvisage.nvflare.terminal import Terminal

# A site's record of its runs: a line on the terminal and one in ``runs.jsonl``, at the start and end of each job.
# NVFlare's folder of a job, with its recipe and submitter, is deleted some jobs later. The record stays.


logger = logging.getLogger("fedvisage.watch")

RECORD = "runs.jsonl"
"""The record's name, beside the private state of the runs."""

LETTERS, LINE = 100, 400
"""Characters of a title or submitter, and of a reason, on the terminal, at most."""


@dataclass(frozen=True)
class ArrivedRun:
    """A run by its name, the rounds that its recipe has before any check, and the size of its log on arrival."""

    run: str
    rounds: int
    log_size: int


class RunRecord:
    """Writes the record of a site."""

    def __init__(self, kit: Kit, say: Say) -> None:
        """Take a kit with its settings, and the terminal."""
        self._kit, self._say, self._jobs = kit, say, dict[str, ArrivedRun]()
        self._reported = dict[str, str]()

    def start(self, meta: Mapping[str, Any]) -> None:
        """Record the start of a job, given by NVFlare's description."""
        number, submitter = str(meta.get("job_id")), plain_line(str(meta.get("submitter_name")), LETTERS)
        try:
            config = Path(Workspace(str(self._kit.path), self._kit.name).get_app_config_dir(number))
            submission = read_submission(config)
            signer = verify_run(submission, certificates_in(self._kit.credentials.root)[0])
        except (UserError, NotReady) as error:
            self._say(f"a run did not start: {plain_line(str(error), LINE)}")
            logger.error("job %s cannot be recorded: %s", number, error)
            return
        # The process of the job checks the recipe, and reports a refusal.
        rounds, method = _value(submission.tree, "training", "rounds"), _value(submission.tree, "method", "name")
        title = plain_line(str(_value(submission.tree, "title") or ""), LETTERS)
        job = ArrivedRun(
            submission.run, rounds if isinstance(rounds, int) else 0, log_size(self._directory / submission.run)
        )
        self._jobs[number] = job
        named = f"{title!r}, " if title else ""
        whose = f"signed by {name_of(signer)}" if signer else f"without a signature; the server names {submitter}"
        asked = f"{plain_line(str(method), LETTERS)}, {format_count(job.rounds, 'round')}"
        self._say(f"run {job.run} arrived: {named}{asked}, {whose}")
        about = {"submitter": submitter, "signed_by": name_of(signer) if signer else "", "title": title}
        self._write("started", number, job, **about, method=method, recipe=submission.tree)

    def end(self, number: str) -> None:
        """Record the end of a job."""
        self.report_failures()
        job = self._jobs.pop(number, None)
        if job is None:
            return
        self._reported.pop(number, None)
        done, rounds = last_round(self._directory / job.run), job.rounds
        self._say(f"run {job.run} ended; its last round at this site was {done} of {rounds}")
        self._write("ended", number, job, round=done, rounds=rounds)

    def report_failures(self) -> None:
        """Print why this site does not take part in a run, once per reason: its administrator sees no other output."""
        for number, job in list(self._jobs.items()):  # NVFlare reports events from several threads
            reason = last_failure(self._directory / job.run, job.log_size)
            if reason and reason != self._reported.get(number):
                self._reported[number] = reason
                self._say(f"run {job.run}: {reason}")

    @property
    def _directory(self) -> Path:
        return Path(own_settings(self._kit.path)["state"])

    def _write(self, event: str, number: str, job: ArrivedRun, **values: Any) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "run": job.run, "job": number}
        try:
            with (self._directory / RECORD).open("a", encoding="utf-8") as file:
                file.write(json_line({**line, **values}))
        except OSError as error:
            self._say(f"{self._directory / RECORD}: cannot be written ({error.strerror}); check the disk")


def _value(tree: object, *keys: str) -> object:
    """Return a value of a recipe that nothing has checked, or None."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


# The watches of sites and of the server.


LOST = 30.0
"""Seconds of silence after which a site's server, or a registration, counts as lost; sites send a heartbeat every
ten."""

MISSED = 15.0
"""Seconds of silence after which a heartbeat was missed."""

CRASHED = (ProcessExitCode.EXCEPTION, ProcessExitCode.CONFIG_ERROR, ProcessExitCode.INFRASTRUCTURE_ERROR)
"""NVFlare's codes for a process that ended by itself."""

ALREADY = "already registered"
"""Part of the server's answer to a site whose place another process has taken."""


class ProcessContext:
    """The objects that the watches of this process use; empty in a process of a job."""

    kit: Kit | None = None
    terminal: Terminal | None = None
    token: str = ""
    """NVFlare's token of this site's registration."""
    admission: Admission | None = None
    """The revocation list of this server, and its connected members."""
    server: Any = None
    """NVFlare's server in this process, from its start."""
    last_contact: float = 0.0
    """Time of the server's last answer to this site."""


class SiteWatch(FLComponent):  # type: ignore[misc]
    """Reports when a site connects, loses its server or its place, connects again, and begins or ends a run."""

    def __init__(self) -> None:
        super().__init__()
        self._heard, self._state = 0.0, "new"
        self._record: RunRecord | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow the site's registration, its heartbeats and its jobs."""
        if ProcessContext.terminal is None or ProcessContext.kit is None:
            return
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            cell = fl_ctx.get_prop(FLContextKey.SITE_OBJ).cell
            place = CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT
            cell.core_cell.add_incoming_reply_filter(*place, self._process_answer)
            self._heard = time.monotonic()
            ProcessContext.token = str(fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN))
        elif event_type == EventType.SYSTEM_START:
            self._become("connected", f"connected to {address_in(ProcessContext.kit)}, waiting for runs")
        elif event_type == EventType.AFTER_JOB_LAUNCH:
            self._record = self._record or RunRecord(ProcessContext.kit, ProcessContext.terminal.say)
            self._record.start(fl_ctx.get_prop(FLContextKey.JOB_META))
        elif event_type == EventType.JOB_COMPLETED and self._record is not None:
            self._record.end(str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID)))
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            if self._record is not None:
                self._record.report_failures()
            if time.monotonic() - self._heard > LOST:
                self._become("lost", "lost the connection to the server; trying again until it answers")
                self._poll(ProcessContext.kit, ProcessContext.terminal)

    def _process_answer(self, message: Any) -> None:
        """Process the server's answer to a heartbeat."""
        silent, self._heard = time.monotonic() - self._heard, time.monotonic()
        if silent > MISSED and ProcessContext.kit and ProcessContext.terminal:
            # A server that was restarted does not know this site's versions.
            arguments = ProcessContext.kit, ProcessContext.terminal
            threading.Thread(target=self._poll, args=arguments, daemon=True).start()
        if message.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK:
            ProcessContext.last_contact = time.time()
            self._become("connected", "connected again, waiting for runs")
        elif ALREADY in str(message.get_header(MessageHeaderKey.ERROR)):
            self._become("taken", "another process is connected as this site; waiting until it disconnects")

    def _become(self, state: str, text: str) -> None:
        """Enter a state, and print a line if it is a new one."""
        if self._state != state:
            self._state = state
            assert ProcessContext.terminal is not None
            ProcessContext.terminal.say(text)

    def _poll(self, kit: Kit, terminal: Terminal) -> None:
        """Check that the server still accepts this kit: a certificate may have ended, or another server may listen."""
        try:
            check_handshake(kit)
            for line in request_admission(kit).differences():
                terminal.say(line)
        except Unreachable as reason:
            logger.info("%s", reason)
        except UserError as error:
            terminal.end(error)


class ServerWatch(FLComponent):  # type: ignore[misc]
    """Frees a site's place that a dead process holds, and takes the places of revoked members.

    It notes sites whose process of a job ended by itself, for the operator who submits the run again. It ends jobs that
    wait only for sites whose machines are off.

    A second process of a site takes its place; when it dies, NVFlare refuses the first one for ten minutes. For that
    time it would also count a site whose connection was cut as connected.
    """

    _server: Any = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Install callbacks for cut connections and failed jobs, and check every refused heartbeat."""
        if event_type == EventType.SYSTEM_START and ProcessContext.admission is not None:
            server = self._server = ProcessContext.server = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            ProcessContext.admission.dropped = partial(_log_out, ProcessContext.admission.kit, server)
            ProcessContext.admission.jobs = lambda: list(server.engine.job_runner.running_jobs)
            # Ours replaces NVFlare's callback and calls it; a filter would hide the filters that check the sender.
            place = CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE
            server.cell.register_request_cb(*place, self._job_failed)
        if event_type != EventType.CLIENT_HEARTBEAT_PROCESSED or self._server is None:
            return
        # NVFlare would wait ten minutes for a site whose machine is off to report the end of its process. End the jobs
        # whose program at the server has ended, and that wait only for sites without contact.
        clients, runner = self._server.client_manager, self._server.engine.job_runner
        ended = runner.running_jobs.keys() - self._server.engine.run_processes.keys()
        for client in list(clients.get_clients().values()):
            if _is_silent(client):
                for job in ended & runner.get_client_outcome_jobs(client.name):
                    runner.resolve_client_outcome(job, client.name)
        refused = str(fl_ctx.get_prop(FLContextKey.COMMUNICATION_ERROR) or "")
        if ALREADY in refused:
            for token, client in list(clients.get_clients().items()):
                if refused.endswith(f": {client.name}") and _is_silent(client):
                    logger.warning("%s comes back: its place was held by a process that is silent", client.name)
                    clients.remove_client(token)

    def _job_failed(self, message: Any) -> Any:  # a method, because NVFlare reads its callback's name
        """Note a site whose process of a job ended by itself; NVFlare aborts the job without naming the site."""
        client = self._server.client_manager.clients.get(message.get_header(CellMessageHeaderKeys.TOKEN))
        report = message.payload if isinstance(message.payload, dict) else {}
        job, crashed = report.get(JobFailureMsgKey.JOB_ID), report.get(JobFailureMsgKey.CODE) in CRASHED
        # Only if the job exists and includes this site.
        if (
            client
            and crashed
            and ProcessContext.kit
            and self._server.engine.job_runner.is_client_outcome_pending(job, client.name)
        ):
            note_death(ProcessContext.kit.path / str(job) / RESULT, client.name)
        return self._server.process_job_failure(message)


def _is_silent(client: Any) -> bool:
    return bool(time.time() - client.last_connect_time > LOST)


def _log_out(kit: Path, server: Any, name: str, reason: str, only: str = "") -> None:
    """Have NVFlare's server count a member as disconnected, and have its runs continue without it at once.

    With ``only``, another process that has taken the member's place under another token keeps it.
    """
    for token, client in list(server.client_manager.get_clients().items()):
        if client.name == name and only in ("", token):
            try:
                for job, process in list(server.engine.run_processes.items()):
                    if token in (process.get(RunProcessKey.PARTICIPANTS) or ()):
                        note_left(kit / str(job) / RESULT, name, reason)
            finally:  # a full disk may refuse the note
                server.logout_client(token)
