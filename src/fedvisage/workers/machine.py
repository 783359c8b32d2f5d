"""What of this machine a process may use: threads, of every library that has some, cores, and free memory."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

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
