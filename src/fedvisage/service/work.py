"""What is computed for a request, in threads: a few at a time, and no more waiting than can be answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
from anyio import to_thread

from fedvisage.errors import UserError
from fedvisage.gallery.engine import Engine
from fedvisage.gallery.search import Gallery
from fedvisage.service.counting import Counts
from fedvisage.service.faults import Fault
from fedvisage.service.settings import Limits

Result = TypeVar("Result")


@dataclass(eq=False)
class Work:
    """The engine and the gallery of a service, and who waits for them."""

    engine: Engine
    gallery: Gallery | None
    limits: Limits = field(default_factory=Limits)
    counts: Counts = field(default_factory=Counts)
    _threads: anyio.CapacityLimiter | None = None

    async def do(self, some: Callable[[], Result]) -> Result:
        """Compute something in a thread, when one is free."""
        if self._threads is None:  # here, because it belongs to the loop that runs
            self._threads = anyio.CapacityLimiter(self.limits.workers)
        if self.counts.waiting >= self.limits.waiting + self.limits.workers:
            raise Fault(503, "busy", "too many requests are waiting; ask again").again_in(1)
        self.counts.waiting += 1
        try:
            return await to_thread.run_sync(some, limiter=self._threads, abandon_on_cancel=True)
        finally:
            self.counts.waiting -= 1

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
