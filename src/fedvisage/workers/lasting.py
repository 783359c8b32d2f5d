"""A process that keeps what it works on from job to job, and is replaced when something ends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import ParamSpec, TypeVar

from fedvisage.workers.processes import begin_worker, starting

Given = ParamSpec("Given")
Result = TypeVar("Result")


class LastingProcess:
    """One fresh process that does jobs in their order; like any worker it takes no signals and never outlives us.

    When it is killed its jobs raise :class:`BrokenProcessPool`, also those that are handed in afterwards, until it is
    replaced. Whatever it remembers is gone then.
    """

    def __init__(self, begin: Callable[[], None] | None = None) -> None:
        """Start it: it calls ``begin``, if there is one, which must be importable, and waits for jobs."""
        self._begin = begin
        self.replace()

    def replace(self) -> None:
        """Start another one; the last one must have been ended, by whomever."""
        others = {child.pid for child in active_children()}
        with starting():
            self._pool = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=begin_worker, initargs=(self._begin,)
            )
            self._pool.submit(os.getpid)
        self._child = next(child for child in active_children() if child.pid not in others)

    @property
    def pid(self) -> int:
        """The process, as the system numbers it."""
        assert self._child.pid is not None, "it was started"
        return self._child.pid

    def submit(self, job: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Hand in a job."""
        with starting():
            return self._pool.submit(job, *args, **kwargs)

    def end(self) -> None:
        """End it at once, whatever it does; it holds nothing that anybody needs."""
        self._child.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
