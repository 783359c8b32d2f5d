"""Start worker processes, sandbox them, and find the threads, cores and memory that this process may use.

Only the process that starts a worker ends it, and no worker outlives that process. Signals reach a whole group of
processes: Ctrl-C a terminal's, SIGTERM a service's. Workers therefore block signals, so that the process that uses
them decides what happens to their work, and ends them itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fedvisage.base.errors import RunFailed

MOST_PROCESSES = 256
"""Maximum number of worker processes that a command or a recipe may ask for."""

# The sandbox for reading untrusted files: no network, no new programs, no writing of files, bounded memory.
#
# Only Linux offers this without privileges, by a filter of system calls (seccomp) that a process sets for itself and
# cannot remove.


REFUSED = {
    "x86_64": (0xC000003E, (41, 42, 49, 50, 53, 56, 57, 58, 59, 62, 101, 322, 425, 435)),
    "aarch64": (0xC00000B7, (198, 199, 200, 201, 203, 117, 129, 220, 221, 281, 425, 435)),
}
"""Per machine: the kernel's number for it, and its calls that open sockets, start processes, or access other ones."""

SECONDS = 600
"""Limit of processor time; the largest checkpoints take one second."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER, _MACHINE = 0, 4
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER = 38, 22, 2
_LOW_CALLS = 0x40000000
"""First number of x86's second set of system calls, which includes sockets."""
_AT_LEAST = 0x35


class SandboxUnavailable(Exception):
    """This system cannot sandbox a process."""


def enter_sandbox(memory: int) -> None:
    """Sandbox this process permanently, with ``memory`` bytes beyond its present address space."""
    with open("/proc/self/statm", encoding="ascii") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize() + memory
    for limit, maximum in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, SECONDS),
    ):
        hard = resource.getrlimit(limit)[1]
        bound = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(limit, (bound, bound))
    _filter_calls()


def can_sandbox() -> bool:
    """Return whether this system has such a filter."""
    return sys.platform == "linux" and platform.machine() in REFUSED


def _filter_calls() -> None:
    if not can_sandbox():
        raise SandboxUnavailable(f"{sys.platform} on {platform.machine()} does not support system-call filters")
    machine, refused = REFUSED[platform.machine()]
    code = [_step(_LOAD, _MACHINE), _step(_EQUAL, machine, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    code += [_step(_AT_LEAST, _LOW_CALLS, 0, 1), _step(_RETURN, _REFUSE)]
    for number in refused:
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _REFUSE)]
    code.append(_step(_RETURN, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    system = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_FILTER, _FILTER, ctypes.addressof(header), 0, 0)):
        if system.prctl(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
            raise SandboxUnavailable(
                f"this system rejects a system-call filter ({errno.errorcode[ctypes.get_errno()]})"
            )


def _step(operation: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", operation, then, otherwise, value)


# Threads, cores and free memory that this process may use.


SYSTEM = Path("/")
NO_LIMIT = 1 << 62
WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})  # OpenMP's settings of how threads wait for each other
SPINS = "1000"  # OpenMP's default is 300,000


def use_threads(count: int) -> None:
    """Set the number of threads of torch and of every linear algebra library in this process.

    NumPy and SciPy bring their own libraries, which torch does not control: without a limit they take every core, and
    the rounding of their sums depends on the number of threads.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    threadpool_limits(limits=count, user_api="blas")


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Make waiting OpenMP threads sleep sooner, unless the environment already sets how they wait.

    OpenMP's threads spin at the end of every shared loop. When other programs compute, they spin on the very cores that
    their slowest thread waits for: of two runs with two threads each on two cores, a step took nine times as long.
    With this short spin it takes twice as long, as it should, and a run alone on the machine loses about 5 %; without
    any spin (``OMP_WAIT_POLICY=PASSIVE``) it loses 40 %. Set the variable before OpenMP is loaded.
    """
    if WAITING.isdisjoint(environment):
        environment["GOMP_SPINCOUNT"] = SPINS


def cores(system: Path = SYSTEM) -> int:
    """Return the number of cores that this process may use, limited by the machine and its container."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (int(part) for part in (system / "sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # no container, or "max" for no limit
        return count
    return max(1, min(count, quota // period))


def free_memory(system: Path = SYSTEM) -> int:
    """Return the bytes of memory that this process could still allocate, limited by the machine and its container."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # a guess, on systems without this file
    path = system / "proc" / "meminfo"
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        maximum, usage = _number(system / limit), _number(system / used)
        if maximum is not None and usage is not None and maximum < NO_LIMIT:
            free = min(free, max(0, maximum - usage))
    return free


def _number(path: Path) -> int | None:
    """Return the number in a system file; None if the file is missing or states no limit."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


STOPS = (signal.SIGINT, signal.SIGTERM)

_STARTING = threading.RLock()
"""Serialises :func:`block_signals`: a second thread would save the attributes of ``__main__`` while they are hidden."""


@contextmanager
def worker_processes(count: int, begin: Callable[[], object] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes, each initialised by ``begin``; no process is left, whatever goes wrong.

    Use ``submit``, not ``map``: ``map`` cancels its unfinished work, and a pool that is shutting down fails on that.
    """
    earlier = {child.pid for child in active_children()}
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=begin_worker, initargs=(begin,))
    finished = False
    try:
        yield pool
        finished = True
    except BrokenProcessPool:
        raise RunFailed("a worker process died, possibly out of memory; use fewer workers") from None
    finally:
        if not finished:
            for child in active_children():
                if child.pid not in earlier:
                    child.kill()
            drop_partial_result(pool)
        pool.shutdown()


def drop_partial_result(pool: ProcessPoolExecutor) -> None:
    """Let a pool end whose processes were killed, perhaps while one of them sent a result.

    The pool would wait forever for the rest of that result: the pipe stays open, because this process holds its other
    end, too. Python has no public function that closes it.
    """
    results: Any = pool._result_queue
    if results is not None:
        results._writer.close()


@contextmanager
def block_signals() -> Iterator[None]:
    """Block signals while workers start, so that workers never take any; pending signals arrive afterwards.

    This also hides the main program's file from workers, which would otherwise run it again: a short user script has no
    ``__main__`` guard, and the work never refers to it.
    """
    with _STARTING:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        main = sys.modules["__main__"].__dict__
        hidden: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(hidden)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(begin: Callable[[], object] | None) -> None:
    """Initialise a worker, inside its process: it ends with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    wait([parent.sentinel])
    os._exit(1)
