"""The operator's end of a run: submit it, follow it, submit it again when the federation lost it, fetch the result.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Reporter, Say
from fedvisage.nvflare.certificates import check, papers_in, warning
from fedvisage.nvflare.greeting import Unreachable, wait_for_admission
from fedvisage.nvflare.job import Job, travelling, write_job
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.outcome import died, read_trained, take
from fedvisage.nvflare.server_program import PROGRESS
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import NAME
from fedvisage.tasks import saved_model
from fedvisage.tasks.task import Trained

# Following a job from the operator's end: rounds as they come, what is waited for, a lost job, a site that is back.


LOST = 20.0
"""Seconds without any sign of a job that is said to be running; NVFlare never says that it is gone."""

LOOK = 1.0
"""Seconds between two looks at who is connected."""

RECENT = 20.0
"""A site that was heard of in so many seconds is up; heartbeats come every ten."""

PATIENCE = 600.0
"""Seconds without an answer of a run's program after which it is given up; sites alone have 300 for starting."""

STARTING = 30.0
"""Seconds after which a site that has no process for a job that starts will have none: NVFlare waits for 300."""

DEATHS = 2
"""Ends of a site's process in one run after which it is left out. After the first one the run is repeated with it from
the last checkpoint, and has the bytes of an undisturbed run."""

QUIET = 60.0
"""Seconds of a round after which it is said that it goes on; then twice as many, and so on."""

UNANSWERED = (InternalError, InvalidTarget, JobNotFound, JobNotRunning, NoClientsAvailable, NoReply, RuntimeError)
"""What NVFlare raises for a question to a job that begins, ends or is lost."""


@dataclass
class Course:
    """A run as the operator sees it."""

    job: Job
    reporter: Reporter
    round: int = 0
    began: int = 0
    missing: tuple[str, ...] = ()
    """Sites that the last round was without."""
    deaths: Counter[str] = field(default_factory=Counter)
    """How many jobs ended because a site's process did."""
    over: set[str] = field(default_factory=set)
    """Jobs that are not to be followed any more, whatever NVFlare says of them."""
    patience: float = PATIENCE
    heard: float = field(default_factory=time.monotonic)
    """When the run's program answered last; later by the time in which it could not have answered."""
    answering: str = ""
    """The job whose program has answered."""
    told: str = ""
    """What was last said of what is waited for."""
    quiet: tuple[float, float] = (0.0, QUIET)
    """When the last round ended, and the seconds after which it is said that this one goes on."""

    @property
    def left_out(self) -> set[str]:
        """The sites that this run goes on without, because their processes ended more than once."""
        return {name for name, count in self.deaths.items() if count >= DEATHS}

    def note_deaths(self, names: Iterable[str]) -> None:
        """Remember whose processes ended, and report the sites that are left out from now on."""
        before = self.left_out
        self.deaths.update(names)
        for name in sorted(self.left_out - before):
            self.reporter.say(f"{name}'s process ended {DEATHS} times; the run goes on without it. Its log says why, "
                              "and --resume takes it in again")  # fmt: skip

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Let time pass that is not the run's, because it cannot answer yet."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.heard += time.monotonic() - began

    def tell(self, text: str) -> None:
        """Say what is waited for, once."""
        if text != self.told:
            self.told = text
            self.reporter.say(text)


@contextmanager
def asking_again(course: Course) -> Iterator[None]:
    """Let a server be asked again that cannot do as it is asked, as when its disk is full, for as long as a run has."""
    try:
        yield
    except InternalError as error:
        silent, why = time.monotonic() - course.heard, str(error).rpartition(": ")[2]
        if silent > course.patience:
            raise RunFailed(f"the server could not do what it was asked for {silent:.0f} s ({why})") from error
        course.tell(f"the server cannot do what it is asked ({why}); asking again")
        time.sleep(LOOK)


def follow(session: Session, course: Course, number: str) -> str:
    """Report a job's rounds until it ends, or until it is lost; return how it ended."""
    course.began, seen, begun, asked = course.round, None, None, False
    while True:
        status = str(session.get_job_meta(number).get("status"))
        if status.startswith("FINISHED"):
            return status
        if status == "RUNNING":
            if seen is None or _is_alive(session, number):
                seen = time.monotonic()
            if time.monotonic() - seen > LOST:
                return "lost"
            report(session, course, number)
            begun = begun or time.monotonic()
            if not asked and (why := _reason_to_begin_again(session, course, number, begun)):
                asked = True
                course.reporter.say(why)
                session.abort_job(number)
        else:
            course.tell(f"submitted; waiting for {_absent(session, course) or 'the server to begin it'}")
        _give_up_in_time(session, course, number)
        time.sleep(LOOK)


def _reason_to_begin_again(session: Session, course: Course, number: str, begun: float) -> str:
    """Say why a job is to be ended and submitted again: NVFlare takes nobody into a job that has begun."""
    if back := _back(session, course, number):
        return f"{', '.join(back)} is back: the run continues with it, from the last checkpoint"
    starting = course.answering != number and time.monotonic() - begun > STARTING
    if starting and (fallen := _fallen(session, number)):
        course.note_deaths(fallen)
        return f"{', '.join(fallen)} lost its part of the run while it started: the run is begun again"
    return ""


def report(session: Session, course: Course, number: str) -> None:
    """Report rounds that are new, or what is waited for."""
    reply, total = ask(session, number, course.round), course.job.recipe.training.rounds
    if reply is None:
        if course.answering != number:
            names = ", ".join(sorted(course.job.recipe.data.sites))
            course.tell(f"begun at the server; waiting for {names} to start")
        elif course.round == total:
            course.tell("the last round is over; waiting for the server to hand out the result")
        return
    now = course.heard = time.monotonic()
    if course.answering != number:
        course.answering = number
        course.tell("started")
        course.quiet = (now, QUIET)
    for row in reply["rounds"]:
        course.round = int(row["round"])
        course.missing = tuple(name for name in row["asked"] if name not in row["replied"])
        course.reporter.ended_round(row, total)
    began, after = course.quiet
    if reply["rounds"]:
        course.quiet = (now, QUIET)
    elif now - began > after and course.round < total:
        course.reporter.say(f"round {course.round + 1} of {total} goes on since {now - began:.0f} s")
        course.quiet = (began, 2 * after)


def ask(session: Session, number: str, after: int = 0, *, more: bool = False) -> dict[str, Any] | None:
    """Ask a job's program how far it is, and for ``more`` its log and what it spent.

    A job that begins, ends or is lost does not answer.
    """
    try:
        reply = session.do_app_command(number, PROGRESS, {"after": after, "more": more})
    except UNANSWERED:
        logger.debug("job %s does not say how far it is", number, exc_info=True)
        return None
    return reply if isinstance(reply, dict) and "rounds" in reply else None


def newest(listed: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the job of a run that may be under way; of one whose server died NVFlare says RUNNING for ever."""
    return max(listed, key=lambda job: str(job.get("submit_time")), default=None)


def _absent(session: Session, course: Course) -> str:
    here = {client.name for client in session.get_connected_client_list()}
    return ", ".join(sorted(set(course.job.recipe.data.sites) - here))


def _give_up_in_time(session: Session, course: Course, number: str) -> None:
    """End a run whose program does not answer: it has not begun, or nobody would hear of its end."""
    silent = time.monotonic() - course.heard
    if silent <= course.patience:
        return
    try:
        session.abort_job(number)
    except UNANSWERED:
        logger.debug("job %s could not be aborted", number, exc_info=True)
    raise RunFailed(
        f"nothing was heard of the run for {silent:.0f} s ({course.told}); it was ended. `fedvisage status` says who is"
        " connected, the logs of server and sites why; --resume tries again, --patience waits longer"
    )


def _is_alive(session: Session, number: str) -> bool:
    return any(job.job_id == number for job in session.get_system_info().job_info)


def _back(session: Session, course: Course, number: str) -> list[str]:
    """Return the sites that a job is without though they are up.

    Asked for only after a round of this job, so that a site that comes and goes cannot keep a run from going on.
    """
    if not course.missing or not course.began < course.round < course.job.recipe.training.rounds:
        return []
    heard = {client.name: float(client.last_connect_time or 0) for client in session.get_connected_client_list()}
    missing = set(course.missing) - course.left_out
    up = [name for name in sorted(missing) if time.time() - heard.get(name, 0.0) < RECENT]
    if not up:
        return []
    at_work = _at_work(session.get_client_job_status(up) or [], number)
    return [name for name in up if name not in at_work]


def _fallen(session: Session, number: str) -> list[str]:
    """Return the sites that were given a job which starts, and say themselves that they have no process for it."""
    given = session.get_job_meta(number).get("job_deploy_detail") or []
    names = [str(one).partition(":")[0] for one in given if str(one).endswith(": OK")]
    sites = [name for name in names if name != "server"]
    try:
        answers = session.get_client_job_status(sites) or []
    except UNANSWERED:
        logger.debug("the sites of job %s do not say what they do", number, exc_info=True)
        return []
    return without_process(answers, number)


def without_process(answers: Sequence[Mapping[str, Any]], number: str) -> list[str]:
    """Return the sites that answered, and not for this job; one that is silent may well be at work."""
    silent = (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR)
    heard = {str(answer.get("client_name")) for answer in answers if answer.get("status") not in silent}
    return sorted(heard - _at_work(answers, number))


def _at_work(answers: Sequence[Mapping[str, Any]], number: str) -> set[str]:
    """Return the sites that have a process for this job."""
    return {str(answer.get("client_name")) for answer in answers if number in map(str, answer.values())}


logger = logging.getLogger("fedvisage.operator")

ATTEMPTS = 5
"""Submissions of one run without a new round in between."""

LOGIN = 10.0
"""Seconds that a server has for letting us in once it has greeted."""

TROUBLE = (NoConnection, FLCommunicationError, InternalError, OSError)
"""What NVFlare raises for a server that is beginning, ending, or cut off."""


def train(
    recipe: Recipe, out: Path, reporter: Reporter, kit: Kit, *, wait: float, patience: float = PATIENCE
) -> Trained:
    """Have a federation train, and return what came of it, as training in this process would."""
    job = Job(_name_of_run(out), travelling(recipe))
    course = Course(job, reporter, patience=patience)
    if line := warning(papers_in(kit.path, at_server=False), kit.name):
        reporter.say(line)
    with reporter.course(recipe.method.name, 0, recipe.training.rounds):
        _until_finished(course, kit, out, wait)
    trained = read_trained(out)
    saved = replace(trained.saved, recipe=recipes.tree_of(recipe))
    saved_model.save(out, saved)
    return replace(trained, saved=saved)


def _until_finished(course: Course, kit: Kit, out: Path, wait: float) -> None:
    """Submit the run as often as it takes, and fetch its result."""
    attempts, known = 0, 0
    while attempts < ATTEMPTS:
        number, ended, before, left_out = None, "", attempts, course.left_out
        try:
            with ExitStack() as stack:
                with course.uncounted():
                    session = stack.enter_context(connected(kit, wait, course.tell))
                stack.enter_context(asking_again(course))
                number = _under_way(session, course)
                if number is None:
                    attempts += 1
                    number = _submit(session, course, wait)
                how = follow(session, course, number)
                if how != "lost" and _fetch(session, course, number, out):
                    return
                ended = how
        except (NoConnection, SessionClosed):
            course.reporter.say("lost the server; connecting again")
            continue
        if number is None or not ended:  # it is asked again
            attempts = before
            continue
        course.over.add(number)
        course.reporter.say(f"the job ended without a result ({ended}); submitting the run again")
        progress = course.round > known or course.left_out != left_out
        attempts, known = 0 if progress else attempts, course.round
    raise RunFailed(f"{ATTEMPTS} jobs ended without a result or a new round; the logs of server and sites say why")


@contextmanager
def connected(kit: Kit, wait: float, say: Say | None = None) -> Iterator[Session]:
    """Talk to the server; a session that is not closed would keep this process alive for ever."""
    began = time.monotonic()
    logging.getLogger("nvflare").addHandler(logging.NullHandler())  # what it says of a closed connection, we say too
    check(papers_in(kit.path, at_server=False), kit.name)
    session = _open(kit, began, began + wait, say or logger.info)
    try:
        yield session
    finally:
        try:
            session.close()
        except (*TROUBLE, SessionClosed, RuntimeError):
            logger.debug("the session could not be closed", exc_info=True)


def _open(kit: Kit, began: float, until: float, say: Say) -> Session:
    """Open a session as soon as the server lets us, until a moment."""
    while True:
        try:
            wait_for_admission(kit, say, until=until)
            left = min(LOGIN, max(1.0, until - time.monotonic()))
            with redirect_stdout(io.StringIO()):  # it prints
                return new_secure_session(kit.name, str(kit.path), timeout=left, auto_login_max_tries=1)
        except (AuthenticationError, AuthorizationError) as error:
            raise UserError(str(kit.path), f"the server does not know this kit: {error}") from error
        except (Unreachable, *TROUBLE) as error:
            now = time.monotonic()
            if isinstance(error, Unreachable) or now > until:
                raise RunFailed(f"the server did not answer within {now - began:.0f} s: {error}") from error
            time.sleep(LOOK)


def _submit(session: Session, course: Course, wait: float) -> str:
    """Submit the run once its sites are connected, or as many as its quorum needs when waiting is over."""
    with course.uncounted():
        sites = _wait_for_sites(session, course, wait)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / course.job.run
        write_job(directory, course.job, sites)
        return str(session.submit_job(str(directory)))


def _wait_for_sites(session: Session, course: Course, wait: float) -> list[str]:
    wanted, until = sorted(set(course.job.recipe.data.sites) - course.left_out), time.monotonic() + wait
    if len(wanted) < course.job.recipe.federation.quorum:
        names = ", ".join(sorted(course.left_out))
        raise RunFailed(f"processes of {names} ended again and again, and without them there is no quorum; their logs "
                        "say why, and --resume tries again")  # fmt: skip
    while True:
        here = {client.name for client in session.get_connected_client_list()}
        missing = [name for name in wanted if name not in here]
        if not missing:
            return wanted
        if time.monotonic() > until:
            present = [name for name in wanted if name in here]
            if len(present) < course.job.recipe.federation.quorum:
                raise RunFailed(f"not connected after {wait:g} s: {', '.join(missing)}; fewer than the quorum are here")
            course.reporter.say(f"beginning without {', '.join(missing)}")
            return present
        course.tell(f"waiting for {', '.join(missing)} to connect")
        time.sleep(LOOK)


def _under_way(session: Session, course: Course) -> str | None:
    """Return the number of this run's job if it has one: an operator's process may have been cut off, or killed."""
    job = newest(session.list_jobs(detailed=True, name_prefix=course.job.run))
    if job is None or str(job["job_id"]) in course.over or str(job.get("status")).startswith("FINISHED"):
        return None
    return str(job["job_id"])


def _fetch(session: Session, course: Course, number: str, out: Path) -> bool:
    """Fetch a job's result, if it left one: a job whose program ended well may still be called abnormal."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".download-") as scratch:
        downloaded = Path(session.download_job_result(number, scratch))
        if take(downloaded, out):
            return True
        course.note_deaths(died(downloaded))
        return False


def _name_of_run(out: Path) -> str:
    """Return the run's name in the federation, made once for a run directory; two runs never share one."""
    path = out / NAME
    if path.exists():
        return str(read_json(path)["run"])
    readable = re.sub(r"[^a-z0-9]+", "-", out.name.lower()).strip("-")[:40]
    name = f"{readable}-{secrets.token_hex(6)}".lstrip("-")
    write_json(path, {"run": name})
    return name
