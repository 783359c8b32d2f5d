"""The commands of docs/deploy.md and docs/membership.md, executed on this machine in their order."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.refusals import check_output
from tests.toy import SITES, Sets

from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare.node import end
from fedvisage.nvflare.rehearsal import free_port

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.long]

PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("deploy.md", "membership.md")]
PROGRAM = (sys.executable, "-m", "fedvisage")


STEP = re.compile(r"^`(\S+\.yaml)`:\n+```yaml\n(.*?)```|^```sh\n(.*?)```", flags=re.MULTILINE | re.DOTALL)
"""A file with its content, or commands."""


def commands(text: str, port: int) -> Iterator[list[str]]:
    """Return the commands that the page shows, in order, after writing the files that stand before them."""
    for name, content, lines in STEP.findall(text):
        if name:
            Path(name).write_text(content.replace("fed.example.org", "localhost").replace("8002", str(port)))
        yield from (shlex.split(line.removeprefix("fedvisage ")) for line in lines.splitlines())


def wait_for_line(beginning: str, log: Path) -> list[str]:
    """Return a log's lines as soon as one of them has this beginning."""
    lines = list[str]()
    while not any(line.startswith(beginning) for line in lines):
        time.sleep(0.2)
        lines = log.read_text().splitlines()
    return lines


def test_commands_of_the_deployment_pages_work(sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, port, running = "".join(page.read_text() for page in PAGES), free_port(), dict[str, subprocess.Popen[bytes]]()
    Path("sets").mkdir()
    for own, toy in zip(("bank", "border", "phone", "target", "watch"), (*SITES, "U", SITES[0]), strict=True):
        (Path("sets") / own).symlink_to(sets[toy])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FEDVISAGE_CACHE": str(tmp_path / "cache")}
    output = {}
    try:
        for verb, *rest in commands(text, port):
            if verb in ("server", "site"):
                log = (tmp_path / f"{len(running)}.log").open("wb")
                running[" ".join([verb, *rest])] = subprocess.Popen(
                    [*PROGRAM, verb, *rest], stdout=log, stderr=log, env=environment, start_new_session=True
                )
                continue
            if verb == "cp":
                subprocess.run([verb, *rest], check=True)
                continue
            more = (
                ["input.size=32", "training.rounds=2", "training.batch=8", "runtime.threads=1"] if verb == "run" else []
            )
            done = subprocess.run([*PROGRAM, verb, *rest[:1], *more, *rest[1:]], env=environment, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            output[verb] = done.stdout.decode()
        metrics = json.loads(Path("runs/first/metrics.json").read_text())
        assert (metrics["rounds"], metrics["sites"]) == (2, ["bank", "border", "phone"])
        assert all(name in output["status"] for name in metrics["sites"])
        assert "round 2/2" in output["run"]
        run_log = read_lines(next(Path("kits/server/runs").glob("first-*/log.jsonl")))
        assert [line["round"] for line in run_log] == [1, 2]
        assert str(sets[SITES[0]].resolve()) not in Path("runs/first/recipe.yaml").read_text()
        for number, command in enumerate(running):
            expected = "listening" if command.startswith("server") else f"connected to localhost:{port}"
            lines = wait_for_line(expected, tmp_path / f"{number}.log")
            assert any(line.startswith("refused phone") for line in lines) == command.startswith("server")
            assert not any(" INFO " in line for line in lines), "NVFlare writes to its log only"
        server = next(process for command, process in running.items() if command.startswith("server"))
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    finally:
        for process in running.values():
            end(process.pid)
            process.wait()


@pytest.mark.parametrize(
    ("arguments", "place", "keyword"),
    [
        (["server", "nowhere"], "nowhere", "kit"),
        (["site", "nowhere", "--data", "nowhere"], "nowhere", "kit"),
        (["run", "nowhere.yaml", "--kit", "nowhere"], "--kit", "--on nvflare"),
        (["provision", "wrong.yaml", "kits"], "wrong.yaml: server", "missing"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(arguments: list[str], place: str, keyword: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("sites: {A: {organisation: a}}\n")
    done = subprocess.run([*PROGRAM, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    check_output(done.stderr, place, keyword)
