"""Processes that wait for runs."""

import subprocess
import sys


def test_process_that_waits_for_runs_imports_no_torch() -> None:
    """NVFlare's main modules come later in the process; only then a run's process imports torch."""
    modules = ("node", "watching", "cells.rules")
    imports = "; ".join(f"import fedvisage.nvflare.{module}" for module in modules)
    imports += "; import nvflare.private.fed.app.client.client_train, nvflare.private.fed.app.server.server_train"
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
