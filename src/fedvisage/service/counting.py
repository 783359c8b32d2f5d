"""What a service counts, as text that Prometheus reads. No names, no scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator


class Counts:
    """Requests by route and status, their time, decisions by kind."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.waiting = 0

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests[method, route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]  # a sum of times is what it counts

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
