"""The metrics of a run as ``metrics.json`` stores them: one flat mapping from name to value.

A name lists the parts of a figure, the widest first: ``hter``, ``apcer.print``, ``members.A.auc``,
``generic.tar@1e-3``, ``benchmarks.rfw.lists.african.accuracy``. A value is a number, a text, a list, or None for an
undefined figure. The records in ``RECORDS`` are no figures and keep their structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_json

FORMAT = 2
RECORDS = ("attendance", "privacy", "ended", "by_round")
"""Accounts of sites, of privacy and of an early end, and the curve of figures by round."""


class Metrics(dict[str, Any]):
    """Recorded metrics by name."""

    @classmethod
    def of(cls, tree: Mapping[str, Any], prefix: str = "") -> Metrics:
        """Return nested mappings as one flat mapping."""
        metrics = cls()
        for key, value in tree.items():
            if isinstance(value, Mapping) and f"{prefix}{key}" not in RECORDS:
                # A dot in the name of a group must not look like another part.
                metrics |= cls.of(value, f"{prefix}{key.replace('.', '_')}.")
            else:
                metrics[f"{prefix}{key}"] = value
        return metrics

    def number(self, name: str) -> float | None:
        """Return a figure, or None if it is undefined or absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")
        return value

    def part(self, prefix: str) -> Metrics:
        """Return the metrics below a prefix, such as a member or a level, without the prefix."""
        start = f"{prefix}."
        return Metrics({name.removeprefix(start): value for name, value in self.items() if name.startswith(start)})

    def parts(self, prefix: str) -> dict[str, Metrics]:
        """Return the metrics of every member, site or group below a prefix, by its name."""
        parts: dict[str, Metrics] = {}
        for name, value in self.part(prefix).items():
            first, _, rest = name.partition(".")
            parts.setdefault(first, Metrics())[rest] = value
        return parts

    def rates(self, kind: str) -> dict[str, float | None]:
        """Return the rates of a kind, ``tar``, ``tpir`` or ``rank``, by error rate or rank."""
        names = [name for name in self if name.startswith(f"{kind}@")]
        return {name.partition("@")[2]: self.number(name) for name in names}


def read_metrics(path: Path, remedy: str = "restore it") -> Metrics:
    """Read ``metrics.json``, also of a version that wrote nested mappings."""
    content = read_json(path, remedy)
    if "format" not in content:
        return from_nested(content)
    if content["format"] != FORMAT:
        raise UserError(
            str(path), f"has format {content['format']}, this version reads {FORMAT}; use a newer fedvisage"
        )
    nested = [name for name, value in content.items() if isinstance(value, dict) and name not in RECORDS]
    if nested:
        raise UserError(str(path), f"{nested[0]} must be a value, not an object; restore the file")
    return Metrics(content)


# The nested format of earlier versions had other names for some parts.

_FORMER_RATES = {"tar_at_far": "tar", "tpir_at_fpir": "tpir", "rank": "rank"}
_FORMER_KEYS = {"user": "target", "personalised": "personal"}


def from_nested(content: Mapping[str, Any]) -> Metrics:
    """Return the content of a nested ``metrics.json`` of an earlier version under the present names."""
    metrics = Metrics()
    for key, value in content.items():
        name = _FORMER_KEYS.get(key, key)
        if key == "by_round":
            metrics[name] = [from_nested(row) for row in value]
        elif value is not None or key in ("user", "target", "threshold"):
            metrics |= Metrics.of({name: value if name in RECORDS else _with_present_names(value)})
    return metrics


def _with_present_names(value: Any) -> Any:
    """Rename the parts of a nested value: ``{"tar_at_far": {"1e-3": 0.9}}`` becomes ``{"tar@1e-3": 0.9}``."""
    if not isinstance(value, Mapping):
        return value
    renamed: dict[str, Any] = {}
    for key, inner in value.items():
        if key in _FORMER_RATES and isinstance(inner, Mapping):
            renamed |= {f"{_FORMER_RATES[key]}@{rate}": figure for rate, figure in inner.items()}
        elif key == "tar_by_impostors":  # {"within groups": {"1e-3": 0.9}}
            kinds = {kind.removesuffix(" groups"): {"tar_at_far": rates} for kind, rates in inner.items()}
            renamed["impostors"] = _with_present_names(kinds)
        else:
            renamed["accuracy" if key == "accuracy_on_ten_folds" else key] = _with_present_names(inner)
    return renamed
