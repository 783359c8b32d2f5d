"""Worker processes that nothing ends but the process that started them, and that never outlive it.

Signals reach a whole group of processes: Ctrl-C a terminal's, SIGTERM a service's. The workers take none, so the
process that uses them decides what becomes of their work, and ends them itself.
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

# A process that reads what a stranger wrote: no network, no other program, no files to write, a bound on memory.
#
# Linux alone can close a process off so without rights of its own: a filter of system calls (seccomp) that the
# process
# puts on itself and cannot take off again.


REFUSED = {
    "x86_64": (0xC000003E, (41, 42, 49, 50, 53, 56, 57, 58, 59, 62, 101, 322, 425, 435)),
    "aarch64": (0xC00000B7, (198, 199, 200, 201, 203, 117, 129, 220, 221, 281, 425, 435)),
}
"""By machine: the kernel's number for it, and its calls that open sockets, begin processes, or reach into others."""

SECONDS = 600
"""Of processor time; the largest checkpoints take one."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER, _MACHINE = 0, 4
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER = 38, 22, 2
_LOW_CALLS = 0x40000000
"""Numbers from here on are x86's other set of calls, which has sockets, too."""
_AT_LEAST = 0x35


class CannotClose(Exception):
    """This system has no way to close a process off."""


def closed_off(memory: int) -> None:
    """Close this process off for good, with so many bytes of memory beyond what it has now."""
    here = _address_space() + memory
    for limit, most in (
        (resource.RLIMIT_AS, here),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, SECONDS),
    ):
        hard = resource.getrlimit(limit)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (bound, bound))
    _filter_calls()


def can_close() -> bool:
    """Tell whether this system has such a filter."""
    return sys.platform == "linux" and platform.machine() in REFUSED


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _filter_calls() -> None:
    if not can_close():
        raise CannotClose(f"{sys.platform} on {platform.machine()} has no filter of system calls")
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
        if system.prctl(*(ctypes.c_ulong(one) for one in arguments)) != 0:
            raise CannotClose(f"this system refuses a filter of system calls ({errno.errorcode[ctypes.get_errno()]})")


def _step(operation: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", operation, then, otherwise, value)


# What of this machine a process may use: threads, of every library that has some, cores, and free memory.


SYSTEM = Path("/")
NO_LIMIT = 1 << 62
WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})  # what OpenMP looks at: how threads wait for each other
SPINS = "30000"  # a tenth of what OpenMP has unasked


def use_threads(count: int) -> None:
    """Give this process so many threads, torch's and those of each library of linear algebra.

    NumPy and SciPy bring libraries of their own, of which torch knows nothing: without a bound they take every core,
    and their sums round by how many there are.
    """
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(count)
    threadpool_limits(limits=count, user_api="blas")


def let_threads_sleep(environment: MutableMapping[str, str]) -> None:
    """Have threads that wait for each other sleep sooner, unless the environment says how they wait.

    OpenMP's threads spin at the end of every loop that they share. Where other programs compute, they spin on the very
    cores that the slowest of them waits for, and a step takes several times as long. At rest a short spin costs
    nothing; none at all (``OMP_WAIT_POLICY=PASSIVE``) costs a tenth. What is set counts before OpenMP is loaded.
    """
    if WAITING.isdisjoint(environment):
        environment["GOMP_SPINCOUNT"] = SPINS


def cores(system: Path = SYSTEM) -> int:
    """Return how many cores this process may use: of the machine, and of a container that it is in."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (int(part) for part in (system / "sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # no container, or "max": no limit
        return count
    return max(1, min(count, quota // period))


def free_memory(system: Path = SYSTEM) -> int:
    """Return how many bytes this process could still have: of the machine, and of a container that it is in."""
    free = _of_the_machine(system)
    for limit, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, taken = _number(system / limit), _number(system / used)
        if most is not None and taken is not None and most < NO_LIMIT:
            free = min(free, max(0, most - taken))
    return free


def _of_the_machine(system: Path) -> int:
    path = system / "proc" / "meminfo"
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # a guess, on systems that do not say


def _number(path: Path) -> int | None:
    """Return the number in a file of the system's; none if there is no file, or it says that there is no limit."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


STOPS = (signal.SIGINT, signal.SIGTERM)

_STARTING = threading.RLock()
"""What a program says of itself is hidden by one thread at a time, else another would keep what it finds hidden."""


@contextmanager
def worker_processes(count: int, begin: Callable[[], None] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Lend a pool of fresh processes, each begun by a function; whatever goes wrong, none is left.

    Work is handed in by ``submit``, not ``map``: that cancels what it has not done, on which a pool that ends stumbles.
    """
    others = {child.pid for child in active_children()}
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=begin_worker, initargs=(begin,))
    whole = False
    try:
        yield pool
        whole = True
    except BrokenProcessPool:
        raise RunFailed("a worker process ended by itself, perhaps for lack of memory; use fewer workers") from None
    finally:
        if not whole:
            for child in active_children():
                if child.pid not in others:
                    child.kill()
        pool.shutdown()


@contextmanager
def starting() -> Iterator[None]:
    """Hold signals back while workers start, which so never take any; what came meanwhile arrives afterwards.

    Nor do workers get to know the program's own file. They would run it again, and a script of ten lines, as users
    write it, has no guard against that; what they work on is never in it.
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


def begin_worker(begin: Callable[[], None] | None) -> None:
    """Begin a worker, in itself: it ends with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this is a worker"
    wait([parent.sentinel])
    os._exit(1)
