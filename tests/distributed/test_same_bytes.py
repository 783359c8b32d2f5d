"""A federation of processes trains the same bytes as one process."""

from pathlib import Path

import pytest
from tests.distributed.federations import comparable_files, run_through
from tests.toy import Sets, is_recognition, run_toy, tree

from fedvisage.methods import METHODS
from fedvisage.nvflare.rehearsal import Rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

PATTERNS = ("fedpad", "fedsis")
"""One method of two ways to exchange: averaging, and tokens and gradients every batch. `make distributed` has all."""

OTHERS = sorted(name for name, method in METHODS.items() if name not in PATTERNS and not method.pooled)


@pytest.mark.parametrize("method", [*PATTERNS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_bytes_equal_those_of_one_process(
    method: str, request: pytest.FixtureRequest, sets: Sets, tmp_path: Path
) -> None:
    federation = request.getfixturevalue("people_federation" if is_recognition(method) else "federation")
    content = tree(sets, method, training__rounds=2)
    run_toy(content, tmp_path / "here")
    run_through(federation, content, tmp_path / "through-nvflare")
    assert comparable_files(tmp_path / "through-nvflare") == comparable_files(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedgpad", "fedma", "fedsis"])
def test_bf16_weights_give_the_same_bytes(method: str, federation: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, method, training__rounds=2, federation__wire="bf16")
    run_toy(content, tmp_path / "here")
    run_through(federation, content, tmp_path / "through-nvflare")
    assert comparable_files(tmp_path / "through-nvflare") == comparable_files(tmp_path / "here")
