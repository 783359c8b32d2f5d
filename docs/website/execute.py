"""Executes the notebooks and writes their outputs into them: ``python -m docs.website.execute [NAME...]``.

Each runs in an empty directory with one thread, and should finish within two minutes. Its outputs must be small enough
for a page. Execution counts and times are removed, so that equal outputs result in equal files. ``--check`` writes
nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from docs.website.markdown import ROOT
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

FOLDER = ROOT / "notebooks"
LIMIT = 600
"""Seconds per cell on a busy machine; a whole notebook should take two minutes."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LARGEST = 250_000
"""Bytes of a notebook with its outputs."""


def execute(path: Path) -> NotebookNode:
    """Return a notebook with new outputs."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources=resources).execute()
    return normalise(notebook)


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Remove the parts that differ between machines."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = COLOURS.sub("", output["text"])
                output.pop("execution_count", None)
                output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
    return notebook


def main() -> int:
    """Execute all notebooks, or the given ones."""
    parser = argparse.ArgumentParser(prog="python -m docs.website.execute", description=__doc__)
    parser.add_argument("names", nargs="*", help="such as 04-a-curious-server; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    for path in sorted(FOLDER.glob("*.ipynb")):
        if options.names and path.stem not in options.names:
            continue
        began = time.monotonic()
        try:
            text = nbformat.writes(execute(path)) + "\n"
        except CellExecutionError as failed:
            sys.stderr.write(f"{path.name}: {failed}\n")
            return 1
        if len(text) > LARGEST:
            sys.stderr.write(f"{path.name}: {len(text)} bytes with its outputs; at most {LARGEST}\n")
            return 1
        if not options.check:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.name}: {time.monotonic() - began:.0f} s, {len(text) / 1000:.0f} kB\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
