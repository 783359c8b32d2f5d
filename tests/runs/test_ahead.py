"""What draws a report is loaded beside the run, and not before a round has ended."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from fedvisage.progress import Reporter
from fedvisage.runs.ahead import loading

ROW = {"round": 1, "seconds": 1.0, "loss": {}, "failed": {}}


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(Console(), quiet=True)


def ended() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def test_a_module_is_loaded_by_another_thread_once_a_round_has_ended(
    reporter: Reporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draws_slowly.py").write_text("import threading\nwho = threading.get_ident()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loading(reporter, "draws_slowly"):
        ended()
        assert "draws_slowly" not in sys.modules
        reporter.ended_round(ROW, 2)
        reporter.ended_round(ROW | {"round": 2}, 2)
        ended()
        assert sys.modules.pop("draws_slowly").who != threading.get_ident()
    assert reporter.listeners == []


def test_what_cannot_be_loaded_does_not_disturb_the_run(reporter: Reporter, capsys: pytest.CaptureFixture[str]) -> None:
    with loading(reporter, "no_such_module"):
        reporter.ended_round(ROW, 1)
        ended()
    assert capsys.readouterr() == ("", "")
