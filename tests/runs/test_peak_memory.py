"""The peak memory in the metrics of a run."""

import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.long

PRINT_PEAK = "from fedvisage.runs.directory import peak_rss_mb; print(peak_rss_mb())"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems report their own figure")
def test_peak_memory_excludes_the_parent_process() -> None:
    large = np.ones(900_000_000, np.uint8)
    peak = subprocess.check_output([sys.executable, "-c", PRINT_PEAK], text=True)
    assert 10 < float(peak) < len(large) / 2**20
