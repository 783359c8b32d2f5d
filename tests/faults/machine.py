"""A process that runs recipes in children that tests can kill.

Importing everything and a first run take seconds, so one process does it once and forks a child, with a process group
of its own, for each run. A child can be told to kill itself at its n-th operation on a file of the run, which makes
moments such as "the new checkpoint is written but not yet renamed" repeatable, or to allow itself only small files.
"""

import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

FINISHED, KILLED, FAILED, REFUSED = "finished", "killed", "run failed", "refused"
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"}


@dataclass(frozen=True)
class End:
    """The outcome of a child, and its error message."""

    how: str
    message: str = ""


class Machine:
    """The side of the tests: starts runs, kills them, and returns their outcomes."""

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.machine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def run(
        self,
        content: Mapping[str, Any],
        out: Path,
        *,
        kill_after: float | None = None,
        kill_at: int | None = None,
        counted: Sequence[str] = ("",),
        largest_file: int | None = None,
    ) -> End:
        """Run a recipe, resuming what is there; kill it after some seconds, or at one of its file operations.

        ``counted`` names the files and folders of the run whose operations count.
        """
        self.start(content, out, kill_at=kill_at, counted=counted, largest_file=largest_file)
        return self.wait(kill_after)

    def start(
        self,
        content: Mapping[str, Any],
        out: Path,
        *,
        kill_at: int | None = None,
        counted: Sequence[str] = ("",),
        largest_file: int | None = None,
    ) -> None:
        places = [f"{out / name}" for name in counted]
        order = {"content": content, "out": str(out), "kill_at": kill_at, "at": places, "largest_file": largest_file}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self.pid = int(self._line())

    def wait(self, kill_after: float | None = None) -> End:
        assert self._process.stdout is not None
        if kill_after is not None and not select.select([self._process.stdout], [], [], kill_after)[0]:
            with suppress(ProcessLookupError):  # the run has just ended
                os.killpg(self.pid, signal.SIGKILL)
        return End(**json.loads(self._line()))

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return line


def main() -> None:
    """Execute one order per line until the input ends."""
    sys.stdout = sys.stderr
    _warm_up()
    with os.fdopen(1, "wb", buffering=0) as answers:
        for line in sys.stdin:
            order = json.loads(line)
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _child(order, writer)
            os.setpgid(pid, pid)
            os.close(writer)
            answers.write(f"{pid}\n".encode())
            with os.fdopen(reader, "rb") as file:
                text = file.read()
            _, status = os.waitpid(pid, 0)
            end = json.loads(text) if text and os.WIFEXITED(status) else {"how": KILLED}
            answers.write(json.dumps(end).encode() + b"\n")


def _warm_up() -> None:
    import torch
    from tests.toy import SITES, make_set, run_toy, tree

    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        sets = {name: make_set(Path(scratch) / name, name, seed) for seed, name in enumerate((*SITES, "U"))}
        run_toy(tree(sets, training__rounds=1), Path(scratch) / "run")


def _child(order: Mapping[str, Any], writer: int) -> None:
    end = _run(order)
    os.write(writer, json.dumps({"how": end.how, "message": end.message}).encode())
    os._exit(0)


def _run(order: Mapping[str, Any]) -> End:
    from tests.contract.examples import EXAMPLES
    from tests.toy import run_toy

    from fedvisage.base.errors import RunFailed, UserError

    if order["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"], resource.RLIM_INFINITY))
    if order["kill_at"] is not None:
        kill_at_operation(order["kill_at"], tuple(order["at"]))
    try:
        method = EXAMPLES.get(order["content"]["method"]["name"])
        run_toy(order["content"], Path(order["out"]), resume=True, method=method)
    except RunFailed as error:
        return End(FAILED, str(error))
    except UserError as error:
        return End(REFUSED, str(error))
    except BaseException as error:
        return End("crashed", repr(error))
    return End(FINISHED)


def kill_at_operation(number: int, places: tuple[str, ...]) -> None:
    """Kill this process when it is about to carry out its n-th operation on a file in these places."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in OPERATIONS and str(arguments[0]).startswith(places):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    main()
