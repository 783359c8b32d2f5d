"""Faults between machines, caused in real processes, and their effect on a run.

``python -m tests.distributed.faults`` causes all faults and writes the table of ``docs/results/reliability.md``
(``make faults``).
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import yaml
from tests.distributed.cable import Cable
from tests.distributed.federations import LineReporter, run_through
from tests.toy import SITES, Sets, deterministic_files, make_set, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare.node import end
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

STRIKE = 2
"""The round after which a fault occurs."""

LASTING = 3
"""Rounds until the repair."""

REPORT = Path(__file__).parents[2] / "docs" / "results" / "reliability.md"
MARK = "<!-- below: written by `make faults` -->"


class Witness(LineReporter):
    """Acts once, at the end of a round, and records the operator's messages."""

    def __init__(
        self, act: Callable[[], None], strike: int = STRIKE, repair: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.strike = strike
        self.act, self.has_acted = act, False
        self.repair, self.repaired = repair, False

    def advance(self, done: int, total: int, note: str) -> None:
        if done >= self.strike and not self.has_acted:
            self.has_acted = True
            self.act()
        elif done >= self.strike + LASTING and not self.repaired:
            self.repaired = True
            self.repair()


@dataclass(frozen=True)
class Scene:
    """A federation on this machine, with a cable between one site and the server."""

    members: Rehearsal
    cable: Cable

    def family(self, name: str) -> list[psutil.Process]:
        """Return a member's process and its descendants."""
        parent = psutil.Process(self.members.processes[name].pid)
        return [parent, *parent.children(recursive=True)]

    def kill_job(self, name: str) -> None:
        """Kill the process that NVFlare started for the job at a member."""
        next(child for child in self.family(name)[1:] if "nvflare" in " ".join(child.cmdline())).kill()

    def kill_parent(self, name: str) -> None:
        """Kill the process that was started from the kit; its supervisor starts it again."""
        self.family(name)[0].kill()

    def hang(self, seconds: float) -> None:
        """Stop all processes of site B for some seconds."""
        stopped = self.family("B")
        for process in stopped:
            process.suspend()
        threading.Timer(seconds, lambda: [process.resume() for process in stopped]).start()

    @property
    def blocked(self) -> Path:
        """The path of site B's private state in the newest run."""
        runs = self.members.server.path.parents[1] / "sites" / "B"
        return max(runs.glob("[!.]*"), key=lambda run: run.stat().st_mtime) / "working.safetensors"

    def block_disk(self) -> None:
        """Block the file of site B's private state with a directory, so that its turns fail."""
        self.blocked.unlink(missing_ok=True)
        self.blocked.mkdir()


@contextmanager
def scene(directory: Path, sets: Sets) -> Iterator[Scene]:
    """Start a federation whose site B is connected through a cable."""
    with rehearsal(directory, {name: str(sets[name]) for name in SITES}) as members:
        target = json.loads((members.sites["B"].path / "startup" / "fed_client.json").read_text())
        cable = Cable(int(target["servers"][0]["service"]["target"].rpartition(":")[2]))
        members.kill("B")
        cable.plug_in(members.sites["B"].path)
        members.start("B")
        try:
            yield Scene(members, cable)
        finally:
            cable.close()


@dataclass(frozen=True)
class Fault:
    """A fault, and whether the run must have the bytes of an undisturbed one."""

    name: str
    action: str
    act: Callable[[Scene], None]
    same_bytes: bool
    changes: Mapping[str, Any] = field(default_factory=dict)
    repair: Callable[[Scene], None] = lambda scene: None


SHORT = {"federation__deadline": 30.0, "federation__sit_out": 1, "training__rounds": 14}
ALL = "SIGKILL to all its processes"

FAULTS = (
    Fault("a site's process for the job dies", "SIGKILL", lambda s: s.kill_job("B"), True),
    Fault("the server's process for the job dies", "SIGKILL", lambda s: s.kill_job("server"), True),
    Fault("the server dies, and is started again", "SIGKILL", lambda s: s.kill_parent("server"), True),
    Fault("a site's machine goes off, and on again", ALL, lambda s: end(s.members.processes["B"].pid), False, SHORT),
    Fault("a site does not answer for 45 s", "SIGSTOP, later SIGCONT", lambda s: s.hang(45), False, SHORT),
    Fault(
        "a site's network is cut for 45 s", "connections closed and refused", lambda s: s.cable.cut(45), False, SHORT
    ),
    Fault(
        "a site cannot write for some rounds",
        "a directory in the file's place",
        lambda s: s.block_disk(),
        False,
        SHORT,
        lambda s: s.blocked.rmdir(),
    ),
    Fault("a site's machine goes off and stays off", ALL, lambda s: s.members.kill("B"), False, SHORT),
)
"""The last one leaves the federation without site B."""


@dataclass(frozen=True)
class Finding:
    """The effect of a fault on a run."""

    finished: bool
    submitted: int
    without: Mapping[str, tuple[int, ...]]
    """The rounds that each site missed."""
    reasons: tuple[str, ...]
    equal: bool

    @property
    def words(self) -> str:
        parts = [f"the run was submitted {self.submitted} times" if self.submitted > 1 else "the run went on"]
        parts += [f"{name} missed rounds {', '.join(map(str, rounds))}" for name, rounds in self.without.items()]
        return "; ".join([*parts, *(f"“{reason}”" for reason in self.reasons)])


def try_fault(fault: Fault, place: Scene, content: Mapping[str, Any], whole: dict[str, bytes], out: Path) -> Finding:
    """Cause a fault in a run, and return its effect."""
    witness = Witness(lambda: fault.act(place), repair=lambda: fault.repair(place))
    run_through(place.members, content, out, reporter=witness)
    assert witness.has_acted, "the fault did not occur"
    rows = read_lines(out / "rounds.jsonl")
    without: dict[str, list[int]] = {}
    for row in rows:
        for name in set(row["asked"]) - set(row["replied"]):
            without.setdefault(name, []).append(row["round"])
    reasons = {reason.split(";")[0] for row in rows for reason in row["failed"].values()}
    return Finding(
        finished=len(rows) == content["training"]["rounds"],
        submitted=1 + sum("submitting the run again" in text for text in witness.lines),
        without={name: tuple(rounds) for name, rounds in sorted(without.items())},
        reasons=tuple(sorted(reasons)),
        equal=deterministic_files(out) == whole,
    )


def content_of(sets: Sets, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe in which sites keep private parts, and an optimizer's state."""
    usual = {"training__rounds": 8, "training__optimizer__state": "kept", "training__local": {"batches": 4}}
    return tree(sets, "fedgpad", **{**usual, **changes})


def kill_command_and_resume(content: Mapping[str, Any], out: Path, *options: str) -> None:
    """Start ``fedvisage run`` as a process of its own, kill it after some rounds, and run it again with --resume."""
    recipe = out.parent / f"{out.name}.yaml"
    recipe.write_text(yaml.safe_dump(dict(content)))
    command = [
        sys.executable,
        "-m",
        "fedvisage",
        "run",
        str(recipe),
        "--out",
        str(out),
        "--on",
        "nvflare",
        *options,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FEDVISAGE_CACHE": str(out.parent / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith(f"round {STRIKE}/") for line in process.stdout), "ended before it could be killed"
        process.kill()
    subprocess.run([*command, "--resume"], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)


def main() -> None:
    """Cause all faults, and write the table of their effects."""
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        sets = {name: make_set(root / "sets" / name, name, seed) for seed, name in enumerate((*SITES, "U"))}
        lines = list(_table(root, sets))
    text = REPORT.read_text(encoding="utf-8").partition(MARK)[0] if REPORT.exists() else ""
    REPORT.write_text(text + MARK + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def _table(root: Path, sets: Sets) -> Iterator[str]:
    yield "| fault | what was done | what happened | seconds | bytes equal to an undisturbed run |"
    yield "|---|---|---|---|---|"
    usual, longer = content_of(sets, {}), content_of(sets, SHORT)
    whole, whole_longer = _undisturbed(usual, root / "whole"), _undisturbed(longer, root / "whole-longer")
    with scene(root / "federation", sets) as place:
        kit = ("--kit", str(place.members.operator.path))
        yield _command_line("the operator's command is killed", usual, root / "operator", whole, kit)
        for number, fault in enumerate(FAULTS):
            content, expected = (longer, whole_longer) if fault.changes else (usual, whole)
            began = time.monotonic()
            finding = try_fault(fault, place, content, expected, root / f"run-{number}")
            assert finding.finished, f"{fault.name}: the run did not come to its end"
            yield _line(fault.name, fault.action, finding.words, time.monotonic() - began, finding.equal)
    yield _command_line("a rehearsal is killed with all its processes", usual, root / "all", whole, ())


def _undisturbed(content: Mapping[str, Any], out: Path) -> dict[str, bytes]:
    run_toy(content, out)
    return deterministic_files(out)


def _command_line(
    name: str, content: Mapping[str, Any], out: Path, whole: dict[str, bytes], options: tuple[str, ...]
) -> str:
    began = time.monotonic()
    kill_command_and_resume(content, out, *options)
    rounds = len((out / "rounds.jsonl").read_text().splitlines())
    assert rounds == content["training"]["rounds"], f"{name}: the run did not come to its end"
    return _line(
        name, "SIGKILL, then --resume", "the run went on", time.monotonic() - began, deterministic_files(out) == whole
    )


def _line(name: str, done: str, happened: str, seconds: float, equal: bool) -> str:
    line = f"| {name} | {done} | {happened} | {seconds:.0f} | {'yes' if equal else 'no'} |"
    print(line, flush=True)
    return line


if __name__ == "__main__":
    main()
