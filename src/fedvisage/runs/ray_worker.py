"""The process of a worker on a node of a Ray cluster, and the form of messages on their way.

``runs/ray_engine.py`` is the other end.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import stat
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import ray
import torch

from fedvisage.base.errors import UserError
from fedvisage.base.files import lock_directory
from fedvisage.base.processes import use_threads
from fedvisage.federation.wire.message import Message, Reply
from fedvisage.nn.compute import resolve_compute
from fedvisage.runs.directory import describe, processor_features
from fedvisage.runs.engine import Current

LOCKED = 60.0
"""Seconds to wait while other workers of the node make their directories."""

# Tensors that share the memory of a stored message are only read; a contract test checks this.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


# Messages.


@dataclass(frozen=True)
class PackedMessage:
    """A message as arrays of bytes, which Ray maps from a node's shared memory instead of copying them."""

    tensors: Mapping[str, tuple[torch.dtype, torch.Size, npt.NDArray[np.uint8]]]

    @staticmethod
    def pack(message: Message) -> PackedMessage:
        """Return a message in its order of names."""
        packed = {}
        for name, value in message.items():
            flat = value.detach().cpu().contiguous().reshape(-1)
            packed[name] = (value.dtype, value.shape, flat.view(torch.uint8).numpy())
        return PackedMessage(packed)

    def read(self) -> Message:
        """Return the message, whose tensors must not be changed."""
        return {
            name: torch.from_numpy(values).view(dtype).reshape(shape)
            for name, (dtype, shape, values) in self.tensors.items()
        }


# The process of a worker on its node.


class WorkerProcess:
    """Executes jobs one after another; a second thread of it answers questions meanwhile."""

    def __init__(self, run: str, threads: int) -> None:
        """Set the number of threads; files are created with the first job."""
        self._run, self._threads, self._jobs, self._progress = run, threads, 0, [0, 0]
        self._lock, self._scratch = ExitStack(), ""

    def describe(self) -> dict[str, Any]:
        """Return the node's number and name, and everything that the bytes of a result depend on."""
        use_threads(self._threads)
        number = ray.get_runtime_context().get_node_id()
        return {"node": (number, node_name()), "threads": torch.get_num_threads(), **environment()}

    def execute(self, job: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
        """Return the result of a job, or its exception."""
        Current.progress = self._progress
        self._progress[:] = [0, 0]
        self._jobs += 1
        try:
            if not self._scratch:
                self._scratch = str(self._lock.enter_context(open_scratch(self._run)))
                tempfile.tempdir = self._scratch
            use_threads(self._threads)  # of the thread in which Ray executes jobs
            result = job(*(argument.read() if isinstance(argument, PackedMessage) else argument for argument in args))
        except Exception as error:  # the driver gets every exception of its job
            return None, _as_picklable(error)
        if isinstance(result, Reply) and result.message is not None:
            result = replace(result, message=cast(Any, PackedMessage.pack(result.message)))
        return result, None

    @ray.method(concurrency_group="questions")
    def progress(self) -> tuple[int, int, int]:
        """Return the number of jobs so far, and the numbers of the current job's last ``report_progress``."""
        finished, total = self._progress
        return self._jobs, finished, total

    @ray.method(concurrency_group="questions")
    def remove_scratch(self) -> None:
        """Remove the files of this process, which is killed next."""
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def node_name() -> str:
    """Return the name of this node in messages."""
    return f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"


def environment() -> dict[str, Any]:
    """Return the versions and the processor features of this process."""
    described = describe(resolve_compute("cpu", "fp32"), 0)
    packages = described.pop("packages")
    names = ("fedvisage", "python", "system", "cpu_capability")
    return {**{name: described[name] for name in names}, **packages, "processor features": processor_features()}


def _as_picklable(error: Exception) -> Exception:
    """Return an exception that the driver can read, with its traceback as a note."""
    try:
        error.add_note(traceback.format_exc())
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling calls code of the exception's class
        return RuntimeError(traceback.format_exc())
    return error


@contextmanager
def open_scratch(run: str) -> Iterator[Path]:
    """Create a directory for a worker's files, of mode 700 and named after the run, and lock it; remove dead workers'.

    Private state of sites must not stay on a node whose worker was killed.
    """
    os.umask(0o077)
    parent = Path(tempfile.gettempdir()) / f"fedvisage-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UserError(str(parent), "is not a directory of mode 700 of this user; remove it on this node")
    with ExitStack() as held:
        with lock_directory(parent, LOCKED):
            for other in parent.iterdir():
                with suppress(UserError, OSError), lock_directory(other):  # a living worker holds its lock
                    shutil.rmtree(other)
            scratch = Path(tempfile.mkdtemp(prefix=f"{run}-", dir=parent))
            held.enter_context(lock_directory(scratch))
        yield scratch
