"""Limits, API keys and Prometheus metrics of the service."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_text

# The metrics contain no names and no scores.


class Counts:
    """Requests by route and status, their durations, and decisions by type."""

    def __init__(self) -> None:
        """Start all counts at zero."""
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
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# TYPE fedvisage_requests_total counter"
        for (method, route, status), count in sorted(self.requests.items()):
            yield f'fedvisage_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield "# TYPE fedvisage_request_seconds_total counter"
        for route, seconds in sorted(self.seconds.items()):
            yield f'fedvisage_request_seconds_total{{route="{route}"}} {seconds:.6f}'
        yield "# TYPE fedvisage_decisions_total counter"
        for decision, count in sorted(self.decisions.items()):
            yield f'fedvisage_decisions_total{{decision="{decision}"}} {count}'
        yield "# TYPE fedvisage_waiting gauge"
        yield f"fedvisage_waiting {self.waiting}"


LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORTEST = 16
"""Minimum characters of a service key; shorter ones can be guessed."""

_LARGEST = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on requests."""

    body: int = 10_000_000
    """Maximum bytes of a request."""
    pixels: int = 50_000_000
    """Maximum pixels of a picture, checked before decoding."""
    seconds: float = 30.0
    """Maximum seconds from the arrival of a request to the end of its response; files of the page get more."""
    rate: float = 20.0
    """Requests per second of one key, or of one address if there are no keys; 0: unlimited."""
    burst: int = 100
    """Requests that may come at once before the rate applies."""
    workers: int = 2
    """Requests processed at the same time."""
    waiting: int = 500
    """Maximum requests that wait for processing; further ones are asked to retry."""

    def __post_init__(self) -> None:
        """Refuse limits that would reject every request."""
        if min(self.body, self.pixels, self.burst, self.workers, self.waiting) < 1 or self.seconds <= 0:
            raise UserError("limits", "must be above 0")


class Keys:
    """The API keys, stored as digests and all compared in constant time."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Store the keys; without any, every caller is admitted."""
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        """Return whether there are keys."""
        return bool(self._digests)

    def owner(self, key: str) -> int | None:
        """Return the number of a key; None if it is unknown."""
        digest, match = _digest(key), None
        for number, candidate in enumerate(self._digests):
            if hmac.compare_digest(digest, candidate):
                match = number
        return match


def read_keys(path: Path) -> Keys:
    """Read a file with one key per line; lines that begin with # are comments."""
    lines = [line.strip() for line in read_text(path, _LARGEST).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UserError(str(path), "does not contain a key; write one key per line")
    if any(len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UserError(str(path), f"a key is one word of at least {SHORTEST} ASCII characters; generate one at random")
    return Keys(keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
