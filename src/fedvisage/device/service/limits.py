"""Limits and Prometheus metrics of the service."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass

from fedvisage.base.errors import UserError
from fedvisage.base.prometheus import text_of

# The metrics contain no names and no scores.


class Counts:
    """Requests by route and status, their durations, and decisions by type."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.decisions: Counter[str] = Counter()
        self.waiting = 0
        self._lock = threading.Lock()

    def add_waiting(self, number: int) -> None:
        """Change the number of requests that wait or are being answered; thread-safe."""
        with self._lock:
            self.waiting += number

    def count_decision(self, decision: str) -> None:
        """Count the decision on a face."""
        with self._lock:
            self.decisions[decision] += 1

    def count_answer(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[method, route, status] += 1
        self.seconds[route] += seconds

    def text(self) -> str:
        """Return all counts in Prometheus' text format."""
        names = ("method", "route", "status")
        requests = [(dict(zip(names, key, strict=True)), count) for key, count in sorted(self.requests.items())]
        seconds = [({"route": route}, round(number, 6)) for route, number in sorted(self.seconds.items())]
        decisions = [({"decision": name}, count) for name, count in sorted(self.decisions.items())]
        return text_of(
            [
                ("fedvisage_requests_total", "Requests by route and status.", requests),
                ("fedvisage_request_seconds_total", "Duration of requests by route.", seconds),
                ("fedvisage_decisions_total", "Decisions on faces.", decisions),
                ("fedvisage_waiting", "Requests that are not answered yet.", [({}, self.waiting)]),
            ]
        )


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    body: int = 10_000_000
    """Maximum bytes of a request."""
    pixels: int = 16_000_000
    """Maximum pixels of a picture, checked before decoding; larger JPEGs are decoded at reduced scale."""
    faces: int = 20
    """Maximum faces of a picture that are evaluated, the largest first."""
    seconds: float = 30.0
    """Maximum seconds from the arrival of a request to the end of its response; files of the page get more."""
    rate: float = 20.0
    """Requests per second of one key, or of one address if there are no keys; 0: unlimited. Each further face of a
    picture counts as another request."""
    burst: int = 100
    """Requests that may come at once before the rate applies."""
    workers: int = 2
    """Requests processed at the same time."""
    waiting: int = 500
    """Maximum requests that wait for processing; further ones are asked to retry."""
    bodies: int = 200_000_000
    """Maximum bytes of all requests that are not answered yet; one key, or one address, may have a quarter. Both admit
    at least one request of the maximum length."""

    def __post_init__(self) -> None:
        """Refuse limits that would reject every request."""
        numbers = (self.body, self.pixels, self.faces, self.burst, self.workers, self.waiting, self.bodies)
        if min(numbers) < 1 or self.seconds <= 0:
            raise UserError("limits", "must be above 0")
