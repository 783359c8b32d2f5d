"""Run work in this process or in worker processes, with results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import active_children, get_all_start_methods, get_context
from typing import ParamSpec, TypeVar

import cv2

from fedvisage.base.processes import begin_worker, block_signals, drop_partial_result, worker_processes

Given = ParamSpec("Given")

FORK_SERVER = "forkserver" in get_all_start_methods()
"""True if the platform supports the forkserver start method."""


def start_fork_server(module: str) -> None:
    """Start the process that forks later ones after it has imported a module; return without waiting for it.

    Such a process starts in milliseconds, and no fork copies the threads of this program. The first call in a program
    decides the module. Systems without a fork server start nothing.
    """
    if FORK_SERVER:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload([module])
        with block_signals():
            forkserver.ensure_running()


class LastingProcess:
    """One fresh process that runs jobs in order and keeps its state between them.

    Like every worker, it takes no signals and never outlives the process that started it. If it is killed, its pending
    jobs and all later ones raise :class:`BrokenProcessPool`, and its state is lost.
    """

    def __init__(self, begin: Callable[[], None] | None = None, *, fork_server: bool = False) -> None:
        """Start the process. It calls ``begin`` first, if given, which must be importable, and then waits for jobs.

        With ``fork_server`` it is forked from the process of :func:`start_fork_server`, where the system has one.
        """
        context = get_context("forkserver" if fork_server and FORK_SERVER else "spawn")
        earlier = {child.pid for child in active_children()}
        with block_signals():
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=begin_worker, initargs=(begin,))
            self._pool.submit(os.getpid)
        self._child = next(child for child in active_children() if child.pid not in earlier)

    def submit(self, job: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Submit a job."""
        return self._pool.submit(job, *args, **kwargs)

    def end(self) -> None:
        """Kill the process at once, even in the middle of a job; its state is lost."""
        self._child.kill()
        drop_partial_result(self._pool)
        self._pool.shutdown(wait=True, cancel_futures=True)


Progress = Callable[[int, int], None]
Work = TypeVar("Work")
Result = TypeVar("Result")

_AHEAD = 4
"""Maximum finished results per process that wait to be taken; more would only fill memory."""


def map_in_order(
    work: Callable[[Work], Result], items: Iterable[Work], workers: int, *, torch: bool = True
) -> Generator[Result, None, None]:
    """Apply ``work`` to every item, here or in worker processes of one thread each, and yield the results in order.

    A caller that stops early must close the generator, which ends the processes. Pass ``torch=False`` for work that
    does not use torch: importing torch takes each process seconds.
    """
    threads = (1, 1 if torch else None)
    if workers > 1:
        with worker_processes(workers, partial(_set_threads, *threads)) as pool:
            remaining = iter(items)
            with block_signals():
                waiting = deque(pool.submit(work, item) for item in islice(remaining, _AHEAD * workers))
            while waiting:
                yield waiting.popleft().result()
                with block_signals():
                    waiting.extend(pool.submit(work, item) for item in islice(remaining, 1))
        return
    for item in items:
        # One thread, as in worker processes: sums over several threads may round differently.
        before = _set_threads(*threads)
        try:
            result = work(item)
        finally:
            _set_threads(*before)
        yield result


def _set_threads(of_opencv: int, of_torch: int | None) -> tuple[int, int | None]:
    """Set the numbers of threads of OpenCV and, unless it is None, of torch; return the numbers before."""
    opencv_before = cv2.getNumThreads()
    cv2.setNumThreads(of_opencv)
    if of_torch is None:
        return opencv_before, None
    import torch

    torch_before = torch.get_num_threads()
    torch.set_num_threads(of_torch)
    return opencv_before, torch_before
