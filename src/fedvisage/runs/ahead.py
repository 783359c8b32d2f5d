"""What draws a report, loaded beside a run: seconds that no first step and no person at the end has to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread
from typing import Any

from fedvisage.progress import Reporter

DRAWS = "fedvisage.report.page"


@contextmanager
def loading(reporter: Reporter, name: str = DRAWS) -> Iterator[None]:
    """Load a module in a thread of its own from the end of the first round on.

    Two threads that load at once do not block each other for good: whatever a run loads late is a whole package, and
    the packages that draw do not need each other in a circle.
    """
    begun: list[Thread] = []

    def hear(row: Mapping[str, Any]) -> None:
        if not begun:
            begun.append(Thread(target=_load, args=(name,)))
            begun[0].start()

    reporter.listeners.append(hear)
    try:
        yield
    finally:
        reporter.listeners.remove(hear)


def _load(name: str) -> None:
    """Load it; what lacks is said where it is needed."""
    with suppress(ImportError):
        import_module(name)
