"""Compare the papers' methods on twelve rendered targets: three renderings of O, C, I and M (decision 0060).

    python -m benchmarks.rendered_targets OUT [--workers 2] [--studies detection,transformers]

Each rendering of each study is a study in a directory of ``OUT``. When it has ended, its figures are kept in
``records/rendered_targets.json``; table and verdicts follow from these records.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from benchmarks.real.cells import current_commit
from benchmarks.real.sign_flip import holm, p_value
from benchmarks.real.verdicts import Verdict, t_interval, word_of
from fedvisage.base.files import read_json, write_json
from fedvisage.metrics.recorded import read_metrics
from fedvisage.studies.conduct import run_study
from fedvisage.studies.study import slug

ROOT = Path(__file__).parents[1]
RECORDS = Path(__file__).parent / "records" / "rendered_targets.json"
DOMAINS, RENDERINGS, SEEDS = ("O", "C", "I", "M"), (0, 1, 2), (0, 1, 2)
FRESH = RENDERINGS[1:]
"""Renderings whose targets had not been seen when the claims were written and adaptation was developed."""

PAPERS_RULE = "published.hter_target_eer"
"""FedSIS's figure: HTER at the threshold of the target's own equal error rate."""
FIGURES = ("auc", "eer", "hter", PAPERS_RULE)


@dataclass(frozen=True)
class Study:
    """Rows that are trained on each rendering: the study whose settings they share, the side of faces, and the rows."""

    like: str
    size: int
    rows: Mapping[str, Mapping[str, Any]]


def adapted(row: str, form: str) -> dict[str, Any]:
    """Return a row that adapts the models of another one."""
    return {"set": [f"evaluation.adapt={form}"], "trained_by": row}


STUDIES = {
    "detection": Study(
        "demo-size.yaml",
        96,
        {
            "Single": {"set": ["method.name=single"]},
            "Fused": {"set": ["method.name=fused"], "trained_by": "Single"},
            "FedPAD": {},
            "FedPAD, statistics": adapted("FedPAD", "statistics"),
            "FedPAD, paper": adapted("FedPAD", "paper"),
            "FedPAD, settled": adapted("FedPAD", "{gate: false}"),
            "FedPAD, gated": adapted("FedPAD", "gated"),
            "FedGPAD": {"recipe": "fedgpad"},
            "All": {"set": ["method.name=pooled"]},
            "All, paper": adapted("All", "paper"),
            "All, gated": adapted("All", "gated"),
        },
    ),
    "transformers": Study(
        "fedsis-demo-size.yaml",
        64,
        {
            "FedAvg": {"recipe": "averaging"},
            "FedSIS": {},
            "FedSIS, one draw": {"set": ["method.inference.blocks=sampled", "method.inference.draws=1"]},
        },
    ),
}

PRIMARY = (
    ("FedPAD", "Single", "auc"),
    ("FedPAD", "Fused", "auc"),
    ("FedPAD", "All", "auc"),
    ("FedGPAD", "FedPAD", "auc"),
    ("FedPAD, paper", "FedPAD", "hter"),
    ("FedPAD, paper", "All", "hter"),
    ("FedSIS, one draw", "FedAvg", PAPERS_RULE),
)
SECONDARY = (
    ("FedPAD", "Single", "hter"),
    ("FedPAD", "Fused", "hter"),
    ("FedPAD", "All", "hter"),
    ("FedGPAD", "FedPAD", "hter"),
    ("FedPAD, statistics", "FedPAD", "hter"),
    ("FedPAD, settled", "FedPAD", "hter"),
    ("FedPAD, gated", "FedPAD", "hter"),
    ("FedPAD, paper", "All, paper", "hter"),
    ("All, paper", "All", "hter"),
    ("All, gated", "All", "hter"),
    ("FedSIS, one draw", "FedAvg", "auc"),
    ("FedSIS", "FedAvg", "auc"),
    ("FedSIS", "FedSIS, one draw", "auc"),
)
ON_FRESH = (
    *PRIMARY,
    ("FedPAD, settled", "FedPAD", "hter"),
    ("FedPAD, gated", "FedPAD", "hter"),
    ("All, gated", "All", "hter"),
)

Target = tuple[int, str]
"""A rendering and a domain."""
Table = Mapping[str, Mapping[str, Mapping[Target, float]]]
"""Figures by row, name and target, averaged over seeds."""


def run_rendering(name: str, rendering: int, out: Path, workers: int) -> dict[str, Any]:
    """Train a study's rows on a rendering; return the figures of each row, target and seed."""
    study = STUDIES[name]
    size = f"subjects=20 frames=2 size={study.size}"
    tree = {
        "title": f"{name}, rendering {rendering}",
        "like": str(ROOT / "recipes" / "studies" / study.like),
        "sets": {domain: f"synth: {domain} {size} seed={rendering}" for domain in DOMAINS},
        "targets": [*DOMAINS],
        "seeds": [*SEEDS],
        "rows": study.rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{rendering}.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    cells = out / f"{name}-{rendering}"
    run_study(path, cells, out / "cache", print, workers=workers)
    figures: dict[str, Any] = {}
    for row, domain, seed in product(study.rows, DOMAINS, SEEDS):
        metrics = read_metrics(cells / "cells" / f"{slug(row)}-{domain}-seed{seed}" / "metrics.json")
        figures.setdefault(row, {}).setdefault(domain, {})[str(seed)] = {
            figure: round(float(metrics[figure]), 6) for figure in FIGURES
        }
    return figures


def run_missing(out: Path, workers: int, names: Sequence[str], records: Path) -> None:
    """Run each study and rendering without a record."""
    for rendering, name in product(RENDERINGS, names):
        if records.exists() and f"{name}/{rendering}" in read_json(records):
            continue
        figures = run_rendering(name, rendering, out, workers)
        known = read_json(records) if records.exists() else {}  # other processes may have written it
        write_json(records, known | {f"{name}/{rendering}": {"commit": current_commit(), "rows": figures}})


def read_table(records: Path) -> Table:
    """Return the recorded figures, averaged over seeds."""
    table: dict[str, dict[str, dict[Target, float]]] = {}
    for key, record in read_json(records).items():
        rendering = int(key.partition("/")[2])
        for row, by_domain in record["rows"].items():
            for domain, figure in product(DOMAINS, FIGURES):
                values = [seed[figure] for seed in by_domain[domain].values()]
                table.setdefault(row, {}).setdefault(figure, {})[rendering, domain] = fmean(values)
    return table


def gains(table: Table, pair: tuple[str, str, str], renderings: Sequence[int] = RENDERINGS) -> dict[Target, float]:
    """Return by how much the first row is better at each target: a higher AUC, or a lower error rate."""
    first, second, figure = pair
    sign = 1 if figure == "auc" else -1
    targets = [*product(renderings, DOMAINS)]
    return {target: sign * (table[first][figure][target] - table[second][figure][target]) for target in targets}


def similarity(values: Mapping[Target, float]) -> float:
    """Return the intraclass correlation of targets of one domain: 1 if its renderings are alike, 0 if unrelated."""
    by_domain = np.array([[values[rendering, domain] for rendering in RENDERINGS] for domain in DOMAINS])
    count = len(RENDERINGS)
    between = count * by_domain.mean(axis=1).var(ddof=1)
    within = by_domain.var(axis=1, ddof=1).mean()
    total = between + (count - 1) * within
    return float((between - within) / total) if total else nan


def lines(table: Table) -> Iterator[str]:
    """Yield the tables, and the verdicts with the similarity of a domain's renderings."""
    yield f"| row | {' | '.join(f'{figure}, mean' for figure in FIGURES)} |\n|---|{'---:|' * len(FIGURES)}"
    for row, figures in table.items():
        yield f"| {row} | {' | '.join(f'{100 * fmean(figures[figure].values()):.1f}' for figure in FIGURES)} |"
    yield "\n| AUC | " + " | ".join(f"{domain}, rendering {rendering}" for rendering, domain in targets()) + " |"
    yield f"|---|{'---:|' * len(targets())}"
    for row, figures in table.items():
        aucs = figures["auc"]
        yield f"| {row} | {' | '.join(f'{100 * aucs[target]:.1f}' for target in targets())} |"
    primary = {" - ".join(pair[:2]): gains(table, pair) for pair in PRIMARY}
    adjusted = holm({name: p_value([*gap.values()]) for name, gap in primary.items()})
    yield f"\nprimary gains over twelve targets (Holm over {len(PRIMARY)}):"
    for (name, gap), pair in zip(primary.items(), PRIMARY, strict=True):
        verdict = verdict_of(pair, gap).line(f", Holm {adjusted[name]:.4f}")
        yield f"- {verdict}: {word_for_domains(pair, gap, adjusted[name])}{as_domains(gap)}"
    yield "\nsecondary gains, uncorrected, without verdict:"
    for pair in SECONDARY:
        gap = gains(table, pair)
        yield "- " + verdict_of(pair, gap).line(as_domains(gap))
    yield "\non the eight targets of fresh renderings:"
    for pair in ON_FRESH:
        yield "- " + verdict_of(pair, gains(table, pair, FRESH)).line("")


def targets() -> list[Target]:
    """Return all targets."""
    return [*product(RENDERINGS, DOMAINS)]


def verdict_of(pair: tuple[str, str, str], gap: Mapping[Target, float]) -> Verdict:
    """Return gains with the p-value of their mean."""
    first, second, figure = pair
    return Verdict(f"{first} - {second} ({figure})", [*gap.values()], p_value([*gap.values()]))


def domain_means(gap: Mapping[Target, float]) -> list[float]:
    """Return the mean gain of each domain over its renderings."""
    return [fmean(gap[rendering, domain] for rendering in RENDERINGS) for domain in DOMAINS]


def over_domains(gap: Mapping[Target, float]) -> tuple[float, float]:
    """Return the t interval over the domains' mean gains, which counts three renderings of a domain as one target."""
    bounds = t_interval(domain_means(gap))
    assert bounds is not None
    return bounds


def word_for_domains(pair: tuple[str, str, str], gap: Mapping[Target, float], adjusted: float) -> str:
    """Return the verdict; it is limited to these domains if the interval over domains contains zero."""
    word, (low, high) = word_of(verdict_of(pair, gap), adjusted, len(PRIMARY)), over_domains(gap)
    return f"{word} for these four domains" if word.startswith("holds") and low <= 0 <= high else word


def as_domains(gap: Mapping[Target, float]) -> str:
    """Return the gain of each domain, the interval over domains, and how alike a domain's renderings are."""
    listed = ", ".join(f"{domain} {mean:+.3f}" for domain, mean in zip(DOMAINS, domain_means(gap), strict=True))
    low, high = over_domains(gap)
    return f"; {listed}, t over domains [{low:+.3f}, {high:+.3f}], intraclass correlation {similarity(gap):.2f}"


def main() -> None:
    """Run what is missing; print table and verdicts if all studies have ended."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rendered_targets", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--studies", default=",".join(STUDIES))
    arguments = parser.parse_args()
    names = arguments.studies.split(",")
    if unknown := sorted({*names} - {*STUDIES}):
        parser.error(f"--studies: has no {unknown[0]}; choose of {', '.join(STUDIES)}")
    run_missing(arguments.out, arguments.workers, names, RECORDS)
    recorded = read_json(RECORDS)
    if missing := [
        f"{name}/{number}" for name, number in product(STUDIES, RENDERINGS) if f"{name}/{number}" not in recorded
    ]:
        print(f"no verdicts: {', '.join(missing)} have not ended")
        return
    print(*lines(read_table(RECORDS)), sep="\n")


if __name__ == "__main__":
    main()
