"""Worker processes that nothing ends but the process that started them, and that never outlive it.

Signals reach a whole group of processes: Ctrl-C a terminal's, SIGTERM a service's. The workers take none, so the
process that uses them decides what becomes of their work, and ends them itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from fedvisage.errors import RunFailed

STOPS = (signal.SIGINT, signal.SIGTERM)

_STARTING = threading.RLock()
"""What a program says of itself is hidden by one thread at a time, else another would keep what it finds hidden."""


@contextmanager
def worker_processes(count: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Lend a pool of fresh processes, each begun by a function; whatever goes wrong, none is left.

    Work is handed in by ``submit``, not ``map``: that cancels what it has not done, on which a pool that ends stumbles.
    """
    others = {child.pid for child in active_children()}
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=begin_worker, initargs=(begin,))
    whole = False
    try:
        yield pool
        whole = True
    except BrokenProcessPool:
        raise RunFailed("a worker process ended by itself, perhaps for lack of memory; use fewer workers") from None
    finally:
        if not whole:
            for child in active_children():
                if child.pid not in others:
                    child.kill()
        pool.shutdown()


@contextmanager
def starting() -> Iterator[None]:
    """Hold signals back while workers start, which so never take any; what came meanwhile arrives afterwards.

    Nor do workers get to know the program's own file. They would run it again, and a script of ten lines, as users
    write it, has no guard against that; what they work on is never in it.
    """
    with _STARTING:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        main = sys.modules["__main__"].__dict__
        hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(hidden)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(begin: Callable[[], None] | None) -> None:
    """Begin a worker, in itself: it ends with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    wait([parent.sentinel])
    os._exit(1)
