"""What was decided at the operating point: the truth in rows, decisions in columns, counts with their rates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.scores import Scores, by_video
from fedvisage.metrics.threshold import BINS
from fedvisage.report.run_files import Row, RunFiles
from fedvisage.report.tables import Table, table

ALL_PAIRS = "all"


def confusion_table(run: RunFiles) -> Table | None:
    """Return the decisions on faces or on pairs, whichever the run was about."""
    return _on_pairs(run) if run.metrics.get("task") == "recognition" else _on_faces(run)


def _on_faces(run: RunFiles) -> Table | None:
    """Count bona fide and each species of attacks, taken as live or as attacks."""
    scores, metrics = run.user_scores, run.metrics
    if scores is None or not len(scores):
        return None
    level = str(metrics.get("level", "frame"))
    scores = by_video(scores) if level == "video" else scores
    members = metrics.get("members") or {}
    names = np.unique(scores.model).tolist()
    found = {name: (members.get(name) or metrics).get("threshold") for name in names}
    limits = {name: float(limit) for name, limit in found.items() if limit is not None}
    if len(limits) < len(names):
        return None
    live = scores.live >= np.array([limits[name] for name in scores.model.tolist()])
    rows = [_faces(name, scores, live, here) for name, here in _kinds(scores)]
    columns = {"what": f"{level}s of", "live": "taken as live", "attack": "taken as attack", "count": "together"}
    own = " Decisions of all members together, each at its own threshold." if len(limits) > 1 else ""
    note = f"Bona fide taken as attacks are BPCER, attacks taken as live APCER.{own}"
    return table("Decisions at the threshold", rows, columns, note=note)


def _kinds(scores: Scores) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return what rows there are: bona fide, each species, and all attacks where there are several."""
    attack = scores.label == 0
    species = np.unique(scores.species[attack]).tolist()
    kinds = [("bona fide", ~attack), *((name or "attack", attack & (scores.species == name)) for name in species)]
    return [one for one in [*kinds, *([("all attacks", attack)] if len(species) > 1 else [])] if one[1].any()]


def _faces(name: str, scores: Scores, live: NDArray[np.bool_], here: NDArray[np.bool_]) -> Row:
    taken, count = int((live & here).sum()), int(here.sum())
    return {"what": name, "live": _share(taken, count), "attack": _share(count - taken, count), "count": count}


def _on_pairs(run: RunFiles) -> Table | None:
    """Count pairs of one person and of two, called one person or two."""
    counts, threshold = run.similarities.get(ALL_PAIRS), run.metrics.get("threshold")
    if counts is None or threshold is None:
        return None
    edge = round((float(threshold) + 1) * BINS / 2)
    rows = [_pairs("one person", counts[1], edge), _pairs("two people", counts[0], edge)]
    columns = {"what": "pairs of", "one": "called one person", "two": "called two", "count": "together"}
    note = "Of the benchmark. Two people called one are false matches, one called two false non-matches."
    return table("Decisions at the threshold", [row for row in rows if row["count"]], columns, note=note)


def _pairs(name: str, counts: NDArray[np.int64], edge: int) -> Row:
    one, count = int(counts[edge:].sum()), int(counts.sum())
    return {"what": name, "one": _share(one, count), "two": _share(count - one, count), "count": count}


def _share(some: int, count: int) -> str:
    return f"{some:,} ({100 * some / count:.2f} %)".replace(",", "\u202f") if count else "0"
