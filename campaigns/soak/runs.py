"""The operator of a soak: one run after another, each followed to its end, whatever happens to the command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from campaigns.soak.units import environment

ROUND = re.compile(r"round (\d+)/(\d+)")
TRIES = 12
"""How often a person types --resume before they give a run up."""


@dataclass
class Run:
    """One run as the operator saw it."""

    out: Path
    began: float
    ended: float = 0.0
    commands: int = 0
    failures: list[str] = field(default_factory=list)
    rounds: list[tuple[float, int]] = field(default_factory=list)
    jobs: int = 0
    """How often it was submitted."""
    again: int = 0
    """How often the command said that it submits it again by itself."""


@contextmanager
def ended_with(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process if the soak ends before it: it might wait for ever."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


@dataclass
class Operator:
    """Types ``fedvisage run`` and, when that ends without a result, the same with ``--resume``."""

    root: str
    kit: Path
    recipe: dict[str, object]
    place: Path
    process: subprocess.Popen[str] | None = None
    killed: bool = False
    told: int = 0
    """Rounds of which something was heard, of all runs."""
    lines: list[tuple[float, str]] = field(default_factory=list)

    def kill(self) -> bool:
        """Kill the command, if there is one."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.killed = True
        self.process.send_signal(signal.SIGKILL)
        return True

    def run(self, number: int) -> Run:
        """Have a run done, and say how it went."""
        out = self.place / f"run-{number:03d}"
        recipe = out.with_suffix(".yaml")
        recipe.write_text(yaml.safe_dump(self.recipe))
        run = Run(out, time.time())
        words = ["run", str(recipe), "--on", "nvflare", "--kit", str(self.kit), "--out", str(out), "--patience", "240"]
        while not (out / "metrics.json").exists() and run.commands < TRIES:
            self._type([*words, "--resume"], run)
        run.ended = time.time()
        return run

    def _type(self, words: list[str], run: Run) -> None:
        run.commands += 1
        self.killed = False
        env = environment(self.root, "operator") | {"FEDVISAGE_CACHE": f"{self.root}/cache"}
        command = [sys.executable, "-m", "fedvisage", *words]
        with (
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True
            ) as self.process,
            (self.place / "operator.log").open("a") as log,
            ended_with(self.process),
        ):
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.lines.append((time.time(), line.rstrip()))
                log.write(f"{time.strftime('%H:%M:%S')} {line}")
                log.flush()
                if match := ROUND.match(line):
                    run.rounds.append((time.time(), int(match[1])))
                    self.told += 1
                run.jobs += line.startswith("submitted;")
                run.again += "submitting the run again" in line
        if self.process.returncode and not self.killed:
            said = [text for _, text in self.lines[-3:]]
            run.failures.append(f"{self.process.returncode}: {' / '.join(said)}")
            time.sleep(2)
