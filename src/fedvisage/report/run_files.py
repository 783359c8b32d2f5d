"""What a report is drawn from: the files of a finished run directory, read and nothing else."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError
from fedvisage.federation.record.ledger import read_lines
from fedvisage.files import read_tensors
from fedvisage.metrics.scores import Scores, read_scores
from fedvisage.metrics.threshold import BINS
from fedvisage.recipe import plain_yaml

Row = dict[str, Any]
AUDIT = Path("audit") / "audit.json"
"""Where a run directory has what audits of it found."""


@dataclass(frozen=True, eq=False)
class Features:
    """Features of some images, with the site and the label of each."""

    values: NDArray[np.float32]
    label: NDArray[np.int64]
    site: NDArray[np.str_]
    model: str = ""  # whose features, where a run has one model per site


@dataclass(frozen=True, eq=False)
class RunFiles:
    """A run directory in memory; what a run may lack is empty or None."""

    path: Path
    metrics: Row
    recipe: Row
    environment: Row
    rounds: list[Row]
    ledger: list[Row]
    scores: Scores | None
    features: Features | None
    similarities: dict[str, NDArray[np.int64]]
    """Recognition: counts of impostor (row 0) and genuine pairs by similarity, of all pairs and by group."""
    audits: tuple[Row, ...] = ()

    @property
    def user_scores(self) -> Scores | None:
        """Return the user's scores; all of them if none is marked as the user's."""
        if self.scores is None:
            return None
        mine = self.scores.site == str(self.metrics.get("user"))
        return self.scores.where(mine) if mine.any() else self.scores


def read_run(path: Path) -> RunFiles:
    """Read a finished run; without `metrics.json` there is nothing to report yet."""
    if not path.is_dir():
        raise UserError(str(path), "is not a directory; give the directory of a run")
    if not (path / "metrics.json").exists():
        raise UserError(str(path), "has no metrics.json: the run is not finished; continue it with --resume")
    metrics = read_mapping(path / "metrics.json")
    of_attacks = metrics.get("task") != "recognition" and (path / "scores.csv").exists()
    return RunFiles(
        path=path,
        metrics=metrics,
        recipe=read_mapping(path / "recipe.yaml"),
        environment=read_mapping(path / "environment.json"),
        rounds=_lines(path / "rounds.jsonl"),
        ledger=_lines(path / "ledger.jsonl"),
        scores=read_scores(path / "scores.csv") if of_attacks else None,
        features=read_features(path / "features.safetensors"),
        similarities=read_similarities(path / "similarities.safetensors"),
        audits=_audits(path / AUDIT),
    )


def read_mapping(path: Path) -> Row:
    """Read a JSON or YAML mapping; an absent file is an empty one."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text("utf-8")) if path.suffix == ".json" else plain_yaml.read_file(path)
    except ValueError as error:
        raise UserError(str(path), f"cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(value, dict):
        raise UserError(str(path), f"must hold a mapping, not a {type(value).__name__}")
    return value


def _audits(path: Path) -> tuple[Row, ...]:
    audits = read_mapping(path).get("audits") or []
    if not isinstance(audits, list) or not all(isinstance(record, dict) for record in audits):
        raise UserError(str(path), "must have a list of audits; remove it, or audit the run again")
    return tuple(audits)


def read_features(path: Path) -> Features | None:
    """Read tensors `features`, `label`, `site`; the file's text is JSON with the names of the sites."""
    if not path.exists():
        return None
    tensors, text = read_tensors(path)
    try:
        meta = json.loads(text)
        names = np.asarray(meta["sites"], dtype=np.str_)
        values, label, site = (tensors[name].numpy() for name in ("features", "label", "site"))
        return Features(values.astype(np.float32), label.astype(np.int64), names[site], str(meta.get("model", "")))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(str(path), f"does not hold features, label and site ({error})") from None


def read_similarities(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read the counts of pairs by similarity, those of all pairs first."""
    if not path.exists():
        return {}
    histograms = {name: tensor.numpy().astype(np.int64) for name, tensor in sorted(read_tensors(path)[0].items())}
    if any(counts.shape != (2, BINS) for counts in histograms.values()):
        raise UserError(str(path), f"does not hold two rows of {BINS} counts")
    return {name: histograms[name] for name in sorted(histograms, key=lambda name: (name != "all", name))}


def _lines(path: Path) -> list[Row]:
    try:
        return read_lines(path)
    except ValueError as error:
        raise UserError(str(path), f"has a line that is not JSON ({error})") from None
