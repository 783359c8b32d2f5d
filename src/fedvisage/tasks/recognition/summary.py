"""The headline figures of a recognition model, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.progress import percent


def summary_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return verification and identification rates, generic and personal."""
    generic, personal = figures.get("generic") or {}, figures.get("personalised") or {}
    lines = [f"{figures['method']} on benchmark {figures['user']}"]
    if figures.get("threshold") is not None:
        lines[0] += f" (threshold {figures['threshold']:.4f} by rule {figures['threshold_rule']})"
    for name, measured in (("generic", generic), (f"personal, {personal.get('model')} model", personal)):
        for kind, title in (("tar_at_far", "TAR@FAR"), ("tpir_at_fpir", "TPIR@FPIR")):
            rates = [
                f"{rate} {percent(value)}" for rate, value in (measured.get(kind) or {}).items() if value is not None
            ]
            lines += [f"  {name}: {title} {'  '.join(rates)}"] if rates else []
    if generic.get("accuracy_on_ten_folds") is not None:
        lines.append(f"  ten folds: {percent(generic['accuracy_on_ten_folds'])}")
    if (listed := generic.get("listed_pairs")) is not None:
        said = f"{listed['pairs']} pairs of {listed['list']} ({listed['left_out']} left out: no such image)"
        lines.append(f"  {said}: {percent(listed['accuracy'])} on {listed['folds']} folds")
    return lines
