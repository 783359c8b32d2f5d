"""What a run loads before its first step: nothing that only draws its report, or that few methods need."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = "import fedvisage.runs.run, fedvisage.methods, sys; print(*{name.split('.')[0] for name in sys.modules})"


@pytest.mark.slow
def test_no_step_waits_for_libraries_that_draw_or_solve() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not loaded & {"matplotlib", "sklearn", "scipy"}
