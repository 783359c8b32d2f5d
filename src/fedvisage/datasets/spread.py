"""Work for many items, here or in other processes, with the results in order."""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from threading import current_thread, main_thread
from typing import TypeVar

import cv2

Progress = Callable[[int, int], None]
Work = TypeVar("Work")
Result = TypeVar("Result")

_AHEAD = 4
"""Results a process that may wait to be taken: more would only fill memory."""


def spread(
    work: Callable[[Work], Result], items: Iterable[Work], workers: int, *, torch: bool = True
) -> Iterator[Result]:
    """Do the work for every item, here or in other processes, one thread each; results come in order.

    Work that does not compute with torch says so: loading it takes each process seconds.
    """
    if workers > 1:
        context = get_context("spawn")
        first = _use_one_thread_of_torch if torch else _use_one_thread
        with ProcessPoolExecutor(workers, mp_context=context, initializer=first) as pool:
            yield from _in_order(pool, work, iter(items), _AHEAD * workers)
        return
    for item in items:
        with _one_thread():
            result = work(item)
        yield result


def _in_order(
    pool: ProcessPoolExecutor, work: Callable[[Work], Result], items: Iterator[Work], ahead: int
) -> Iterator[Result]:
    """Keep a few items in work; yield the results in the order of the items."""
    with _children_ignore_interrupts():  # once: an interruption of our own in this time is lost
        waiting = deque(pool.submit(work, item) for item in islice(items, ahead))
    try:
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(items, 1))
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C, which reaches all of a terminal's processes, does not stop: the caller ends them."""
    if current_thread() is not main_thread():  # where signals cannot be set, and Ctrl-C does not arrive
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _use_one_thread() -> None:
    cv2.setNumThreads(1)


def _use_one_thread_of_torch() -> None:
    import torch

    torch.set_num_threads(1)
    _use_one_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work as a worker process does: sums over several threads may round otherwise."""
    import torch

    before = torch.get_num_threads(), cv2.getNumThreads()
    _use_one_thread_of_torch()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])
