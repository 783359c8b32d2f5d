"""What a federation of processes trains has the same bytes as what one process trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.distributed.federations import run_through
from tests.toy import run_toy, settled, tree

from fedvisage.federation.nvflare.rehearsal import Rehearsal
from fedvisage.methods import METHODS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

PATTERNS = ("fedpad", "fedgpad", "fedsis")
"""One method of each way to exchange: averaging, private parts, tokens and gradients every batch."""

OTHERS = sorted(
    name for name, method in METHODS.items() if name not in PATTERNS and not method.pooled and method.task == "pad"
)


@pytest.mark.parametrize("method", [*PATTERNS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_bytes_equal_those_of_one_process(
    method: str, federation: Rehearsal, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    content = tree(sets, method, training__rounds=2)
    run_toy(content, tmp_path / "here")
    run_through(federation, content, tmp_path / "through-nvflare")
    assert settled(tmp_path / "through-nvflare") == settled(tmp_path / "here")


def test_bytes_equal_also_with_noise_on_a_sum_in_secret(
    federation: Rehearsal, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    derived = {
        "secure": {"entropy": "derived"},
        "dp": {"clip": 1.0, "noise": 0.01, "delta": 1e-3, "entropy": "derived"},
    }
    content = tree(sets, federation=derived, training__rounds=2)
    run_toy(content, tmp_path / "here")
    run_through(federation, content, tmp_path / "through-nvflare")
    assert settled(tmp_path / "through-nvflare") == settled(tmp_path / "here")
