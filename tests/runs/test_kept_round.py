"""The kept round and the end of training, for held-out errors that are set by hand."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tests.runs.linear_detector import linear_detector
from tests.toy import SITES, make_set, run_toy, tree

from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.server import Server
from fedvisage.report.page import render, write_report
from fedvisage.report.run_files import read_run

LIGHT_IS_LIVE = (-10.0, 0.0, 0.0, 10.0, 10.0, 10.0, 0.0, 10.0)
"""The weight of brightness per round; prints are darker than bona fide images."""

ERRORS = [1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.5, 0.0]


def server(s: Server) -> Iterator[None]:
    """Set the weights of a round; the bias, which changes no error, is the number of the round in eighths."""
    for number in s.rounds():
        weight = torch.zeros(1, 6)
        weight[0, 0] = LIGHT_IS_LIVE[number - 1]
        s.load({"model.2.weight": weight, "model.2.bias": torch.tensor([number / 8])})
        yield


@pytest.fixture(scope="module")
def prints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sets in which all attacks are prints."""
    root = tmp_path_factory.mktemp("prints")
    return {
        name: make_set(root / name, name, seed, species=("bonafide", "print"))
        for seed, name in enumerate((*SITES, "U"))
    }


def run_and_find_round(
    prints: Mapping[str, Path], out: Path, reporter: Reporter | None = None, **changes: Any
) -> tuple[Any, float]:
    """Return a run's metrics, and the number of the round whose model it keeps."""
    method = replace(linear_detector("fedpad"), server=server)
    metrics = run_toy(tree(prints, training__rounds=len(ERRORS), **changes), out, method=method, reporter=reporter)
    return metrics, 8 * float(load_file(out / "model.safetensors")["model.2.bias"])


@pytest.mark.parametrize(("keep", "number"), [("best", 4), ("last", 8)])
def test_keep_selects_the_first_best_or_the_last_round(
    keep: str, number: int, prints: Mapping[str, Path], tmp_path: Path
) -> None:
    _, kept_round = run_and_find_round(prints, tmp_path / "run", evaluation__keep=keep)
    errors = [row["heldout"]["eer"] for row in read_lines(tmp_path / "run" / "rounds.jsonl")]
    assert errors == pytest.approx(ERRORS)
    assert kept_round == number
    write_report(tmp_path / "run")
    sentence = "The model is that of round 4, which had the lowest held-out EER (0.00%)."
    assert (sentence in (tmp_path / "run" / "report.html").read_text()) is (keep == "best")


@pytest.mark.parametrize("method", ["single", "fused"])
def test_the_best_round_of_methods_with_several_models_is_the_only_one(
    method: str, prints: Mapping[str, Path], tmp_path: Path
) -> None:
    for keep in ("best", "last"):
        run_toy(tree(prints, method, training__rounds=1, evaluation__keep=keep), tmp_path / keep)
    best, last = (load_file(tmp_path / keep / "model.safetensors") for keep in ("best", "last"))
    torch.testing.assert_close(best, last, rtol=0, atol=0)


@pytest.mark.parametrize(("patience", "rounds", "best"), [(1, 3, 2), (2, 6, 4), (3, 7, 4)])
def test_training_stops_after_patience_rounds_without_a_lower_error(
    patience: int, rounds: int, best: int, prints: Mapping[str, Path], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"evaluation__keep": "best", "training__early_stop": {"patience": patience}}
    metrics, kept_round = run_and_find_round(prints, tmp_path / "run", **changes)
    assert metrics["rounds"] == len(read_lines(tmp_path / "run" / "rounds.jsonl")) == rounds
    assert metrics["ended"]["cause"] == "early-stop"
    assert kept_round == best


def test_early_stop_is_printed_and_reported(prints: Mapping[str, Path], tmp_path: Path) -> None:
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, width=1000))
    run_and_find_round(prints, tmp_path / "run", reporter, training__early_stop={"patience": 1})
    assert "ended after round 3 of 8: the sites' held-out EER" in screen.getvalue()
    header = render(read_run(tmp_path / "run")).partition("</header>")[0]
    assert "ended after round 3" in header
    assert "held-out EER" in header
