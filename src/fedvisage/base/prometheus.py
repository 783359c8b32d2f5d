"""The text format of Prometheus, in which servers, sites and the HTTP service print their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal, NamedTuple

from fedvisage.base.errors import plain_line

MOST, LETTERS = 1000, 100
"""Values of a metric, and characters of a label, at most: names come from other organisations."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """A metric with its values."""

    name: str
    kind: Literal["counter", "gauge"]
    purpose: str
    values: Iterable[tuple[Mapping[str, object], float]]
    """Labels and number of each value; labels that look alike are printed once."""


def text_of(families: Iterable[Family]) -> str:
    """Return metrics in the text format."""
    lines = list[str]()
    for family in families:
        lines += [f"# HELP {family.name} {family.purpose}", f"# TYPE {family.name} {family.kind}"]
        values = {_text_of_labels(labels): number for labels, number in islice(family.values, MOST)}
        lines += [f"{family.name}{labels} {number}" for labels, number in values.items()]
    return "".join(f"{line}\n" for line in lines)


def _text_of_labels(labels: Mapping[str, object]) -> str:
    pairs = []
    for name, value in labels.items():
        escaped = plain_line(str(value), LETTERS).replace("\\", r"\\").replace('"', r"\"")
        pairs.append(f'{name}="{escaped}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
