"""A federation of processes trains the same bytes as one process."""

from pathlib import Path

import pytest
from tests.distributed.federations import comparable_files, run_through
from tests.toy import Sets, is_recognition, run_toy, tree

from fedvisage.methods import METHODS
from fedvisage.nvflare.rehearsal import Rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

OTHERS = sorted(name for name, method in METHODS.items() if name not in ("fedpad", "fedsis") and not method.pooled)
METHODS_IN_TIERS = (
    "fedpad",
    pytest.param("fedsis", marks=pytest.mark.long),  # tokens and gradients every batch
    *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
)


@pytest.mark.parametrize("method", METHODS_IN_TIERS)
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
