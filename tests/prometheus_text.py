"""A strict reader of Prometheus' text format, written from its specification."""

import re

Labels = tuple[tuple[str, str], ...]

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+0-9.e]+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def read_metrics(text: str) -> dict[tuple[str, Labels], float]:
    """Return the value of each sample; fail on a sample outside its family, and on a repeated family or sample."""
    assert text.endswith("\n")
    values, families, kind = dict[tuple[str, Labels], float](), list[str](), ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            name, purpose = line.removeprefix("# HELP ").split(" ", 1)
            assert name not in families
            assert purpose
            families.append(name)
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert name == families[-1]
            assert kind in ("counter", "gauge")
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == families[-1]
            assert sample[1].endswith("_total") == (kind == "counter")
            labels, end = list[tuple[str, str]](), 0
            for pair in LABEL.finditer(sample[2] or ""):
                assert pair.start() == end
                end = pair.end()
                labels.append((pair[1], re.sub(r"\\.", lambda match: ESCAPED[match[0]], pair[2])))
            assert end == len(sample[2] or "")
            assert (sample[1], tuple(labels)) not in values
            values[sample[1], tuple(labels)] = float(sample[3])
    return values


def values_of(text: str, name: str) -> dict[str, float]:
    """Return the values of one metric by the values of its labels, joined with commas."""
    metrics = read_metrics(text)
    return {
        ",".join(value for _, value in labels): number for (each, labels), number in metrics.items() if each == name
    }
