"""The sections of `python -m benchmarks gpu` run on an emulated card. `test_gpu_program.py` runs this file."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gpu.papers import Place
from benchmarks.gpu.sections import SECTIONS
from tests.cards.check_runs import machine_with_cards

IN_PROCESSES_OF_THEIR_OWN = {"workers"}
"""The sections whose processes have no emulated cards."""
NEED_CUDA = {"memory", "compiled"}


@pytest.mark.parametrize("name", SECTIONS.keys() - IN_PROCESSES_OF_THEIR_OWN - NEED_CUDA)
def test_a_section_finishes_and_its_checks_hold_on_a_card(name: str, tmp_path: Path) -> None:
    with machine_with_cards():
        rows = list(SECTIONS[name](Place("cpu", tmp_path, tiny=True, threads=1)))
    assert rows
    assert [row["what"] for row in rows if row["holds"] is False] == []
    if name == "state":
        assert "card" in rows[0]["measured"]
        assert rows[0]["holds"] is True
