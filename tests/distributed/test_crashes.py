"""Processes that are killed in the middle of a run: it ends in the bytes of a run that was left alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from tests.distributed.federations import run_through
from tests.toy import SITES, run_toy, settled, tree

from fedvisage.federation.nvflare.rehearsal import Rehearsal, rehearsal
from fedvisage.progress import Reporter

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


class Saboteur(Reporter):
    """Does something once, when a round has ended."""

    def __init__(self, after: int, deed: Callable[[], None]) -> None:
        super().__init__(Console(file=io.StringIO()), quiet=True)
        self.after, self.deed, self.done, self.said = after, deed, False, []

    def advance(self, done: int, total: int, note: str) -> None:
        if done >= self.after and not self.done:
            self.done = True
            self.deed()

    def say(self, text: str) -> None:
        self.said.append(text)
        print(text)


def job_process(federation: Rehearsal, name: str) -> psutil.Process:
    """Return the process that NVFlare started for the job at a member."""
    children = psutil.Process(federation.processes[name].pid).children(recursive=True)
    return next(child for child in children if "nvflare" in " ".join(child.cmdline()))


@pytest.fixture(scope="module")
def federation(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with rehearsal(tmp_path_factory.mktemp("federation"), {name: sets[name] for name in SITES}) as found:
        yield found


@pytest.fixture(scope="module")
def content(sets: Mapping[str, Path]) -> dict[str, Any]:
    return tree(sets, "fedgpad", training__rounds=8, training__optimizer__state="kept", training__local={"batches": 4})


@pytest.fixture(scope="module")
def whole(content: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_toy(content, out)
    return settled(out)


DEEDS: dict[str, Callable[[Rehearsal], None]] = {
    "a site's job process": lambda federation: job_process(federation, "B").kill(),
    "the server's job process": lambda federation: job_process(federation, "server").kill(),
    "the server": lambda federation: psutil.Process(federation.processes["server"].pid).kill(),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_killed_process(
    deed: str, federation: Rehearsal, content: Mapping[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    saboteur = Saboteur(2, lambda: DEEDS[deed](federation))
    run_through(federation, content, tmp_path / "run", reporter=saboteur)
    assert saboteur.done
    assert saboteur.said, "the operator is told that the run was submitted again"
    assert settled(tmp_path / "run") == whole
