"""Run all benchmarks, print them, and write the table and the machine into docs/benchmarks.md.

With names only those rows are run, and nothing is written: of modules (``python -m benchmarks split adaptation``), or
single ones (``python -m benchmarks whole.fixed paper.fedsis``). ``--list`` prints them all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
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
    flower,
    gallery,
    growth,
    imports,
    memory,
    overhead,
    pipeline,
    precision,
    predict,
    privacyface,
    recognition,
    scaling,
    secure,
    service,
    softmax,
    split,
    startup,
    transport,
    waiting,
    whole,
)
from benchmarks.measurement import Measurement
from benchmarks.page import PAGE, with_results
from benchmarks.paper import fedfr as paper_fedfr
from benchmarks.paper import fedgpad as paper_fedgpad
from benchmarks.paper import fedsis as paper_fedsis
from benchmarks.paper import iresnet as paper_iresnet
from fedvisage.nn.compute import resolve_compute
from fedvisage.runs.directory import describe

MEASURES = (
    startup.measure,
    data.measure_rendering,
    data.measure_reading,
    data.measure_path,
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
    waiting.measure,
    memory.measure,
    memory.measure_activations,
    overhead.measure,
    flower.measure,
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
    paper_fedgpad.measure,
    paper_fedgpad.measure_bf16,
    paper_fedfr.measure,
    paper_fedfr.measure_bf16,
    paper_fedsis.measure,
    paper_fedsis.measure_bf16,
    paper_iresnet.measure,
    recognition.measure_sites,
    gallery.measure,
    gallery.measure_renewable,
    service.measure,
    browser.measure,
    scaling.measure,
    growth.measure_sites,
    growth.measure_images,
    growth.measure_rounds,
    growth.measure_site_round,
    whole.measure_fedfr,
    whole.measure_fedpad,
    whole.measure_fedpad_of_four,
    whole.measure_fixed,
    whole.measure_memory,
    whole.measure_rest,
)
VERDICT = {True: "holds", False: "**missed**", None: "cannot be told here"}
NO_BOUND = "none"
"""Beginning of the bound of a row that only informs."""


def _verdict(result: Measurement) -> str:
    return "–" if result.bound.startswith(NO_BOUND) else VERDICT[result.holds]


def name_of(measure: Callable[[Path], Measurement]) -> str:
    """Return the name of a row: its module and, after a dot, the row in the module."""
    row = measure.__name__.removeprefix("measure").removeprefix("_")
    return ".".join(part for part in (measure.__module__.removeprefix("benchmarks."), row) if part)


def chosen_by(names: list[str]) -> list[Callable[[Path], Measurement]]:
    """Return the rows that are called so, or are of a module that is; all of them if there are no names."""
    return [one for one in MEASURES if not names or any(f"{name_of(one)}.".startswith(f"{name}.") for name in names)]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("names", nargs="*", help="modules or rows, such as split or whole.fixed")
    parser.add_argument("--list", action="store_true", help="print the names of all rows")
    asked = parser.parse_args()
    if asked.list:
        print(*map(name_of, MEASURES), sep="\n")
        return
    for name in asked.names:
        if not chosen_by([name]):
            parser.error(f"{name} is no row and no module; see --list")
    _measure(asked.names)


def _measure(names: list[str]) -> None:
    """Measure what is named and print it; the whole table is written where docs show it."""
    rows, chosen = [], chosen_by(names)
    with tempfile.TemporaryDirectory() as cache:
        for measure in chosen:
            result = measure(Path(cache))
            rows.append(f"| {result.claim} | {result.bound} | {result.measured} | {_verdict(result)} |")
            print(rows[-1], flush=True)
    if names:
        return
    machine = describe(resolve_compute("auto", "auto"), torch.get_num_threads())
    table = "\n".join(["| what | bound | measured | verdict |", "|---|---|---|---|", *rows])
    PAGE.write_text(with_results(PAGE.read_text(encoding="utf-8"), table, machine), encoding="utf-8")
