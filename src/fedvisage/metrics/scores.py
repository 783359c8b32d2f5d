"""Scores of a model on a set of images, and the `scores.csv` from which every figure can be recomputed.

A score is a *logit*: the log-odds that the face is live (bona fide, label 1) rather than an attack (label 0). Higher
means more live. The probabilities in the file are for human readers; they saturate, so the reader ignores them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_text, write_atomically


def spread_of(accuracies: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and standard deviation of groups' accuracies, and the ratio of highest to lowest error (RFW).

    The deviation is the sample standard deviation (divided by the number of groups minus one). The ratio is None if a
    group has no errors.
    """
    errors = [1 - accuracy for accuracy in accuracies]
    return {
        "mean": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)),
        "skewed_error_ratio": max(errors) / min(errors) if min(errors) > 0 else None,
    }


FloatArray = NDArray[np.float64]
TextArray = NDArray[np.str_]

TEXTS = ("item", "video", "subject", "species", "site", "model")
COLUMNS = ("item", "video", "subject", "species", "site", "model", "label", "logit", "probability")

LARGEST = 1 << 33
"""Size limit of a score table in bytes; a line has about a hundred."""

AGAIN = "restore it, or run again"


@dataclass(frozen=True, eq=False)
class Scores:
    """Parallel arrays with one entry per scored frame, or per video after `by_video`."""

    live: FloatArray  # logits
    label: NDArray[np.int64]  # 1: bona fide, 0: attack
    item: TextArray
    video: TextArray
    subject: TextArray
    species: TextArray  # the kind of attack; "" for bona fide
    site: TextArray  # the set of the item: the target, or the held-out part of a site
    model: TextArray  # the model that produced the score; "" if a run has one model

    def __post_init__(self) -> None:
        """Reject inputs that would silently make every figure wrong."""
        lengths = {field.name: np.shape(getattr(self, field.name)) for field in fields(self)}
        if set(lengths.values()) != {(len(self.live),)}:
            raise ValueError(f"score columns must be vectors of one length, got {lengths}")
        if not np.isfinite(self.live).all():
            index = int(np.flatnonzero(~np.isfinite(self.live))[0])
            raise ValueError(f"the logit of {str(self.item[index])!r} is not finite: {self.live[index]}")
        if not np.isin(self.label, (0, 1)).all():
            raise ValueError("labels must be 1 (bona fide) or 0 (attack)")

    def __len__(self) -> int:
        """Return the number of scores."""
        return len(self.live)

    @property
    def bona_fide(self) -> FloatArray:
        """Logits of the bona fide items."""
        return np.asarray(self.live[self.label == 1])

    @property
    def attack(self) -> FloatArray:
        """Logits of the attacks of all species."""
        return np.asarray(self.live[self.label == 0])

    @property
    def probability(self) -> FloatArray:
        """Probability of being live."""
        return np.asarray(np.exp(-np.logaddexp(0.0, -self.live)))

    def where(self, mask: NDArray[np.bool_]) -> Scores:
        """Return the entries where `mask` is true."""
        return self.take(np.flatnonzero(mask))

    def take(self, index: NDArray[np.int64]) -> Scores:
        """Return the entries at `index`, in that order."""
        return Scores(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def from_columns(
    live: Sequence[float] | FloatArray,
    label: Sequence[int] | NDArray[np.int64],
    *,
    item: Sequence[str],
    video: Sequence[str],
    subject: Sequence[str],
    species: Sequence[str],
    site: Sequence[str] | str = "",
    model: Sequence[str] | str = "",
) -> Scores:
    """Build scores from plain sequences; `site` and `model` may be a single name for all entries."""
    count = len(live)
    return Scores(
        live=np.asarray(live, dtype=np.float64),
        label=np.asarray(label, dtype=np.int64),
        item=_texts(item),
        video=_texts(video),
        subject=_texts(subject),
        species=_texts(species),
        site=_texts([site] * count if isinstance(site, str) else site),
        model=_texts([model] * count if isinstance(model, str) else model),
    )


def concatenate(parts: Sequence[Scores]) -> Scores:
    """Concatenate sets of scores in the given order."""
    if not parts:
        return from_columns([], [], item=[], video=[], subject=[], species=[])
    names = [field.name for field in fields(Scores)]
    return Scores(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def by_video(scores: Scores) -> Scores:
    """Score each video by the mean of its frames' probabilities, converted back to a logit.

    The mean is computed in the log domain, log Σσ(x) − log Σσ(−x), so saturated frames need no clipping. Video names
    are unique within a set and model; an item without a video is its own video.
    """
    if len(scores) == 0:
        return scores
    name = np.where(scores.video == "", scores.item, scores.video)
    order = np.lexsort((name, scores.site, scores.model))
    # Sort the frames so that each video is one run, then reduce the runs.
    ordered, key = scores.take(order), np.stack([scores.model[order], scores.site[order], name[order]])
    starts = np.flatnonzero(np.concatenate([[True], (key[:, 1:] != key[:, :-1]).any(axis=0)]))
    lowest = np.minimum.reduceat(ordered.label, starts)
    highest = np.maximum.reduceat(ordered.label, starts)
    if (lowest != highest).any():
        mixed = str(key[2, starts[np.flatnonzero(lowest != highest)[0]]])
        raise ValueError(f"video {mixed!r} has bona fide and attack frames")
    log_live = np.logaddexp.reduceat(-np.logaddexp(0.0, -ordered.live), starts)
    log_attack = np.logaddexp.reduceat(-np.logaddexp(0.0, ordered.live), starts)
    first = ordered.take(starts)
    return Scores(
        live=log_live - log_attack,
        label=first.label,
        item=key[2, starts],
        video=key[2, starts],
        subject=first.subject,
        species=first.species,
        site=first.site,
        model=first.model,
    )


def write_scores(path: Path, scores: Scores) -> None:
    """Write `scores.csv` with logits that read back bit for bit."""
    texts = [getattr(scores, name).tolist() for name in TEXTS]
    numbers = zip(scores.label.tolist(), scores.live.tolist(), scores.probability.tolist(), strict=True)
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for names, (label, live, probability) in zip(zip(*texts, strict=True), numbers, strict=True):
        writer.writerow([*names, label, repr(live), f"{probability:.6f}"])
    write_atomically(path, table.getvalue().encode())


def read_scores(path: Path) -> Scores:
    """Read `scores.csv`; errors name the line of a missing column or invalid value."""
    names, rows = read_complete_rows(path)
    missing = {"label", "logit", *TEXTS} - {"model"} - set(names)
    if missing:
        raise UserError(str(path), f"has no column {', '.join(sorted(missing))}")
    try:
        live = [float(row["logit"]) for row in rows]
        label = [int(row["label"]) for row in rows]
        texts = {name: [row.get(name) or "" for row in rows] for name in TEXTS}
        return from_columns(live, label, **texts)
    except (TypeError, ValueError) as error:
        raise UserError(str(path), f"is not a table of scores: {error}") from None


def read_complete_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read the names and rows of a table.

    A truncated last line is an error, because half of a number is a different number.
    """
    text = read_text(path, LARGEST)
    try:
        table = csv.reader(io.StringIO(text, newline=""), strict=True)
        names = next(table, [])
        rows = [dict(zip(names, row, strict=True)) for row in table]
    except (csv.Error, ValueError) as error:
        raise UserError(str(path), f"is not a complete table of scores ({error}); {AGAIN}") from None
    if not text.endswith("\n"):
        raise UserError(str(path), f"was cut off in its last line; {AGAIN}")
    return names, rows


def _texts(values: Sequence[str]) -> TextArray:
    return np.asarray(values, dtype=np.str_)
