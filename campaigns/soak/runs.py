"""The operator of a soak, who starts one run after another and resumes each until it finishes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from campaigns.soak.machines import environment_of

ROUND = re.compile(r"round (\d+)/(\d+)")
MOST_COMMANDS = 12
"""Commands per run, the first and those with --resume, after which the operator gives it up."""


@dataclass
class Run:
    """One run as the operator observed it."""

    out: Path
    began: float
    ended: float = 0.0
    commands: int = 0
    failures: list[str] = field(default_factory=list)
    rounds: list[tuple[float, int]] = field(default_factory=list)
    jobs: int = 0
    """Number of submissions."""
    resubmissions: int = 0
    """Submissions that the command repeated by itself."""


@dataclass
class Operator:
    """Calls ``fedvisage run --resume`` until the run has a result."""

    root: str
    kit: Path
    recipe: dict[str, object]
    directory: Path
    process: subprocess.Popen[str] | None = None
    is_killed: bool = False
    rounds: int = 0
    """Number of rounds that all commands have reported."""
    lines: list[tuple[float, str]] = field(default_factory=list)

    def kill(self) -> bool:
        """Kill the command, if there is one."""
        if self.process is None or self.process.poll() is not None:
            return False
        self.is_killed = True
        self.process.send_signal(signal.SIGKILL)
        return True

    def run(self, number: int) -> Run:
        """Call the command until the run has finished, and return the record of it."""
        out = self.directory / f"run-{number:03d}"
        recipe = out.with_suffix(".yaml")
        recipe.write_text(yaml.safe_dump(self.recipe))
        run = Run(out, time.time())
        words = ["run", str(recipe), "--on", "nvflare", "--kit", str(self.kit), "--out", str(out), "--patience", "240"]
        while not (out / "metrics.json").exists() and run.commands < MOST_COMMANDS:
            self._call([*words, "--resume"], run)
        run.ended = time.time()
        return run

    def _call(self, words: list[str], run: Run) -> None:
        """Call the command once, and add the events of its output to the record of the run."""
        run.commands += 1
        self.is_killed = False
        env = environment_of(self.root, "operator") | {"FEDVISAGE_CACHE": f"{self.root}/cache"}
        command = [sys.executable, "-m", "fedvisage", *words]
        with (
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True
            ) as self.process,
            (self.directory / "operator.log").open("a") as log,
        ):
            assert self.process.stdout is not None
            try:
                for line in self.process.stdout:
                    self.lines.append((time.time(), line.rstrip()))
                    log.write(f"{time.strftime('%H:%M:%S')} {line}")
                    log.flush()
                    if match := ROUND.match(line):
                        run.rounds.append((time.time(), int(match[1])))
                        self.rounds += 1
                    run.jobs += line.startswith("submitted;")
                    run.resubmissions += "submitting the run again" in line
            except BaseException:  # the soak ends first, and the command could wait without end
                self.process.kill()
                raise
        if self.process.returncode and not self.is_killed:
            last_lines = " / ".join(text for _, text in self.lines[-3:])
            run.failures.append(f"{self.process.returncode}: {last_lines}")
            time.sleep(2)
