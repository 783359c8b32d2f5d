"""What a service allows, and who may ask."""

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

# What a service counts, as text that Prometheus reads. No names, no scores.


class Counts:
    """Requests by route and status, their time, decisions by kind."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.decisions: Counter[str] = Counter()
        self.waiting = 0
        self._lock = threading.Lock()

    def came(self, number: int) -> None:
        """Count who waits or is answered, as threads see it."""
        with self._lock:
            self.waiting += number

    def decided(self, decision: str) -> None:
        """Count what was decided of a face."""
        with self._lock:
            self.decisions[decision] += 1

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[method, route, status] += 1
        self.seconds[route] += seconds

    def text(self) -> str:
        """Return all counts."""
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
"""Letters of a key of the service; shorter ones are guessed."""

_LARGEST = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a service takes from those who ask."""

    body: int = 10_000_000
    """Bytes of a request."""
    pixels: int = 50_000_000
    """Pixels of a picture, looked at before it is decoded."""
    seconds: float = 30.0
    """In which a request must have come, and in which it must be answered."""
    rate: float = 20.0
    """Requests a second of one key, or of one address where there are no keys; 0: as many as there are."""
    burst: int = 100
    """Requests that may come at once, beyond which the rate counts."""
    workers: int = 2
    """Requests that are computed at a time."""
    waiting: int = 500
    """Requests that wait for that; any more are told to come again."""

    def __post_init__(self) -> None:
        """Refuse what would take nothing."""
        if min(self.body, self.pixels, self.burst, self.workers, self.waiting) < 1 or self.seconds <= 0:
            raise UserError("limits", "must be above 0")


class Keys:
    """Who may ask: by digests of their keys, all of which are compared in the same time whatever was given."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Take the keys; without any, everybody may ask."""
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        """Say whether there are keys."""
        return bool(self._digests)

    def owner(self, given: str) -> int | None:
        """Return the number of a key; nothing if it is none."""
        digest, found = _digest(given), None
        for number, known in enumerate(self._digests):
            if hmac.compare_digest(digest, known):
                found = number
        return found


def read_keys(path: Path) -> Keys:
    """Read a file with a key a line; lines that begin with # say something else."""
    lines = [line.strip() for line in read_text(path, _LARGEST).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UserError(str(path), "holds no key; write one a line")
    if any(len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UserError(str(path), f"a key is one word of at least {SHORTEST} plain letters; draw one at random")
    return Keys(keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
