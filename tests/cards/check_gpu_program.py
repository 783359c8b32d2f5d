"""The sections of `python -m benchmarks gpu` run on an emulated card. `test_gpu_program.py` runs this file."""

from pathlib import Path

import pytest
from benchmarks.gpu.papers import Place
from benchmarks.gpu.sections import SECTIONS
from tests.cards.check_runs import machine_with_cards

FAST = ("machine", "state")
LEFT_OUT = {"workers", "memory", "compiled"}
"""The sections whose processes have no emulated cards, and those that need CUDA."""


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SECTIONS.keys() - LEFT_OUT],
)
def test_a_section_finishes_and_its_checks_hold_on_a_card(name: str, tmp_path: Path) -> None:
    with machine_with_cards():
        rows = list(SECTIONS[name](Place("cpu", tmp_path, tiny=True, threads=1)))
    assert rows
    assert [row["what"] for row in rows if row["holds"] is False] == []
    if name == "state":
        assert "card" in rows[0]["measured"]
        assert rows[0]["holds"] is True
