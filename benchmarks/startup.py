"""How long a person waits for ``fedvisage --help``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measurement import Measurement


def measure(cache: Path) -> Measurement:
    """Take the best of five starts."""
    del cache
    command = [str(Path(sys.executable).with_name("fedvisage")), "--help"]
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return Measurement("fedvisage --help", "< 0.5 s", f"{min(seconds):.2f} s", min(seconds) < 0.5)
