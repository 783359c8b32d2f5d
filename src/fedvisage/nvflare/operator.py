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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    NoConnection,
    SessionClosed,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedvisage import recipe as recipes
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import read_json, write_json
from fedvisage.nvflare.certificates import check, papers_in, warning
from fedvisage.nvflare.following import PATIENCE, Course, asking_again, follow, newest
from fedvisage.nvflare.greeting import Unreachable
from fedvisage.nvflare.job import Job, travelling, write_job
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.knocking import wait_for_admission
from fedvisage.nvflare.outcome import died, read_trained, take
from fedvisage.progress import Reporter, Say
from fedvisage.recipe import Recipe
from fedvisage.runs.directory import NAME
from fedvisage.tasks import model
from fedvisage.tasks.task import Trained

logger = logging.getLogger("fedvisage.operator")

ATTEMPTS = 5
"""Submissions of one run without a new round in between."""

LOOK = 1.0
"""Seconds between two looks at who is connected."""

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
    model.save(out, saved)
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
