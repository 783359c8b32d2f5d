"""Following a job from the operator's end: rounds as they come, a job that is lost, a site that is back."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.nvflare.job import Job
from fedvisage.nvflare.server_program import PROGRESS
from fedvisage.progress import Reporter, note_of

logger = logging.getLogger("fedvisage.operator")

LOST = 20.0
"""Seconds without any sign of a job that is said to be running; NVFlare never says that it is gone."""

RECENT = 20.0
"""A site that was heard of in so many seconds is up; heartbeats come every ten."""

LOOK = 1.0
"""Seconds between two looks."""


@dataclass
class Course:
    """A run as the operator sees it."""

    job: Job
    reporter: Reporter
    round: int = 0
    began: int = 0
    missing: tuple[str, ...] = ()
    """Sites that the last round was without."""
    over: set[str] = field(default_factory=set)
    """Jobs that are not to be followed any more, whatever NVFlare says of them."""


def follow(session: Session, course: Course, number: str) -> str:
    """Report a job's rounds until it ends, or until it is lost; return how it ended."""
    course.began, seen, asked = course.round, None, False
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
            if not asked and (back := _back(session, course, number)):
                asked = True
                course.reporter.say(f"{', '.join(back)} is back: the run continues with it, from the last checkpoint")
                session.abort_job(number)
        time.sleep(LOOK)


def report(session: Session, course: Course, number: str) -> None:
    """Report rounds that are new; NVFlare raises whatever it likes while a job begins or ends."""
    try:
        reply = session.do_app_command(number, PROGRESS, {"after": course.round})
    except Exception:
        logger.debug("job %s does not say how far it is", number, exc_info=True)
        return
    for row in reply.get("rounds", []) if isinstance(reply, dict) else []:
        course.round = int(row["round"])
        course.missing = tuple(name for name in row["asked"] if name not in row["replied"])
        course.reporter.advance(course.round, course.job.recipe.training.rounds, note_of(row))


def _is_alive(session: Session, number: str) -> bool:
    return any(job.job_id == number for job in session.get_system_info().job_info)


def _back(session: Session, course: Course, number: str) -> list[str]:
    """Return the sites that a job is without though they are up: NVFlare takes nobody into a job that has begun.

    Asked for only after a round of this job, so that a site that comes and goes cannot keep a run from going on.
    """
    if not course.missing or not course.began < course.round < course.job.recipe.training.rounds:
        return []
    heard = {client.name: float(client.last_connect_time or 0) for client in session.get_connected_client_list()}
    up = [name for name in course.missing if time.time() - heard.get(name, 0.0) < RECENT]
    if not up:
        return []
    at_work = _at_work(session.get_client_job_status(up) or [], number)
    return [name for name in up if name not in at_work]


def _at_work(answers: list[dict[str, Any]], number: str) -> set[str]:
    """Return the sites that have a process for this job."""
    return {str(answer.get("client_name")) for answer in answers if number in map(str, answer.values())}
