"""The verdicts on twelve rendered targets, from figures by rendering, domain and seed."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from benchmarks.rendered_targets import (
    DOMAINS,
    FIGURES,
    FRESH,
    RECORDS,
    RENDERINGS,
    SEEDS,
    STUDIES,
    gains,
    lines,
    over_domains,
    read_table,
    similarity,
    word_for_domains,
)
from tests.documented import read_generated

EFFECTS = {"Single": -0.1, "FedPAD, paper": 0.05, "FedPAD, gated": 0.05}
"""By how much a row's figures are better than those of all others."""


def write_records(path: Path) -> None:
    """Record figures that differ by target, by seed around zero, and by the effects of rows."""
    rng, records = np.random.default_rng(0), {}
    base = {target: rng.uniform(0.6, 0.8) for target in product(RENDERINGS, DOMAINS)}
    for name, rendering in product(STUDIES, RENDERINGS):
        rows = {
            row: {
                domain: {
                    str(seed): {
                        figure: base[rendering, domain]
                        + (seed - 1) / 50
                        + (1 if figure == "auc" else -1) * EFFECTS.get(row, 0)
                        for figure in FIGURES
                    }
                    for seed in SEEDS
                }
                for domain in DOMAINS
            }
            for row in STUDIES[name].rows
        }
        records[f"{name}/{rendering}"] = {"commit": "x", "rows": rows}
    path.write_text(json.dumps(records))


def test_gain_is_positive_for_a_higher_auc_and_a_lower_error_rate(tmp_path: Path) -> None:
    write_records(tmp_path / "records.json")
    table = read_table(tmp_path / "records.json")
    assert [*gains(table, ("FedPAD", "Single", "auc")).values()] == pytest.approx([0.1] * 12)
    assert [*gains(table, ("FedPAD, gated", "FedPAD", "hter"), FRESH).values()] == pytest.approx([0.05] * 8)


def verdict_of(path: Path, name: str) -> str:
    """Return the line of a primary gain over twelve targets."""
    return next(line for line in lines(read_table(path)) if line.startswith(f"- {name}"))


def test_verdicts_are_corrected_for_all_primary_differences(tmp_path: Path) -> None:
    write_records(tmp_path / "records.json")
    # Twelve gains of one sign have p = 2/4096; three of the seven primary differences are of this kind.
    single = verdict_of(tmp_path / "records.json", "FedPAD - Single (auc)")
    assert "positive at 12 of 12 (+0.100 to +0.100), p = 0.0005, Holm 0.0034: holds" in single
    assert "undecided" in verdict_of(tmp_path / "records.json", "FedPAD - Fused (auc)")
    text = [*lines(read_table(tmp_path / "records.json"))]
    fresh = text[text.index("\non the eight targets of fresh renderings:") + 1 :]
    assert any(line.startswith("- FedPAD, gated - FedPAD (hter)") and "positive at 8 of 8" in line for line in fresh)


def test_verdict_is_limited_to_the_domains_if_they_differ_more_than_their_renderings() -> None:
    pair = ("FedPAD", "Single", "auc")
    values = dict(zip(DOMAINS, (0.01, 0.01, 0.01, 0.5), strict=True))
    gap = {(rendering, domain): values[domain] for rendering, domain in product(RENDERINGS, DOMAINS)}
    # Three degrees of freedom: 0.1325 with a standard error of 0.1225 and a quantile of 3.1824.
    assert over_domains(gap) == pytest.approx((0.1325 - 3.1824 * 0.1225, 0.1325 + 3.1824 * 0.1225), abs=1e-4)
    assert word_for_domains(pair, gap, 0.001) == "holds for these four domains"
    alike = dict.fromkeys(gap, 0.1) | {(0, "O"): 0.11}
    assert word_for_domains(pair, alike, 0.001) == "holds"
    assert word_for_domains(pair, gap, 0.06).startswith("undecided")


def test_similarity_is_one_for_equal_renderings_and_negative_if_only_renderings_differ() -> None:
    values = dict(zip(DOMAINS, (0.1, 0.4, 0.2, 0.9), strict=True))
    alike = {(rendering, domain): values[domain] for rendering, domain in product(RENDERINGS, DOMAINS)}
    assert similarity(alike) == pytest.approx(1)
    unlike = {(rendering, domain): float(rendering) for rendering, domain in product(RENDERINGS, DOMAINS)}
    # Without variance between domains, the correlation is -1/(k-1) for k renderings.
    assert similarity(unlike) == pytest.approx(-0.5)


def test_page_has_tables_and_verdicts_of_the_records() -> None:
    block = read_generated("docs/results/rendered-targets.md", "python -m benchmarks.rendered_targets OUT")
    assert block == "\n".join(lines(read_table(RECORDS)))
