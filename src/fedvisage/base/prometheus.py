"""The text format of Prometheus, in which servers, sites and the HTTP service print their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from fedvisage.base.errors import plain_line

MOST, LETTERS = 1000, 100
"""Values of a metric, and characters of a label, at most: names come from other organisations."""


Family = tuple[str, str, Iterable[tuple[Mapping[str, object], float]]]
"""Name and purpose of a metric, and labels and number of each value. A counter's name ends with ``_total``."""


def text_of(families: Iterable[Family]) -> str:
    """Return metrics in the text format; labels that look alike are printed once."""
    lines = list[str]()
    for name, purpose, values in families:
        kind = "counter" if name.endswith("_total") else "gauge"
        numbers = {_text_of_labels(labels): number for labels, number in islice(values, MOST)}
        lines += [f"# HELP {name} {purpose}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {number}" for labels, number in numbers.items()]
    return "".join(f"{line}\n" for line in lines)


def _text_of_labels(labels: Mapping[str, object]) -> str:
    plain = {name: plain_line(str(value), LETTERS) for name, value in labels.items()}
    pairs = [name + '="' + value.replace("\\", r"\\").replace('"', r"\"") + '"' for name, value in plain.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""
