"""The operator's side of a run: submit it, follow it, submit it again if the federation lost it, fetch the result.

NVFlare aborts a job when a site's process crashes, and forgets it when the server's does. The run is then submitted
again under its name and continues from its last checkpoint, a bounded number of times without progress. A site whose
process crashes again is left out of the jobs that follow, as long as the others are a quorum.
"""

from __future__ import annotations

import io
import logging
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidTarget,
    JobNotFound,
    JobNotRunning,
    NoClientsAvailable,
    NoConnection,
    NoReply,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaStatusValue

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import json_key, parse_json, read_json, write_json
from fedvisage.base.progress import Reporter, Say
from fedvisage.nvflare.cells.rules import restrict_transfers
from fedvisage.nvflare.certificates import check, warning
from fedvisage.nvflare.greeting import Admitted, Unreachable, wait_for_admission
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.outcome import FILES, dead_sites, fetch_result, has_finished, read_trained
from fedvisage.nvflare.owner.statement import SECOND, read_second_signature, sign_run
from fedvisage.nvflare.server_program import PROGRESS
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import NAME
from fedvisage.tasks import saved_model, shortcuts
from fedvisage.tasks.task import TrainingResult

# Following a job: completed rounds, reasons for waiting, lost jobs, and sites that come back.


LOOK = 1.0
"""Seconds between two checks of the federation."""

RECENT = 20.0
"""A site with contact in this number of seconds is up; heartbeats come every ten."""

PATIENCE = 600.0
"""Seconds without an answer of a run's program before it is given up; sites alone have 300 to start."""

STARTING = 30.0
"""Seconds after which a site without a process for a starting job will have none: NVFlare waits for 300."""

DEATHS = 2
"""Ends of a site's process in one run after which the site is left out. After the first one the run is repeated with it
from the last checkpoint, and has the bytes of an undisturbed run."""

SILENCE_BEFORE_NOTICE = 60.0
"""Seconds of a round before a line reports that it is still running; the interval then doubles each time."""

BETWEEN_CHECKS = 10.0
"""Seconds of a round between two checks for sites without contact, so that each is named within 30 seconds."""

UNANSWERED = (InternalError, InvalidTarget, JobNotFound, JobNotRunning, NoClientsAvailable, NoReply, RuntimeError)
"""NVFlare's exceptions for a question to a job that begins, ends or is lost."""


@dataclass
class RunProgress:
    """The operator's view of a run."""

    job: Job
    reporter: Reporter
    round: int = 0
    began: int = 0
    missing: tuple[str, ...] = ()
    """Sites that did not reply in the last round, or were not connected at the start."""
    deaths: Counter[str] = field(default_factory=Counter)
    """For each site, the jobs that ended because its process did."""
    over: set[str] = field(default_factory=set)
    """Jobs that are no longer followed, whatever NVFlare reports about them."""
    patience: float = PATIENCE
    heard: float = field(default_factory=time.monotonic)
    """Time of the program's last answer, moved on by the time in which it could not have answered."""
    answering: str = ""
    """The job whose program has answered."""
    ended: str = ""
    """The job that this command ended, in order to submit the run again with other sites."""
    last_line: str = ""
    """The last message about waiting."""
    quiet: tuple[float, float] = (0.0, SILENCE_BEFORE_NOTICE)
    """The end of the last round, and the seconds after which a line reports that the current one is still running."""
    checked: float = 0.0
    """The last check for sites without contact."""
    clock: float = 0.0
    """Seconds by which the server's clock is ahead of this machine's."""
    record: Path | None = None
    """The file of the run's directory that remembers ``missing`` for --resume."""
    stopped: Mapping[str, str] | None = None
    """The jobs that operators stopped, and their names, when the server was last asked."""
    differences: tuple[str, ...] = ()
    """The lines about members with other versions that were reported."""
    second: Mapping[str, str] | None = None
    """The second operator's signature of the recipe."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """The revoked sites that have not connected again, and the dates of their revocation."""

    def enter(self, admitted: Admitted) -> None:
        """Take the server's clock and stopped jobs, and report revoked sites and other versions, once."""
        self.clock, differences = admitted.clock, tuple(admitted.differences())
        if self.stopped is None:  # this command continues a run that was stopped before
            self.over |= set(admitted.stopped)
        self.stopped = admitted.stopped
        for name in sorted(self.job.recipe.data.sites.keys() & admitted.revoked.keys() - self.revoked.keys()):
            self.reporter.say(f"{name} was revoked on {admitted.revoked[name]}; `provision --renew {name}` readmits it")
        self.revoked = admitted.revoked
        if differences != self.differences:
            self.differences = differences
            for line in differences:
                self.reporter.say(line)

    def note_missing(self, names: Iterable[str]) -> None:
        """Remember the sites that the run continues without, and does not wait for when it is submitted again."""
        missing = tuple(names)
        if missing != self.missing and self.record is not None:
            write_json(self.record, {"run": self.job.run, "missing": list(missing)})
        self.missing = missing

    @property
    def left_out(self) -> set[str]:
        """The sites that this run continues without, because their processes ended more than once."""
        return {name for name, count in self.deaths.items() if count >= DEATHS}

    @property
    def expected(self) -> set[str]:
        """The sites that the run waits for at its start."""
        return set(self.job.recipe.data.sites) - self.left_out - set(self.missing) - self.revoked.keys()

    def note_deaths(self, names: Iterable[str]) -> None:
        """Count the sites whose processes ended, and report the sites that are left out from now on."""
        before = self.left_out
        self.deaths.update(names)
        for name in sorted(self.left_out - before):
            self.reporter.say(
                f"{name}'s process ended {DEATHS} times; the run continues without it. See its log for the reason; "
                "--resume includes it again"
            )

    @contextmanager
    def exclude_from_silence(self) -> Iterator[None]:
        """Exclude time in which the run cannot answer from its silence."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.heard += time.monotonic() - began

    def tell(self, text: str) -> None:
        """Report a reason for waiting, once."""
        if text != self.last_line:
            self.last_line = text
            self.reporter.say(text)


@contextmanager
def retry_server_errors(course: RunProgress) -> Iterator[None]:
    """Retry after a server's internal error, such as a full disk, for as long as the run's patience lasts."""
    try:
        yield
    except InternalError as error:
        silent, reason = time.monotonic() - course.heard, str(error).rpartition(": ")[2]
        if silent > course.patience:
            raise RunFailed(f"the server could not carry out requests for {silent:.0f} s ({reason})") from error
        course.tell(f"the server cannot carry out the request ({reason}); trying again")
        time.sleep(LOOK)


def follow(session: Session, course: RunProgress, number: str, jobs: Callable[[], Set[str]]) -> str:
    """Report a job's rounds until it ends or is lost; return its last status, or ``lost``.

    ``jobs`` asks the server, and returns the jobs that it runs, or whose results it is saving.
    """
    course.began, running_since = course.round, None
    while True:
        status = job_status(session, number)
        if status.startswith("FINISHED"):
            return status
        if status == "RUNNING":
            # NVFlare keeps the status RUNNING after the server's process died. A job whose process has ended may still
            # be saving its result, however long that takes, and may have ended since its status was read.
            has_ended = number not in processes_of(session)
            if has_ended and number not in jobs() and job_status(session, number) == "RUNNING":
                return "lost"
            running_since, missing = running_since or time.monotonic(), course.missing
            if has_ended:  # its result comes, however late, because the server still knows it
                course.heard = time.monotonic()
                course.tell("the run has ended at the server; waiting for its result")
                time.sleep(LOOK)
                continue
            report(session, course, number)
            if course.missing != missing:
                jobs()  # the server's answer names revoked sites
            if course.ended != number and (reason := _reason_to_begin_again(session, course, number, running_since)):
                course.ended = number
                course.reporter.say(reason)
                session.abort_job(number)
        else:
            course.tell(f"submitted; waiting for {_absent_sites(session, course) or 'the server to begin it'}")
        # A silent program has not begun, or its end would go unnoticed.
        if (silent := time.monotonic() - course.heard) > course.patience:
            try:
                session.abort_job(number)
            except UNANSWERED:
                logger.debug("job %s could not be aborted", number, exc_info=True)
            raise RunFailed(
                f"no news of the run for {silent:.0f} s ({course.last_line}); it was stopped. `fedvisage status` "
                "shows who is connected, the logs of server and sites show why; --resume tries again, --patience "
                "waits longer"
            )
        time.sleep(LOOK)


def _reason_to_begin_again(session: Session, course: RunProgress, number: str, begun: float) -> str:
    """Return a reason to end a job and submit it again: NVFlare adds no site to a job that has begun."""
    # Sites that the job lacks may be up again. The check starts after the first round of this job, so that a site that
    # comes and goes cannot stop a run's progress.
    if course.missing and course.began < course.round < course.job.recipe.training.rounds:
        missing = set(course.missing) - course.left_out
        if up_again := sorted(missing & recent_sites(session, course.clock)):
            at_work = _sites_at_work(session.get_client_job_status(up_again) or [], number)
            if returned := [name for name in up_again if name not in at_work]:
                return f"{', '.join(returned)} is back: the run continues with it, from the last checkpoint"
    # Sites that received a starting job may report that they have no process for it.
    if course.answering != number and time.monotonic() - begun > STARTING:
        deployments = session.get_job_meta(number).get("job_deploy_detail") or []
        names = [str(deployment).partition(":")[0] for deployment in deployments if str(deployment).endswith(": OK")]
        try:
            answers = session.get_client_job_status([name for name in names if name != "server"]) or []
        except UNANSWERED:
            logger.debug("the sites of job %s do not say what they do", number, exc_info=True)
            return ""
        if sites := sites_not_at_work(answers, number):
            course.note_deaths(sites)
            return f"{', '.join(sites)} lost its part of the run during the start: starting the run again"
    return ""


def report(session: Session, course: RunProgress, number: str) -> None:
    """Report new rounds, or the reason for waiting."""
    reply, total = ask(session, number, course.round), course.job.recipe.training.rounds
    if reply is None:
        if course.answering != number:
            names = ", ".join(sorted(course.expected))
            absent = _absent_sites(session, course)
            silence = f"; not connected, or silent for {RECENT:.0f} s: {absent}" if absent else ""
            course.tell(f"running at the server; waiting for {names} to start{silence}")
        elif course.round == total:
            course.tell("the last round is over; waiting for the server to send the result")
        return
    # The first answer of a job starts the clock of its first round.
    now = course.heard = time.monotonic()
    if course.answering != number:
        course.answering = number
        course.tell("started")
        course.quiet = (now, SILENCE_BEFORE_NOTICE)
    for row in reply["rounds"]:
        course.round = int(row["round"])
        course.note_missing(name for name in row["asked"] if name not in row["replied"])
        course.reporter.ended_round(row, total)
    began, after = course.quiet
    if reply["rounds"]:
        course.quiet = (now, SILENCE_BEFORE_NOTICE)
    elif now - began > after and course.round < total:
        course.reporter.say(f"round {course.round + 1} of {total} has been running for {now - began:.0f} s")
        course.quiet = (began, 2 * after)
    if course.round < total and now - course.checked > BETWEEN_CHECKS:
        course.checked = now
        if absent := _absent_sites(session, course):
            where = f"not connected, or silent for {RECENT:.0f} s"
            course.tell(f"round {course.round + 1} of {total} waits for {absent} ({where})")


def ask(session: Session, number: str, after: int = 0, *, more: bool = False) -> dict[str, Any] | None:
    """Ask a job's program for its progress, and with ``more`` for its log and its spent budget.

    A job that begins, ends or is lost does not answer.
    """
    try:
        reply = session.do_app_command(number, PROGRESS, {"after": after, "more": more})
    except UNANSWERED:
        logger.debug("job %s does not say how far it is", number, exc_info=True)
        return None
    return reply if isinstance(reply, dict) and "rounds" in reply else None


def newest_job(listed: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a run's newest job; NVFlare reports RUNNING forever for a job whose server died."""
    return max(listed, key=lambda job: str(job.get("submit_time")), default=None)


def recent_sites(session: Session, clock: float) -> set[str]:
    """Return the sites with recent contact; a site that was stopped stays in NVFlare's list for ten minutes."""
    now = time.time() + clock
    clients = session.get_connected_client_list()
    return {client.name for client in clients if now - float(client.last_connect_time or 0) < RECENT}


def _absent_sites(session: Session, course: RunProgress) -> str:
    """Return the names of the sites that the run waits for, and that have no recent contact."""
    return ", ".join(sorted(course.expected - recent_sites(session, course.clock)))


def processes_of(session: Session) -> set[str]:
    """Return the jobs for which the server has a process."""
    return {str(job.job_id) for job in session.get_system_info().job_info}


def job_status(session: Session, number: str) -> str:
    """Return NVFlare's status of a job."""
    return str(session.get_job_meta(number).get("status"))


def sites_not_at_work(answers: Sequence[Mapping[str, Any]], number: str) -> list[str]:
    """Return the sites whose answers do not name this job; a silent site may well be at work."""
    silent = (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR)
    heard = {str(answer.get("client_name")) for answer in answers if answer.get("status") not in silent}
    return sorted(heard - _sites_at_work(answers, number))


def _sites_at_work(answers: Sequence[Mapping[str, Any]], number: str) -> set[str]:
    """Return the sites that have a process for this job."""
    return {str(answer.get("client_name")) for answer in answers if number in map(str, answer.values())}


logger = logging.getLogger("fedvisage.operator")

ATTEMPTS = 5
"""Submissions of one run without a new round in between."""

LOGIN = 10.0
"""Seconds that a server has for the login after its greeting."""

TROUBLE = (NoConnection, FLCommunicationError, InternalError, OSError)
"""NVFlare's exceptions for a server that starts, ends, or is cut off."""


def train_in_federation(
    recipe: Recipe,
    out: Path,
    reporter: Reporter,
    kit: Kit,
    *,
    wait: float,
    patience: float = PATIENCE,
    cosigned: Path | None = None,
) -> TrainingResult:
    """Have a federation train, and return the same result as training in this process."""
    run, missing = read_record(out)
    job = Job(run, without_local_parts(recipe))
    course = RunProgress(job, reporter, missing=missing, patience=patience, record=out / NAME)
    if cosigned is not None:
        course.second = read_second_signature(cosigned, kit.credentials, recipes.tree_of(job.recipe))
    if line := warning(kit.credentials, kit.name):
        reporter.say(line)
    with reporter.course(recipe.method.name, 0, recipe.training.rounds):
        _run_until_finished(course, kit, out, wait)
    trained = read_trained(out)
    # Any operator can submit a job under the name of this run, with another recipe in it.
    if trained.saved.recipe != parse_json(json_key(recipes.tree_of(job.recipe))):
        for name in FILES:
            (out / name).unlink()
        raise RunFailed(
            f"the server has a result of another recipe under the name {run}, which was deleted here; `fedvisage runs` "
            "shows who submitted it; start again with another --out"
        )
    for line in shortcuts.lines(trained.shortcuts):
        reporter.say(line)
    # The server knows the travelling recipe only; the run directory gets the operator's own.
    saved = replace(trained.saved, recipe=recipes.tree_of(recipe))
    saved_model.save(out, saved)
    return replace(trained, saved=saved)


def _run_until_finished(course: RunProgress, kit: Kit, out: Path, wait: float) -> None:
    """Submit the run until it finishes, and fetch its result."""
    attempts, last_round, followed = 0, 0, ""

    def ask_again() -> Set[str]:
        course.enter(admitted := ask_server(kit, wait, course.tell))
        return admitted.jobs

    while attempts < ATTEMPTS:
        number, failed_status, before, left_out, deaths = None, "", attempts, course.left_out, course.deaths.copy()
        try:
            with ExitStack() as stack:
                with course.exclude_from_silence():
                    session = stack.enter_context(connect_to_server(kit, wait, course.tell, course.enter))
                stack.enter_context(retry_server_errors(course))
                # A job of an earlier session is followed instead of submitted again, also to fetch its result late.
                listed = session.list_jobs(detailed=True, name_prefix=course.job.run)
                job = newest_job([job for job in listed if job.get("name") == course.job.run]) or {}
                newest, is_over = str(job.get("job_id")), str(job.get("status")).startswith("FINISHED")
                if job and newest not in course.over:
                    if is_over and newest != followed and _fetch_earlier(session, newest, out):
                        return
                    number = newest if newest == followed or not is_over else None
                if number is None:
                    end_if_stopped(course, followed)
                    attempts += 1
                    number = _submit(session, course, kit, wait, ask_again)
                followed = number
                end_status = follow(session, course, number, ask_again)
                if end_status != "lost" and _fetch(session, course, number, out):
                    return
                ask_again()
                end_if_stopped(course, number)
                failed_status = end_status
        except (NoConnection, SessionClosed):
            course.reporter.say("lost the connection to the server; connecting again")
            continue
        except ServerAway as error:
            if not followed:
                raise
            raise RunFailed(f"{error}; --resume continues the run when the server is back") from error
        if number is None or not failed_status:  # asking the server again costs no attempt
            attempts = before
            continue
        course.over.add(number)
        if dead := ", ".join(sorted(course.deaths - deaths)):
            reason = f"the process of {dead} ended, so the server ended the run before its last round"
        else:
            unknown = f"the run's process at the server ended without a result (NVFlare: {failed_status}); see its log"
            reason = ENDS.get(failed_status, unknown)
        course.reporter.say(f"{'' if course.ended == number else f'{reason}; '}submitting the run again")
        # Attempts count from the last progress: a new round, or a site newly left out.
        progress = course.round > last_round or course.left_out != left_out
        attempts, last_round = 0 if progress else attempts, course.round
    raise RunFailed(f"{ATTEMPTS} jobs ended without a result or a new round; see the logs of server and sites")


ENDS = {
    "lost": "the server lost the run when its process died",
    "FINISHED:ABORTED": "the server ended the run before its last round, as it does when a site's process fails or too "
    "few sites are left; the logs of the sites show the reason",
    "FINISHED:ABNORMAL": "the run's process at the server was killed",
    "FINISHED:CAN_NOT_SCHEDULE": "the server could not give the run to enough sites",
    "FINISHED:FAILED_TO_RUN": "the server could not start the run at enough sites",
}
"""The ends of jobs without a result, in words; NVFlare names them so."""


class ServerAway(RunFailed):
    """The server did not answer in the time that the operator allows."""


def ask_server(kit: Kit, wait: float, say: Say = logger.info) -> Admitted:
    """Return the server's answer to a request for admission."""
    try:
        return wait_for_admission(kit, say, until=time.monotonic() + wait)
    except Unreachable as error:
        raise ServerAway(f"the server did not answer within {wait:g} s: {error}") from error


def end_if_stopped(course: RunProgress, number: str) -> None:
    """End a run whose job an operator stopped, instead of submitting it again."""
    if (operator := (course.stopped or {}).get(number)) is not None:
        rounds = f"after round {course.round} of {course.job.recipe.training.rounds}"
        raise RunFailed(f"{operator} stopped the run {rounds}; --resume continues it")


@contextmanager
def connect_to_server(
    kit: Kit, wait: float, say: Say | None = None, enter: Callable[[Admitted], None] = logger.debug
) -> Iterator[Session]:
    """Connect to the server; an open session would keep this process alive forever.

    ``enter`` receives the server's answer to the request for admission.
    """
    session: Session | None = None
    began = time.monotonic()
    logging.getLogger("nvflare").addHandler(logging.NullHandler())  # we report closed connections ourselves
    check(kit.credentials, kit.name)
    restrict_transfers()
    while session is None:
        try:
            enter(wait_for_admission(kit, say or logger.info, until=began + wait))
            timeout = min(LOGIN, max(1.0, began + wait - time.monotonic()))
            with redirect_stdout(io.StringIO()):  # NVFlare prints here
                session = new_secure_session(kit.name, str(kit.path), timeout=timeout, auto_login_max_tries=1)
        except (AuthenticationError, AuthorizationError) as error:
            raise UserError(str(kit.path), f"the server does not know this kit: {error}") from error
        except (Unreachable, *TROUBLE) as error:
            now = time.monotonic()
            if isinstance(error, Unreachable) or now > began + wait:
                raise ServerAway(f"the server did not answer within {now - began:.0f} s: {error}") from error
            time.sleep(LOOK)
    try:
        yield session
    finally:
        try:
            session.close()
        except (*TROUBLE, SessionClosed, RuntimeError):
            logger.debug("the session could not be closed", exc_info=True)


def _submit(session: Session, course: RunProgress, kit: Kit, wait: float, refresh: Callable[[], object]) -> str:
    """Sign and submit the run once its sites are connected, or a quorum of them after the time for waiting."""
    with course.exclude_from_silence():
        sites = wait_for_sites(session, course, wait, refresh)
    with tempfile.TemporaryDirectory() as scratch:
        directory, tree = Path(scratch) / course.job.run, recipes.tree_of(course.job.recipe)
        signature: dict[str, Any] = dict(sign_run(kit.credentials, course.job.run, tree))
        if course.second is not None:
            signature[SECOND] = course.second
        write_job(directory, course.job, sites, signature)
        return str(session.submit_job(str(directory)))


def wait_for_sites(
    session: Session, course: RunProgress, wait: float, refresh: Callable[[], object] = lambda: None
) -> list[str]:
    """Return the sites that take part: all, or a quorum of them when waiting is over.

    It does not wait for revoked sites, nor for sites that the run has continued without before. ``refresh`` asks the
    server again which sites are revoked, and which have other versions.
    """
    expected, until = sorted(set(course.job.recipe.data.sites) - course.left_out), time.monotonic() + wait
    if len(expected) < course.job.recipe.federation.quorum:
        names = ", ".join(sorted(course.left_out))
        raise RunFailed(
            f"processes of {names} ended repeatedly, and without them there is no quorum; see their logs for the "
            "reason; --resume tries again"
        )
    while True:
        online = recent_sites(session, course.clock)
        missing = [name for name in expected if name not in online]
        refresh()  # since the last look, sites may have been revoked, or have connected with other versions
        if not missing:
            course.note_missing([])
            return expected
        present = [name for name in expected if name in online]
        is_quorum = len(present) >= course.job.recipe.federation.quorum
        awaited = [name for name in missing if name not in course.revoked]
        # A run that continued without a site before does not wait for it when it is submitted again.
        if is_quorum and (time.monotonic() > until or set(awaited) <= set(course.missing)):
            course.note_missing(missing)
            course.reporter.say(f"starting without {', '.join(missing)}")
            return present
        # One of these names may be misspelt in the recipe.
        unnamed = ", ".join(sorted(online - set(course.job.recipe.data.sites)))
        others = f"; connected, and not in the recipe: {unnamed}" if unnamed else ""
        if time.monotonic() > until:
            names = ", ".join(f"{name} (revoked)" if name in course.revoked else name for name in missing)
            raise RunFailed(f"not connected after {wait:g} s: {names}; fewer than the quorum are connected{others}")
        revoked = "" if awaited else " with a renewed certificate"
        course.tell(f"waiting for {', '.join(awaited or missing)} to connect{revoked}{others}")
        time.sleep(LOOK)


def _fetch(session: Session, course: RunProgress, number: str, out: Path) -> bool:
    """Fetch a job's result, if it left one: NVFlare may call a job abnormal although its program ended well."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".download-") as scratch:
        downloaded = Path(session.download_job_result(number, scratch))
        if fetch_result(downloaded, out):
            return True
        course.note_deaths(dead_sites(downloaded))
        return False


def _fetch_earlier(session: Session, number: str, out: Path) -> bool:
    """Fetch the result of a job that an earlier command followed, if its run finished; otherwise it begins again."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".download-") as scratch:
        downloaded = Path(session.download_job_result(number, scratch))
        return has_finished(downloaded) and fetch_result(downloaded, out)


def read_record(out: Path) -> tuple[str, tuple[str, ...]]:
    """Return the run's name in the federation, and the sites that it last continued without.

    The name is created once per run directory; two runs never share one.
    """
    path = out / NAME
    if path.exists():
        record = read_json(path)
        return str(record["run"]), tuple(map(str, record.get("missing", ())))
    readable = re.sub(r"[^a-z0-9]+", "-", out.name.lower()).strip("-")[:40]
    name = f"{readable}-{secrets.token_hex(6)}".lstrip("-")
    write_json(path, {"run": name})
    return name, ()
