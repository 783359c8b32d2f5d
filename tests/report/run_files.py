"""Run directories with invented but plausible files, for tests of reports."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from fedvisage.base.files import write_tensors
from fedvisage.metrics import pad
from fedvisage.metrics.intervals import intervals
from fedvisage.metrics.recorded import FORMAT, Metrics
from fedvisage.metrics.scores import Scores, by_video, concatenate, from_columns, write_scores

SPECIES = {"print": -1.6, "cut": -0.7, "replay": -2.2}
THRESHOLD = 0.18


def target_scores(rng: np.random.Generator, target: str, model: str = "") -> Scores:
    """Return scores of 20 subjects: two videos of each kind a subject, four frames a video."""
    rows = []
    for subject in range(20):
        mood = rng.normal(0, 0.8)
        for species, mean in {"": 1.9, **SPECIES}.items():
            for video in range(2):
                tone = rng.normal(0, 0.7)
                for frame in range(4):
                    name = f"{subject:02d}-{species or 'real'}-{video}"
                    rows.append((mean + mood + tone + rng.normal(0, 0.5), species, name, f"{name}/{frame}", subject))
    return from_columns(
        [row[0] for row in rows],
        [int(row[1] == "") for row in rows],
        item=[row[3] for row in rows],
        video=[row[2] for row in rows],
        subject=[f"s{row[4]}" for row in rows],
        species=[row[1] for row in rows],
        site=target,
        model=model,
    )


def make_run(
    path: Path,
    *,
    method: str = "fedpad",
    sites: Sequence[str] = ("C", "I", "O"),
    target: str = "M",
    members: bool = False,
    rounds: int = 12,
    title: str = "",
    resamples: int = 60,
) -> Path:
    """Write the files of a finished run."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(0)
    if members:
        parts = [target_scores(rng, target, site) for site in sites]
        figures: dict[str, Any] = figures_of(parts[0], rng, resamples)
        figures["members"] = {site: figures_of(part, rng, resamples) for site, part in zip(sites, parts, strict=True)}
        write_scores(path / "scores.csv", concatenate(parts))
    else:
        scores = target_scores(rng, target)
        figures = figures_of(scores, rng, resamples)
        write_scores(path / "scores.csv", scores)
    heldout = {site: {"auc": 0.97 + 0.01 * i, "eer": 0.06 - 0.01 * i} for i, site in enumerate(sites[:4])}
    metrics = {"method": method, "task": "pad", "sites": list(sites), "target": target, "seed": 0, "rounds": rounds}
    metrics |= figures | {"sites_heldout": heldout, "bytes_up": 1_609_000_000, "bytes_down": 1_609_000_000}
    write_metrics(path, Metrics.of(metrics | {"seconds": 187.4, "peak_rss_mb": 2210.0}))
    write_history(path, sites, rounds, rng)
    recipe = {
        "title": title,
        "method": {"name": method, "weight": "uniform"},
        "data": {"sites": {site: f"synth:{site}" for site in sites}, "target": f"synth:{target}"},
        "training": {"rounds": rounds, "local": {"epochs": 3}},
        "runtime": {"seed": 0, "precision": "auto"},
    }
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    environment = {"python": "3.11.7", "cpu": {"model": "a CPU", "threads": 2}, "torch": "2.13.0"}
    (path / "environment.json").write_text(json.dumps(environment))
    write_features(path, (*sites[:5], target), rng)
    return path


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write flat metrics of a run without a seal."""
    (path / "metrics.json").write_text(json.dumps({"format": FORMAT, **metrics}))


def figures_of(scores: Scores, rng: np.random.Generator, resamples: int) -> dict[str, Any]:
    """Return the part of metrics.json that the scores decide."""
    levels = {"frame": scores, "video": by_video(scores)}
    return {
        "threshold_rule": "source-eer",
        "threshold": THRESHOLD,
        "threshold_source": {"far": 0.031, "frr": 0.034},
        "level": "frame",
        **pad.evaluate(scores, THRESHOLD),
        "video": pad.evaluate(levels["video"], THRESHOLD),
        "intervals": {
            name: intervals(level, THRESHOLD, resamples, rng).as_json() for name, level in levels.items() if resamples
        },
    }


def write_history(path: Path, sites: Sequence[str], rounds: int, rng: np.random.Generator) -> None:
    """Write rounds.jsonl and ledger.jsonl; the first site misses round 3."""
    with (path / "rounds.jsonl").open("w") as history, (path / "ledger.jsonl").open("w") as ledger:
        for number in range(1, rounds + 1):
            present = [site for index, site in enumerate(sites) if (number, index) != (3, 0)]
            row = {
                "round": number,
                "seconds": 15.6,
                "loss": {site: 0.62 * 0.8**number + 0.04 + abs(rng.normal(0, 0.015)) for site in present},
                "replied": present,
                "failed": {site: "offline" for site in sites if site not in present},
                "heldout": {"auc": 0.99 - 0.3 * 0.75**number, "eer": 0.03 + 0.3 * 0.75**number},
                "bytes_up": 44_700_000 * len(present),
                "bytes_down": 44_700_000 * len(sites),
            }
            history.write(json.dumps(row) + "\n")
            for site in present:
                for direction, field, kind, size in (
                    ("down", "encoder", "weights", 44_690_000),
                    ("up", "encoder", "weights", 44_690_000),
                    ("up", "loss", "statistic", 4),
                ):
                    entry = {"round": number, "site": site, "direction": direction, "call": "train", "field": field}
                    entry |= {"kind": kind, "bytes": size, "digest": "00", "guarantee": ""}
                    ledger.write(json.dumps(entry) + "\n")
        for site in sites:
            entry = {"round": rounds, "site": site, "direction": "up", "call": "heldout", "field": "histogram"}
            entry |= {"kind": "statistic", "bytes": 65536, "digest": "00", "guarantee": "counts of held-out scores"}
            ledger.write(json.dumps(entry) + "\n")


def write_features(path: Path, sites: Sequence[str], rng: np.random.Generator, each: int = 30) -> None:
    """Write features in which site and label can be seen."""
    centres = rng.normal(0, 1.2, (len(sites), 16))
    site = np.repeat(np.arange(len(sites)), each)
    label = np.arange(len(site)) % 2
    values = centres[site] + label[:, None] * np.linspace(-2, 2, 16) + rng.normal(0, 0.7, (len(site), 16))
    tensors = {"features": torch.from_numpy(values.astype(np.float32)), "label": torch.from_numpy(label)}
    meta = json.dumps({"sites": list(sites)})
    write_tensors(path / "features.safetensors", tensors | {"site": torch.from_numpy(site)}, meta)
