"""One worker process with its sites: what it was asked since the last commit is asked again if it is killed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from fedvisage.errors import RunFailed
from fedvisage.federation.secure.calls import AT_THE_DESK
from fedvisage.runs import seat
from fedvisage.runs.seat import Board, Errand
from fedvisage.workers.lasting import LastingProcess

TRIES = 3
"""Times that a process is replaced between two commits."""
GLANCE = 0.1
"""Seconds between two looks at how far the sites are."""


@dataclass
class Asked:
    """One thing that the process was asked, and what comes of it."""

    job: Callable[[Any], Any]
    what: Any
    future: Future[Any]

    @property
    def secret(self) -> bool:
        """Whether it drew or used secrets that nobody can draw again."""
        return isinstance(self.what, Errand) and self.what.order.call in AT_THE_DESK


class Lane:
    """A process that carries out the orders of its sites one after another."""

    def __init__(self) -> None:
        """Start the process; it has no sites yet."""
        self.names: tuple[str, ...] = ()
        self.board: Board = get_context("spawn").RawArray("q", 3)
        self.process = LastingProcess(partial(seat.begin, self.board))
        self.draws_anew = False
        self._sent = b""
        self._seated: Future[None] = Future()
        self._log: list[Asked] = []
        self._generations: dict[str, int] = {}
        self._lost = 0

    def take(self, names: tuple[str, ...], sent: bytes, *, draws_anew: bool) -> None:
        """Take these sites, with what :func:`fedvisage.runs.seat.packed` made of them.

        ``draws_anew``: secrets of a secure sum come from the operating system, and would be others the next time.
        """
        self.names, self._sent, self.draws_anew = names, sent, draws_anew
        self._log, self._lost, self.board[:] = [], 0, [0, 0, 0]
        self._seated = self._handed_in(seat.sit, sent)

    def ask(self, errand: Errand) -> Asked:
        """Hand in an order."""
        return self._ask(seat.carry_out, errand)

    def commit(self, generation: int) -> Asked:
        """Hand in the wish to commit."""
        return self._ask(seat.commit, generation)

    def owing(self) -> Asked:
        """Ask, between two rounds, whether what was written down is needed after a kill."""
        return self._ask(seat.owing, None)

    def restore(self, generations: dict[str, int]) -> Asked:
        """Send the sites back; from here on everything is written down."""
        self._log, self._generations = [], generations
        return self._ask(seat.restore, generations)

    def forget(self, generations: dict[str, int] | None = None) -> None:
        """Forget what need not be asked again: sites are as they were at these generations, or still at the last."""
        if generations is not None:
            self._generations = generations
        done: Future[None] = Future()
        done.set_result(None)
        self._log, self._lost = [Asked(seat.restore, self._generations, done)], 0

    def result(self, asked: Asked, glance: Callable[[], None]) -> Any:
        """Wait for what comes of it; a process that ended is replaced meanwhile. ``glance`` is called now and then."""
        while True:
            try:
                for future in (self._seated, asked.future):
                    while not future.done():
                        wait([future], GLANCE)
                        glance()
                    future.result()
                return asked.future.result()
            except BrokenProcessPool:
                self._begin_again()

    def _ask(self, job: Callable[[Any], Any], what: Any) -> Asked:
        self._log.append(Asked(job, what, self._handed_in(job, what)))
        return self._log[-1]

    def _begin_again(self) -> None:
        """Replace the process, and ask it all that its predecessor was asked since the last commit."""
        self._lost += 1
        if self._lost > TRIES:
            raise RunFailed(self._why())
        if self.draws_anew and any(asked.secret for asked in self._log):
            raise RunFailed("a worker process was killed, and its sites' secrets with it; --resume continues the run")
        self.process.replace()
        self._seated = self._handed_in(seat.sit, self._sent)
        for asked in self._log:
            asked.future = self._handed_in(asked.job, asked.what)

    def _why(self) -> str:
        if self._seated.done() and self._seated.exception() is None:
            return "a worker process ended by itself again and again, perhaps for lack of memory; use fewer workers"
        return "no worker process could begin; use runtime.workers=1"

    def _handed_in(self, job: Callable[[Any], Any], what: Any) -> Future[Any]:
        try:
            return self.process.submit(job, what)
        except BrokenProcessPool as error:
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken
