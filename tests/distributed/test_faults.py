"""Faults between machines do not end a run, and change its bytes only if a site missed a round."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.distributed.faults import (
    FAULTS,
    Fault,
    Scene,
    Witness,
    content_of,
    kill_command_and_resume,
    scene,
    try_fault,
)
from tests.distributed.federations import run_through
from tests.refusals import failed
from tests.toy import Sets, deterministic_files, run_toy

from fedvisage.base.errors import RunFailed
from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare import operator

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

QUICK = ("the server's process for the job dies",)


@pytest.fixture(scope="module")
def place(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("federation"), sets) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_toy(content_of(sets, {}), out)
    return deterministic_files(out)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["operator", "rehearsal"])
def test_killed_command_resumes_with_the_same_bytes(
    killed: str, place: Scene, sets: Sets, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    kit = ("--kit", str(place.members.operator.path)) if killed == "operator" else ()
    kill_command_and_resume(content_of(sets, {}), tmp_path / "run", *kit)
    assert deterministic_files(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_command_without_its_server_advises_to_resume(
    place: Scene, sets: Sets, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out, content = tmp_path / "run", content_of(sets, {})
    witness = Witness(lambda: place.members.kill("server"))
    with failed(RunFailed, "did not answer within", "--resume"):
        run_through(place.members, content, out, reporter=witness, wait=10.0)
    place.members.start("server")
    run_through(place.members, content, out, resume=True)
    assert deterministic_files(out) == undisturbed


class Stubborn(Witness):
    """Kills the process of site B's job after every round from some round on, like a site that crashes."""

    def advance(self, done: int, total: int, note: str) -> None:
        if done >= self.strike:
            with suppress(StopIteration):  # B has no process: it was left out
                self.act()


@pytest.mark.parametrize(
    "strike",
    [pytest.param(1, id="training", marks=pytest.mark.slow), pytest.param(6, id="last", marks=pytest.mark.slow)],
)
def test_site_that_dies_repeatedly_is_left_out(
    strike: int, place: Scene, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The operator sees the end of a round soon, and the next round takes long: B dies in the middle of it.
    monkeypatch.setattr(operator, "LOOK", 0.05)
    witness = Stubborn(lambda: place.kill_job("B"), strike)
    content = content_of(sets, {"training__local": {"batches": 12}})
    run_through(place.members, content, tmp_path / "run", reporter=witness)
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert len(rows) == content["training"]["rounds"]
    assert rows[-1]["replied"] == ["A", "C"]
    assert sum("submitting the run again" in text for text in witness.lines) == operator.DEATHS
    assert any("continues without it" in text for text in witness.lines)


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.slow) for fault in FAULTS],
)
def test_run_survives_a_fault(
    fault: Fault, place: Scene, sets: Sets, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    finding = try_fault(fault, place, content_of(sets, fault.changes), undisturbed, tmp_path / "run")
    assert finding.finished
    if fault.same_bytes:
        assert finding.equal
    else:
        assert set(finding.without) <= {"B"}, "the other sites went on"
        assert finding.without or finding.reasons, "something went wrong"
        assert "stays off" in fault.name or len(finding.without.get("B", ())) < 10, "the site came back"
