"""Run all benchmarks, print them, and write the table with the machine that it was measured on.

With names of modules, such as ``python -m benchmarks split adaptation``, only those are run, and nothing is written.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import (
    adaptation,
    adapters,
    browser,
    clustering,
    data,
    detector,
    face_step,
    fedgpad,
    gallery,
    imports,
    memory,
    overhead,
    paper,
    pipeline,
    precision,
    predict,
    privacyface,
    recognition,
    secure,
    service,
    softmax,
    split,
    startup,
    transport,
    whole,
)
from fedvisage.nn.precision import choose
from fedvisage.runs.environment import describe

MEASURES = (
    startup.measure,
    data.measure_rendering,
    data.measure_reading,
    detector.measure,
    imports.measure,
    imports.measure_memory,
    predict.measure,
    pipeline.measure,
    pipeline.measure_small,
    pipeline.measure_int8,
    pipeline.measure_start,
    precision.measure,
    precision.measure_layout,
    memory.measure,
    overhead.measure,
    secure.measure,
    transport.measure,
    fedgpad.measure,
    adaptation.measure_time,
    adaptation.measure_memory,
    adapters.measure,
    split.measure,
    split.measure_depth,
    split.measure_bytes,
    clustering.measure,
    clustering.measure_large,
    privacyface.measure_time,
    privacyface.measure_bytes,
    recognition.measure_mining,
    recognition.measure_verification,
    recognition.measure_identification,
    recognition.measure_against_scikit_learn,
    softmax.measure,
    face_step.measure,
    paper.measure_fedgpad,
    paper.measure_fedfr,
    recognition.measure_sites,
    gallery.measure,
    gallery.measure_renewable,
    service.measure,
    browser.measure,
    whole.measure_fedfr,
    whole.measure_fedpad,
    whole.measure_fixed,
    whole.measure_memory,
    whole.measure_rest,
)
LAYOUT = """## Layout
Convolutions lie in memory with their channels last unless a recipe says otherwise. With `runtime.layout: auto` a step
of the run's own network, on four images at most, is timed with the channels first and last before the run begins; the
least of two to four steps counts. What is usual stays unless another setting saves a fifth of the time. The resolved
recipe says what was chosen, `environment.json` the times (`seconds_of_a_step`), and the user's cache remembers both by
network, batch, image size, threads, processor and version. [Why so](decisions/0011-layout.md).
"""
VERDICT = {True: "holds", False: "**missed**", None: "cannot be told here"}


def main() -> None:
    """Measure and report."""
    rows, names = [], sys.argv[1:]
    chosen = [measure for measure in MEASURES if not names or measure.__module__.split(".")[-1] in names]
    with tempfile.TemporaryDirectory() as cache:
        for measure in chosen:
            result = measure(Path(cache))
            rows.append(f"| {result.claim} | {result.bound} | {result.measured} | {VERDICT[result.holds]} |")
            print(rows[-1], flush=True)
    if names:
        return
    machine = describe(choose("auto", "auto"), torch.get_num_threads())
    table = "\n".join(["| what | bound | measured | verdict |", "|---|---|---|---|", *rows])
    text = (
        "# Benchmarks\n\nWritten by `make benchmark`. Every figure is a ratio, or a rate, measured in one run; on a "
        "shared machine read the ratios.\n\n"
        f"{table}\n\n{LAYOUT}\nMachine and versions:\n\n```json\n{json.dumps(machine, indent=2)}\n```\n"
    )
    Path("docs/benchmarks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
