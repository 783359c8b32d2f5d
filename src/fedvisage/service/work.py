"""What is computed for a request, in threads: a few at a time, and no more waiting than can be answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedvisage.errors import UserError
from fedvisage.gallery.engine import Engine
from fedvisage.gallery.search import Gallery
from fedvisage.service.counting import Counts
from fedvisage.service.faults import Fault
from fedvisage.service.settings import Limits

Result = TypeVar("Result")


class Work:
    """The engine and the gallery of a service, and who waits for them.

    A request that was given up because of its time keeps its thread until that is done: there are never more of them.
    """

    def __init__(self, engine: Engine, gallery: Gallery | None, limits: Limits) -> None:
        """Take what answers, and how many may ask."""
        self.engine, self.gallery, self.limits, self.counts = engine, gallery, limits, Counts()
        self._pool = ThreadPoolExecutor(limits.workers, "answering")

    async def do(self, some: Callable[[], Result]) -> Result:
        """Compute something in a thread, when one is free."""
        if self.counts.waiting >= self.limits.waiting + self.limits.workers:
            raise Fault(503, "busy", "too many requests are waiting; ask again").again_in(1)
        self.counts.came(1)
        future = self._pool.submit(some)
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def _done(self, _: Future[Result]) -> None:
        self.counts.came(-1)

    def people(self) -> Gallery:
        """Return the gallery."""
        if self.gallery is None:
            raise UserError("gallery", "this service has none; start it with --gallery FILE")
        return self.gallery


class Times:
    """How long the steps of an answer took, in milliseconds."""

    def __init__(self) -> None:
        """Start the clock."""
        self._last = time.perf_counter()
        self.values: dict[str, float] = {}

    def done(self, step: str) -> None:
        """Note that a step has ended."""
        now = time.perf_counter()
        self.values[step] = round((now - self._last) * 1000, 1)
        self._last = now
