"""What the bytes of a result depend on besides the recipe, written beside every run."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedvisage.nn.precision import Compute
from fedvisage.version import VERSION

PACKAGES = ("torch", "timm", "numpy", "kornia", "scikit-learn", "opencv-python-headless", "safetensors")


def describe(compute: Compute, threads: int) -> dict[str, Any]:
    """Return versions, processor, threads and number format."""
    return {
        "fedvisage": VERSION,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(compute.device) if compute.device.type == "cuda" else "cpu",
        "precision": "bf16" if compute.half else "fp32",
        "layout": "first" if compute.layout == torch.contiguous_format else "last",
        "threads": threads,
    }


def peak_rss_mb(workers: Iterable[int] = ()) -> float:
    """Return the most memory that this process has used, in MiB, and its workers, each by its number.

    Linux says it best in /proc: the figure that every system has begins, there, with that of the process that started
    this one. Other systems say nothing of the workers.
    """
    own = _peak_kb("self")
    if own is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1024 if sys.platform.startswith("linux") else 1024 * 1024), 1)
    return round((own + sum(_peak_kb(str(number)) or 0 for number in workers)) / 1024, 1)


def _peak_kb(process: str) -> int | None:
    """Return the most memory that a process has used; none if the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
