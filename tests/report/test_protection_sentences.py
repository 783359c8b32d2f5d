"""Sentences of the report on the protections of a run, and on simulations without protection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.toy import run_toy, tree

from fedvisage.report.page import render
from fedvisage.report.privacy import promises
from fedvisage.report.run_files import read_run

RELEASED = {"epsilon": 3.0, "delta": 2e-5, "tight_epsilon": 2.25, "at_delta": 1e-5, "site": "A"}


def test_page_of_a_private_run_with_secure_sums_states_both(sets: Mapping[str, Path], tmp_path: Path) -> None:
    noise = {"clip": 0.5, "epsilon": 4.0, "delta": 1e-5, "entropy": "derived"}
    run_toy(tree(sets, federation={"dp": noise, "secure": True}, training__rounds=1), tmp_path / "run")
    page = render(read_run(tmp_path / "run"))
    assert "Differential privacy of sites: ε 4 at δ 1e-05, for all data of one site" in page
    assert "a simulation, which protects nobody" in page
    assert "Secure aggregation: the server saw the sum" in page


@pytest.mark.parametrize(
    ("metrics", "federation", "expected"),
    [
        ({}, {}, []),
        ({}, {"combine": {"rule": "mean"}}, []),
        ({}, {"combine": {"rule": "krum"}}, ["Robust aggregation: uploads were combined by krum"]),
        ({}, {"poisoned": {"sites": ["A", "B"], "how": "scaling"}}, ["Simulated attack: A, B sent a scaling"]),
        ({}, {"secure": {"entropy": "derived"}}, ["Secure aggregation in a simulation"]),
        ({**RELEASED, "relation": ["add-remove"], "noise": "system"}, {}, ["What site A released"]),
        (
            {**RELEASED, "relation": ["add-remove"], "noise": "derived"},
            {},
            ["What site A released", "The noise is derived"],
        ),
    ],
)
def test_each_protection_has_a_sentence(metrics: Any, federation: Any, expected: list[str]) -> None:
    lines = promises({"privacy": metrics} if metrics else {}, {"federation": federation})
    assert [line.startswith(start) for line, start in zip(lines, expected, strict=True)] == [True] * len(expected)
