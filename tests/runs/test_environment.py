"""What is written beside a run of where it ran."""

import subprocess
import sys

import numpy as np
import pytest

SAYS = "from fedvisage.runs.directory import peak_rss_mb; print(peak_rss_mb())"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system's own figure is taken")
def test_the_peak_memory_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    large = np.ones(900_000_000, np.uint8)
    said = subprocess.check_output([sys.executable, "-c", SAYS], text=True)
    assert 10 < float(said) < len(large) / 2**20
