"""The operating points of a model, as a table, as plain values and as a figure of its error-rate curves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_atomically
from fedvisage.metrics.operating_point import ALL, ErrorCurves, Task, choose_point
from fedvisage.metrics.threshold import Threshold
from fedvisage.report.tables import Table

LISTED: dict[Task, tuple[str, ...]] = {
    "pad": ("eer", "bpcer=1%", "bpcer=2%", "bpcer=5%", "bpcer=10%", "apcer=1%", "apcer=5%", "apcer=10%"),
    "recognition": ("eer", "fmr=1e-2", "fmr=1e-3", "fmr=1e-4", "fmr=1e-5"),
}
"""The points that are printed without ``--at``, as far as the held-out people support them."""


@dataclass(frozen=True)
class OperatingPoints:
    """Operating points of a model, the points that its held-out people do not support, and its curves."""

    task: Task
    curves: ErrorCurves
    own: Threshold | None
    points: tuple[Threshold, ...]
    unsupported: tuple[str, ...]

    def as_values(self) -> dict[str, Any]:
        """Return everything as plain values, for programs."""
        points = [
            {
                "at": point.rule,
                "threshold": point.value,
                "estimates": {name: asdict(estimate) for name, estimate in point.estimates.items()},
            }
            for point in self.points
        ]
        own = None if self.own is None else {"threshold": self.own.value, "rule": self.own.rule}
        curves = self.curves.model_dump(mode="json")
        return {
            "task": self.task,
            "own": own,
            "points": points,
            "unsupported": list(self.unsupported),
            "curves": curves,
        }

    def table(self) -> Table:
        """Return the points as a table, for people."""
        names = list(self.points[0].estimates) if self.points else []
        rows = [
            (point.rule, f"{point.value:+.4f}", *(str(point.estimates[name]) for name in names))
            for point in self.points
        ]
        if self.own is not None:
            rates = {names[0]: self.own.frr, names[1]: self.own.far} if names else {}
            own = ("–" if rates.get(name) is None else f"{rates[name]:.2%}" for name in names)
            rows.append((self.own.rule, f"{self.own.value:+.4f}", *own))
        people = {"bona fide" if self.task == "pad" else "genuine": self.curves.rejected} | self.curves.accepted
        counts = ", ".join(f"{name} {curve.people:,}" for name, curve in people.items())
        unsupported = f"; too few for {', '.join(self.unsupported)}" if self.unsupported else ""
        scale = "logit" if self.task == "pad" else "cosine"
        note = f"Held-out people at the sites: {counts}{unsupported}. Other cameras have other error rates."
        return Table("Operating points", ("at", scale, *names), tuple(rows), note=note)


def list_points(
    curves: ErrorCurves | None,
    task: Task,
    model: str,
    own: Threshold | None,
    at: str | None = None,
    *,
    exported: bool = False,
) -> OperatingPoints:
    """Return a model's usual operating points, or the wished one; a model without curves is refused."""
    if at is not None or curves is None:
        point = choose_point(curves, at or "eer", task, model, exported=exported)
        assert curves is not None
        return OperatingPoints(task, curves, own, (point,), ())
    points, unsupported = [], []
    for text in LISTED[task]:
        try:
            points.append(choose_point(curves, text, task, model))
        except UserError:
            unsupported.append(text)
    return OperatingPoints(task, curves, own, tuple(points), tuple(unsupported))


def draw(path: Path, listed: OperatingPoints) -> None:
    """Draw the error rates over the threshold into an SVG or PNG file."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise UserError(str(path), "is not a figure's name; end it with .svg or .png")
    from fedvisage.report.curves import error_rates  # loads the plotting library

    rejected, accepted = ("BPCER", "APCER") if listed.task == "pad" else ("FNMR", "FMR")
    curves = listed.curves
    rates = {rejected: curves.rejected.rates} | {
        accepted if name == ALL else f"{accepted} {name}": curve.rates for name, curve in curves.accepted.items()
    }
    thresholds = [point.value for point in listed.points] if len(listed.points) == 1 else []
    scale = "logit" if listed.task == "pad" else "cosine"
    write_atomically(path, error_rates(curves.thresholds, rates, thresholds, scale, path.suffix.lower()[1:]))
