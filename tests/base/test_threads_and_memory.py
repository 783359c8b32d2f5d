"""Threads, cores and free memory of a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests.toy import THREADS
from threadpoolctl import threadpool_info

from fedvisage.base.processes import SPINS, WAITING, cores, free_memory, use_threads

MEMINFO = "MemTotal:       100 kB\nMemFree:         10 kB\nMemAvailable:    40 kB\n"


@pytest.fixture(autouse=True)
def _threads_of_other_tests() -> Iterator[None]:
    yield
    use_threads(THREADS)


@pytest.mark.parametrize("count", [1, 2])
def test_linear_algebra_libraries_use_the_threads_of_the_process(count: int) -> None:
    np.ones((8, 8)) @ np.ones((8, 8))
    use_threads(3 - count)
    use_threads(count)
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    assert libraries, "NumPy has one"
    assert {library["num_threads"] for library in libraries} == {count}
    assert torch.get_num_threads() == count


PRINT_SETTINGS = """
import os, sys
from fedvisage.cli import main

sys.argv = ["fedvisage", "--version"]
try:
    main()
except SystemExit:
    print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, f"None {SPINS}"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "infinity"}, "None infinity"),
    ],
)
def test_waiting_threads_of_the_command_line_sleep_sooner_by_default(settings: dict[str, str], policy: str) -> None:
    """OpenMP's environment variables are set before torch is loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | settings
    words = [sys.executable, "-c", PRINT_SETTINGS]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == f"{policy} False"


@pytest.mark.parametrize(
    ("files", "kilobytes"),
    [
        ({}, 40),
        ({"memory.max": "20480", "memory.current": "5120"}, 15),
        ({"memory.max": "max", "memory.current": "5120"}, 40),
        ({"memory.max": "20480", "memory.current": "30720"}, 0),
        ({"memory/memory.limit_in_bytes": "10240", "memory/memory.usage_in_bytes": "1024"}, 9),
        ({"memory/memory.limit_in_bytes": str((1 << 63) - 4096), "memory/memory.usage_in_bytes": "1024"}, 40),
    ],
)
def test_free_memory_is_limited_by_machine_and_container(tmp_path: Path, files: dict[str, str], kilobytes: int) -> None:
    for name, text in (
        {"proc/meminfo": MEMINFO} | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    ).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == kilobytes * 1024


@pytest.mark.parametrize(("limit", "most"), [("150000 100000", 1), ("50000 100000", 1), ("100000000 100000", None)])
def test_cores_are_limited_by_machine_and_container(tmp_path: Path, limit: str, most: int | None) -> None:
    everything = cores(tmp_path)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(limit + "\n")
    assert 1 <= everything <= psutil.cpu_count()
    assert cores(tmp_path) == (most or everything)


def test_this_machine_has_free_memory() -> None:
    assert free_memory() > 1 << 20
