"""Workers that execute jobs in other processes: a small interface, and its implementation by processes of this machine.

A job is a function that other processes can import, with arguments that can be pickled. The interface has no pipes,
process IDs, shared memory or local files: ``runs/ray_engine.py`` implements it for several machines.
docs/decisions/0037-worker-engine.md and 0047-ray.md give the reasons.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from ctypes import Array, c_longlong
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from safetensors.torch import load_file

from fedvisage.base.parallel import LastingProcess, start_fork_server
from fedvisage.base.processes import cores, use_threads
from fedvisage.federation.wire.message import Message, Reply, encode, plain
from fedvisage.nn.compute import device_of_worker, gpus_of
from fedvisage.recipe import Recipe
from fedvisage.runs import PRELOAD

Result = TypeVar("Result")


class WorkerLost(Exception):
    """A worker ended before its job was finished, for a reason that begins with the worker. Its state is lost."""


class Worker(Protocol):
    """One process, which executes its jobs in order and keeps its state between them."""

    def submit(self, job: Callable[..., Result], /, *args: Any) -> Future[Result]:
        """Submit a job. The future raises the job's exception, or :class:`WorkerLost`.

        An argument from :meth:`Engine.put` reaches the job as the message itself.
        """

    def progress(self) -> tuple[int, int]:
        """Return how many steps of its current job are finished, and of how many; zeros if that is unknown."""

    def close(self) -> None:
        """End the worker at once, even in the middle of a job."""


class Engine(Protocol):
    """A source of workers."""

    shared: bool
    """Workers share the cores of this machine with each other, so that there may be more than :meth:`capacity`.

    Without this, a run on the engine trains at workers or not at all.
    """

    def capacity(self, threads: int) -> int:
        """Return how many workers with this many threads can run at the same time without waiting."""

    def gpus(self, device: str) -> int:
        """Return how many workers the GPUs of a recipe's device serve at the same time; 0 for a CPU."""

    def device_of(self, device: str, number: int) -> str:
        """Return the device of a recipe as a worker names it, by the worker's number."""

    def start(self, count: int, threads: int, device: str) -> Sequence[Worker]:
        """Start workers for a recipe's device. Their modules are loaded while the caller goes on."""

    def wait(self, recipe: Recipe, cache: Path) -> Mapping[str, Any]:
        """Wait until the workers can take jobs and have the sets of a recipe, which are here or in the cache.

        Return what the record of the run's environment adds for the workers.
        """

    def put(self, message: Message) -> Any:
        """Store a message once for all workers, as long as the returned argument for jobs exists."""

    def close(self) -> None:
        """End all workers and remove what they stored."""


# The implementation by processes of this machine.

LOST = "a worker process ended unexpectedly, perhaps for lack of memory; use fewer workers (runtime.workers)"


@dataclass(frozen=True)
class StoredMessage:
    """A message in a file, which every process of this machine maps instead of copying it."""

    path: Path
    names: tuple[str, ...]

    @staticmethod
    def write(message: Message, path: Path) -> StoredMessage:
        """Write a message to a file."""
        path.write_bytes(encode({name: plain(value) for name, value in message.items()}))
        return StoredMessage(path, tuple(message))

    def read(self) -> Message:
        """Return the message in its order of names."""
        tensors = load_file(self.path)
        return {name: tensors[name] for name in self.names}


class LocalEngine:
    """Processes of this machine, which a fork server starts after it has loaded their modules.

    Where the system has no fork server, each process loads the modules itself.
    """

    shared = True

    def __init__(self, scratch: Path) -> None:
        """Take a directory for files of workers and messages, which is created with the first job."""
        self._scratch = scratch
        self._workers: list[LocalWorker] = []
        self._numbers = itertools.count()

    def capacity(self, threads: int) -> int:
        """Divide the cores among workers."""
        return max(1, cores() // threads)

    def gpus(self, device: str) -> int:
        """Return the number of GPUs: each serves one process."""
        return len(gpus_of(device))

    def device_of(self, device: str, number: int) -> str:
        """Return the GPUs in turn, because all processes see all of them."""
        return device_of_worker(device, number)

    def start(self, count: int, threads: int, device: str) -> Sequence[Worker]:
        """Start the fork server. Each process begins with its first job."""
        start_fork_server(PRELOAD)
        self._workers += [LocalWorker(self._scratch / f"worker-{number}", threads) for number in range(count)]
        return self._workers

    def wait(self, recipe: Recipe, cache: Path) -> Mapping[str, Any]:
        """Return at once, because a process takes its first job while it starts, and reads the same disks."""
        return {}

    def put(self, message: Message) -> StoredMessage:
        """Write a message to a file, which is removed when the returned object is."""
        self._scratch.mkdir(exist_ok=True)
        stored = StoredMessage.write(message, self._scratch / f"message-{next(self._numbers)}")
        weakref.finalize(stored, stored.path.unlink, missing_ok=True)
        return stored

    def close(self) -> None:
        """Kill all processes, and remove the directory."""
        for worker in self._workers:
            worker.close()
        if self._workers:
            shutil.rmtree(self._scratch, ignore_errors=True)


class LocalWorker:
    """A process of this machine with a scratch directory, where its jobs create their temporary files."""

    def __init__(self, scratch: Path, threads: int) -> None:
        """Prepare a process, which begins with its first job."""
        self._scratch, self._threads = scratch, threads
        self._process: LastingProcess | None = None
        # Shared memory, so that a job never blocks on an unread progress queue.
        self._progress: Array[c_longlong] = get_context("spawn").RawArray("q", 2)

    def submit(self, job: Callable[..., Result], /, *args: Any) -> Future[Result]:
        """Submit a job; this never raises an exception for a lost process, but the future does."""
        future: Future[Result] = Future()
        self._progress[:] = [0, 0]
        try:
            if self._process is None:
                self._scratch.mkdir(parents=True)
                begin = partial(_begin_worker, self._progress, self._threads, self._scratch)
                self._process = LastingProcess(begin, fork_server=True)
            self._process.submit(_execute, job, args).add_done_callback(partial(_deliver, future))
        except (RuntimeError, EOFError):  # the process was lost, or ended, before this job
            future.set_exception(WorkerLost(LOST))
        return future

    def progress(self) -> tuple[int, int]:
        """Return the numbers of the job's last :func:`report_progress`."""
        finished, total = self._progress
        return finished, total

    def close(self) -> None:
        """Kill the process, if it has begun."""
        if self._process is not None:
            self._process.end()


class Current:
    """The memory for the progress of this worker process; None in any other process."""

    progress: Array[c_longlong] | list[int] | None = None


def report_progress(finished: int, total: int) -> None:
    """Report from within a job how many of its steps are finished."""
    if Current.progress is not None:
        Current.progress[:] = [finished, total]


def _begin_worker(progress: Array[c_longlong], threads: int, scratch: Path) -> None:
    Current.progress = progress
    tempfile.tempdir = str(scratch)
    use_threads(threads)


def _execute(job: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Execute a job in a worker process; messages come and leave in files, so only names pass through pipes."""
    result = job(*(argument.read() if isinstance(argument, StoredMessage) else argument for argument in args))
    if not isinstance(result, Reply) or result.message is None:
        return result
    with tempfile.NamedTemporaryFile(delete=False) as file:
        stored = StoredMessage.write(result.message, Path(file.name))
    return replace(result, message=cast(Any, stored))


def _deliver(future: Future[Any], finished: Future[Any]) -> None:
    """Pass a job's outcome on to the future that its caller holds."""
    try:
        result = finished.result()
        if isinstance(result, Reply) and isinstance(result.message, StoredMessage):
            # The mapped tensors stay readable without the file's name, and take no memory until they are read.
            stored = result.message
            result = replace(result, message=stored.read())
            stored.path.unlink()
    except (BrokenProcessPool, CancelledError):
        future.set_exception(WorkerLost(LOST))
    except Exception as error:  # the caller gets every exception of its job
        future.set_exception(error)
    else:
        future.set_result(result)
