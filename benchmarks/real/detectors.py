"""Compare face detectors by what follows from them: ``python -m benchmarks.real.detectors DIR``.

The published pair scores pictures of the sites as ``fedvisage predict --pad minifasnet --detector NAME`` does. Of each
class of a site, at most 60 unique files at equal distances are scored. A picture has no decision if no face is found,
or if the face is turned, tilted or too small. The pair and YuNet must be in the cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.families import unique_files
from benchmarks.real.scores import auc
from benchmarks.real.sites import MOST
from fedvisage.device.fused import Model, open_export
from fedvisage.device.predict import list_input_pictures, predict
from fedvisage.faces.pictures import equidistant
from fedvisage.starts.published import locate_detector

DETECTORS = ("mtcnn", "yunet")


def score_files(model: Model, paths: Sequence[Path], detector: str) -> NDArray[np.float64]:
    """Return the log-odds of files, NaN without a decision."""
    images = predict(model, list_input_pictures(paths), detector=detector).images
    return np.array([np.nan if image.logit is None else image.logit for image in images], np.float64)


def measure_site(model: Model, genuine: Sequence[Path], attacks: Sequence[Path]) -> list[float]:
    """Return, per detector, the shares without a decision in per cent by class, then the AUC where both decide."""
    labels = np.repeat([1, 0], [len(genuine), len(attacks)])
    scores = {detector: score_files(model, [*genuine, *attacks], detector) for detector in DETECTORS}
    decided = np.all([np.isfinite(values) for values in scores.values()], axis=0)
    shares = [100 * np.isnan(values[labels == label]).mean() for values in scores.values() for label in (1, 0)]
    areas = [auc(values[decided], labels[decided]) for values in scores.values()]
    return [float(value) for value in (*shares, *areas)]


def table(directory: Path) -> Iterator[str]:
    """Yield a row per site, and the mean over sites."""
    model, rows = open_export(locate_detector("minifasnet")), list[list[float]]()
    yield "| site | " + " | ".join(f"{name}: genuine, attacks without decision" for name in DETECTORS) + " | AUC |"
    yield "|---|---:|---:|---:|"
    for site, files in unique_files(directory).items():
        chosen = {
            label: [paths[place] for place in sorted(equidistant(len(paths), MOST))] for label, paths in files.items()
        }
        rows.append(measure_site(model, chosen[1], chosen[0]))
        yield row(site, rows[-1])
    yield row("mean", np.mean(rows, axis=0).tolist())


def row(name: str, values: Sequence[float]) -> str:
    """Return a row of the table."""
    first, second, areas = values[:2], values[2:4], values[4:]
    shares = " | ".join(", ".join(f"{share:.0f} %" for share in pair) for pair in (first, second))
    return f"| {name} | {shares} | {', '.join(f'{area:.3f}' for area in areas)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    for line in table(parser.parse_args().directory):
        print(line, flush=True)
