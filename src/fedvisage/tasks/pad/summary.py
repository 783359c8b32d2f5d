"""The headline figures of an attack detector, as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.metrics.published import RATES
from fedvisage.progress import counted, percent


def summary_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return error rates by level and by species, and what became of an adaptation."""
    lines = [
        f"{figures['method']} at user {figures['user']} ({figures['level']} level, threshold "
        f"{figures['threshold']:.3f} by rule {figures['threshold_rule']})"
    ]
    for level in ("frame", "video"):
        at_level = figures if level == figures["level"] else figures[level]
        rates = [f"{name.upper():6}{percent(at_level[name])}" for name in ("hter", "eer", "auc", "acer")]
        lines.append(f"  {level:6}" + "  ".join(rates) + f"  TPR@FPR=1% {percent(at_level['tpr_at_fpr_1pct'])}")
    species = "  ".join(f"{name} {percent(value)}" for name, value in figures["apcer"].items())
    lines.append(f"  APCER {species}  BPCER {percent(figures['bpcer'])}")
    if figures.get("published"):
        lines.append(f"  as papers work it out: {_published(figures['published'])}")
    lines += [
        f"  adaptation of {name}: {_adaptation(outcome)}" for name, outcome in figures.get("adaptation", {}).items()
    ]
    return lines


def _published(rates: Mapping[str, Any]) -> str:
    return "; ".join(f"{title} {percent(rates[name])}" for name, title in RATES.items() if name in rates)


def _adaptation(adaptation: Mapping[str, Any]) -> str:
    """Say what became of an adaptation, in images."""
    said = [f"{counted(adaptation['adapted'], 'image')} adapted to"]
    said += [f"{count} skipped ({reason})" for reason, count in adaptation["skipped"].items()]
    said += [f"{count} taken back ({reason})" for reason, count in adaptation["taken_back"].items()]
    return ", ".join(said)
