"""What goes wrong between machines does not end a run, and changes its bytes only when a site missed a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.distributed.faults import FAULTS, Fault, Scene, content_of, kill_command_and_resume, scene, try_fault
from tests.toy import run_toy, settled

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

QUICK = ("the server's process for the job dies",)


@pytest.fixture(scope="module")
def place(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("federation"), sets) as found:
        yield found


@pytest.fixture(scope="module")
def whole(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_toy(content_of(sets, {}), out)
    return settled(out)


@pytest.mark.slow
def test_operator_killed(place: Scene, sets: Mapping[str, Path], whole: dict[str, bytes], tmp_path: Path) -> None:
    kill_command_and_resume(content_of(sets, {}), tmp_path / "run", "--kit", str(place.members.operator.path))
    assert settled(tmp_path / "run") == whole


@pytest.mark.slow
def test_all_processes_killed(sets: Mapping[str, Path], whole: dict[str, bytes], tmp_path: Path) -> None:
    kill_command_and_resume(content_of(sets, {}), tmp_path / "run")
    assert settled(tmp_path / "run") == whole


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.slow) for fault in FAULTS],
)
def test_fault(fault: Fault, place: Scene, sets: Mapping[str, Path], whole: dict[str, bytes], tmp_path: Path) -> None:
    finding = try_fault(fault, place, content_of(sets, fault.changes), whole, tmp_path / "run")
    assert finding.finished
    if fault.same_bytes:
        assert finding.equal
    else:
        assert set(finding.without) <= {"B"}, "the other sites went on"
        assert finding.without or finding.reasons, "something went wrong"
        assert "for good" in fault.name or len(finding.without.get("B", ())) < 10, "the site came back"
