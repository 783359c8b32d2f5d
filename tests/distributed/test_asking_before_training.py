"""The look at data before training between organisations: the sums of a local run."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.federations import LineReporter, run_through
from tests.toy import SITES, make_set, run_toy, tree, weights

from fedvisage.federation.record.ledger import read_lines
from fedvisage.metrics.recorded import read_metrics
from fedvisage.nvflare.rehearsal import rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.long]


def ledger_rows(run: Path) -> list[tuple[Any, ...]]:
    """Return the ledger without digests, because masks come from the operating system."""
    keys = ("round", "site", "direction", "call", "field", "kind", "bytes", "guarantee")
    return [tuple(row[key] for key in keys) for row in read_lines(run / "ledger.jsonl")]


def test_sums_equal_those_of_one_process(tmp_path: Path) -> None:
    sets = {
        name: make_set(tmp_path / name, name, seed, subjects=15, species=("bonafide", "print"))
        for seed, name in enumerate((*SITES, "U"))
    }
    content = tree(sets, training__rounds=1, evaluation__every=0, evaluation__shortcuts=True)
    run_toy(content, tmp_path / "here")
    reporter = LineReporter()
    with rehearsal(tmp_path / "federation", {name: str(sets[name]) for name in SITES}) as members:
        run_through(members, content, tmp_path / "through-nvflare", reporter=reporter)
    here, there = (read_metrics(tmp_path / name / "metrics.json") for name in ("here", "through-nvflare"))
    assert here["shortcuts.separates.brightness"] == 3
    assert dict(there.part("shortcuts")) == dict(here.part("shortcuts"))
    assert "brightness separates the classes at 3 of 3 sites" in reporter.lines
    assert weights(tmp_path / "through-nvflare") == weights(tmp_path / "here")
    assert ledger_rows(tmp_path / "through-nvflare") == ledger_rows(tmp_path / "here")
