"""What a service counts, as text that Prometheus reads. No names, no scores."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator


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
