"""Machines of the soak: restarted as by systemd, ended with all their processes, and built from complete kits."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from campaigns.soak.__main__ import SITES, Soak
from campaigns.soak.faults import Federation
from campaigns.soak.machines import NO_RESTART, Machine, find_processes
from campaigns.soak.table import Result
from tests.toy import Sets

from fedvisage.nvflare.certificates import check, credentials_in
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import open_kit

SLEEPER = "import time; time.sleep(600)"
PARENT = f"""
import signal, subprocess, sys
from pathlib import Path
words = [sys.executable, "-c", {SLEEPER!r}]
child = subprocess.Popen(words, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
Path(sys.argv[1]).write_text(str(child.pid))
child.wait()
signal.pause()
"""
"""Starts a process in a session of its own, and leaves it behind at SIGTERM."""

Create = Callable[..., Machine]


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Create]:
    machines: list[Machine] = []

    def create_machine(program: str, *words: str) -> Machine:
        command, log = [sys.executable, "-c", program, *words], tmp_path / "log"
        machines.append(Machine("A", str(tmp_path), command, tmp_path, log, restart_delay=0.0, stop_timeout=0.5))
        return machines[-1]

    yield create_machine
    for machine in machines:
        machine.kill()


@pytest.mark.parametrize("code", [0, 1, NO_RESTART])
def test_ended_command_is_restarted_unless_its_arguments_were_wrong(create: Create, code: int) -> None:
    machine = create(f"import sys; sys.exit({code})")
    first = machine.start()
    assert first.wait() == code
    machine.restart_if_ended()
    assert machine.codes == [code]
    assert machine.enabled == (code != NO_RESTART)
    assert (machine.process is first) == (code == NO_RESTART)
    if machine.process is not None:
        machine.process.wait()


def test_running_command_is_not_restarted_and_terminates_without_remaining_processes(create: Create) -> None:
    machine = create(SLEEPER)
    process = machine.start()
    machine.restart_if_ended()
    assert machine.process is process
    assert machine.codes == []
    assert machine.terminate() == 0


@pytest.fixture
def parent(create: Create, tmp_path: Path) -> tuple[Machine, psutil.Process]:
    """A machine whose command has started another process, and that process."""
    file = tmp_path / "child"
    machine = create(PARENT, str(file))
    process = machine.start()
    # A process that has just started may not have its environment yet, by which the machine finds it.
    while not file.exists() or not file.read_text() or len(machine.processes()) < 2:
        assert process.poll() is None
    return machine, psutil.Process(int(file.read_text()))


@pytest.mark.long
def test_processes_of_a_machine_include_those_in_other_sessions(
    parent: tuple[Machine, psutil.Process], tmp_path: Path
) -> None:
    machine, child = parent
    assert machine.process is not None
    assert [process.pid for process in machine.processes()] == [machine.process.pid, child.pid]
    machine.kill()
    machine.process.wait()
    child.wait(600)
    assert find_processes(str(tmp_path)) == {}


@pytest.mark.long
def test_processes_that_outlive_their_command_are_counted_and_killed(parent: tuple[Machine, psutil.Process]) -> None:
    machine, child = parent
    assert machine.terminate() == 1
    child.wait(600)
    assert machine.process is not None
    assert machine.process.returncode == 0, "the command itself ended at SIGTERM"


def test_kill_returns_false_without_a_process(parent: tuple[Machine, psutil.Process]) -> None:
    """Otherwise the table would count faults without an effect."""
    machine, child = parent
    federation = Federation({"A": machine}, {}, own_disks=False, kill_operator=lambda: False)
    assert federation.kill_job("A")
    child.wait(600)
    assert not federation.kill_job("A")
    assert federation.kill("A")
    assert machine.process is not None
    machine.process.wait()
    assert not federation.kill("A")


@pytest.mark.long
def test_each_machine_has_its_kit_and_each_site_its_cable(sets: Sets, tmp_path: Path) -> None:
    soak = Soak(tmp_path, Result(1, 0, len(SITES), 1), dict.fromkeys(SITES, sets["A"]), {})
    soak.build()
    assert set(soak.machines) == {"server", *SITES}
    ports = set[int]()
    for name, machine in soak.machines.items():
        kit = open_kit(machine.disk / "kit", "server" if name == "server" else "site")
        check(credentials_in(kit.path, at_server=name == "server"), "localhost" if name == "server" else name)
        assert str(kit.path) in machine.command
        if name != "server":
            ports.add(address_in(kit).port)
            assert address_in(kit).port == soak.cables[name].port
            assert str(sets["A"]) in machine.command
    assert len(ports) == len(SITES)
    for cable in soak.cables.values():
        cable.close()
    open_kit(tmp_path / "kits" / "operator", "operator")
