"""Count the people in the densest cap of each site before the first round of PrivacyFace (decision 0062).

    python -m benchmarks.densest_caps STUDY [--margins 1.04,1.3]

STUDY is a finished study with a row "Pre-trained", whose models are those that the first round lends to the sites. A
site's class centres start as the mean features of its people. A line has the counts of all sites for a seed and margin.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch.nn.functional import normalize

from benchmarks.real.people import embed
from fedvisage.base.files import cache_directory
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.federation.privacy.clustering import ClusteringSettings, densest_clusters
from fedvisage.federation.privacy.mechanisms import Budget
from fedvisage.methods.models.face import means_of
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.recognition.benchmarks import share_of


def count_members(run: Path, margins: list[float]) -> dict[float, list[int]]:
    """Return, per margin, the number of people in the densest cap of each site of a run."""
    model, counts = open_model(run), dict[float, list[int]]()
    for entry in model.recipe.data.sites.values():
        source, part = without_part(entry)
        people = share_of(View.of(PreparedSet.open(resolve(source, cache_directory(os.environ))), "train"), part)
        centres = means_of(normalize(torch.from_numpy(embed(model, people))), people)
        for margin in margins:
            (cluster,) = densest_clusters(centres, ClusteringSettings(margin, 1, 1, Budget(1.0, 1e-5)))
            counts.setdefault(margin, []).append(cluster.size)
    return counts


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.densest_caps", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--margins", default="1.04,1.3")
    options = parser.parse_args()
    margins = [float(margin) for margin in options.margins.split(",")]
    for run in sorted((options.study / "cells").glob("pre-trained-*")):
        for margin, sizes in count_members(run, margins).items():
            print(f"{run.name}, {margin:g}: {', '.join(map(str, sizes))}")


if __name__ == "__main__":
    main()
