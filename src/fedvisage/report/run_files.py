"""Files of a finished run directory: read-only input of reports, comparisons and worst images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.files import parse_json, read_arrays, read_json
from fedvisage.data.overlap import OVERLAP
from fedvisage.federation.record.ledger import LEDGER, REPEATED, ROUNDS, stream_lines
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.scores import Scores, read_scores
from fedvisage.metrics.threshold import BINS
from fedvisage.recipe import plain_yaml
from fedvisage.recipe.recipe import rename_in_recipe, rename_places
from fedvisage.tasks.heldout_counts import read_counts
from fedvisage.tasks.seal import SEAL, chain_of, check_seal

Row = dict[str, Any]
AUDIT = Path("audit") / "audit.json"
"""Path of the audit results in a run directory."""
WHOLE = "all"
"""The name of the counts of all pairs."""
UNSEALED = (
    f"This run has no {SEAL}: an earlier version of fedvisage wrote it, so nothing proves that its files "
    "belong together."
)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of some images, with the site and the label of each."""

    values: NDArray[np.float32]
    label: NDArray[np.int64]
    site: NDArray[np.str_]
    model: str = ""  # the site whose model computed them, if the run has one model per site


@dataclass
class Uploads:
    """The uploads of a run, summed over its ledger, which can be larger than memory."""

    fields: dict[tuple[str, str, str, str], list[int]] = field(default_factory=dict)
    """By field, kind, guarantee and site: number of messages, largest size and all bytes."""
    repeated: list[int] = field(default_factory=list)
    """The sizes of messages that left a site again after an interruption."""
    releases: list[Row] = field(default_factory=list)
    """The lines of releases under differential privacy."""

    def add(self, row: Row) -> None:
        """Add a line of the ledger."""
        if row.get("cost"):
            self.releases.append(row)
        if row["direction"] == "up":
            # Without a site's total, which differs by round, a field has one row for all its rounds.
            parts = str(row.get("guarantee", "")).split("; ")
            declared = "; ".join(part for part in parts if not (row.get("cost") and part.startswith("so far ")))
            names = (row["field"], row["kind"], declared, row["site"])
            total = self.fields.setdefault(names, [0, 0, 0])
            total[:] = total[0] + 1, max(total[1], row["bytes"]), total[2] + row["bytes"]
            if row.get(REPEATED):
                self.repeated.append(row["bytes"])


@dataclass(frozen=True, eq=False)
class RunFiles:
    """A run directory in memory; files that a run may lack are empty or None."""

    path: Path
    metrics: Metrics
    recipe: Row
    environment: Row
    rounds: list[Row]
    uploads: Uploads
    scores: Scores | None
    features: Features | None
    similarities: dict[str, NDArray[np.int64]]
    """Recognition: counts of impostor (row 0) and genuine pairs by similarity, of all pairs and by group."""
    audits: tuple[Row, ...] = ()
    heldout: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Histograms of the sites' held-out scores, by site."""
    digests: Row = field(default_factory=dict)
    """Digests of the data, by recipe key."""
    overlap: Row = field(default_factory=dict)
    """Images and people that several places of the run share."""
    lacking: tuple[str, ...] = ()
    """Sentences about missing or truncated files, for the page."""

    @property
    def target_scores(self) -> Scores | None:
        """Return the target's scores; all scores if none carries the target's name."""
        if self.scores is None:
            return None
        mine = self.scores.site == str(self.metrics.get("target"))
        return self.scores.where(mine) if mine.any() else self.scores


def check_finished(path: Path) -> None:
    """Refuse a directory without a run, or with an unfinished one."""
    if not (path / "metrics.json").exists():
        if not (path / "recipe.yaml").exists():
            raise UserError(str(path), "contains no run; give the directory of a run")
        raise UserError(str(path), "has no metrics.json: the run is not finished; continue it with --resume")


def read_run(path: Path) -> RunFiles:
    """Read a finished run; a run without `metrics.json` is not finished and is refused."""
    if not path.is_dir():
        raise UserError(str(path), "directory not found; give the directory of a run")
    check_finished(path)
    lacking = [] if check_seal(path) else [UNSEALED]  # a broken seal raises; a missing one is only reported
    metrics = read_metrics(path / "metrics.json")
    if not isinstance(metrics.get("method"), str):
        raise UserError(
            str(path / "metrics.json"),
            "does not name a method, so it does not belong to a run; restore it, or run again",
        )
    of_attacks = metrics.get("task") != "recognition" and (path / "scores.csv").exists()
    return RunFiles(
        path=path,
        metrics=metrics,
        recipe=rename_in_recipe(read_mapping(path / "recipe.yaml")),
        environment=read_mapping(path / "environment.json"),
        rounds=list(_lines(path / ROUNDS, lacking)),
        uploads=_uploads(path / LEDGER, lacking),
        scores=read_scores(path / "scores.csv") if of_attacks else None,
        features=read_features(path / "features.safetensors"),
        similarities=read_similarities(path / "similarities.safetensors"),
        audits=_audits(path),
        heldout=read_counts(path),
        digests=rename_places(read_mapping(path / "data.json")),
        overlap=rename_places(read_mapping(path / OVERLAP)),
        lacking=tuple(lacking),
    )


@contextmanager
def damaged_files_are_errors(run: Path) -> Iterator[None]:
    """Report errors while drawing as damaged run files, because users may have edited them."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(str(run), f"has files that a run did not write ({reason}); restore them") from error


def read_mapping(path: Path) -> Row:
    """Read a JSON or YAML mapping; an absent file is an empty mapping."""
    if not path.exists():
        return {}
    if path.suffix == ".json":
        return read_json(path)
    value = plain_yaml.read_file(path)
    if not isinstance(value, dict):
        raise UserError(str(path), f"must hold a mapping, not a {type(value).__name__}")
    return value


def _audits(run: Path) -> tuple[Row, ...]:
    """Read the audits of a run; each audit file names the run's seal."""
    path = run / AUDIT
    record = read_mapping(path)
    if record and record.get("seal", "") != chain_of(run):
        raise UserError(
            str(path), "belongs to another run, or to this one before it changed; remove it, and audit again"
        )
    audits = record.get("audits") or []
    if not isinstance(audits, list) or not all(isinstance(record, dict) for record in audits):
        raise UserError(str(path), "must have a list of audits; remove it, or audit the run again")
    return tuple(audits)


def read_features(path: Path) -> Features | None:
    """Read arrays `features`, `label`, `site`; the file's text is JSON with the names of the sites."""
    if not path.exists():
        return None
    arrays, text = read_arrays(path)
    try:
        meta = parse_json(text)
        names = np.asarray(meta["sites"], dtype=np.str_)
        values, label, site = (arrays[name] for name in ("features", "label", "site"))
        return Features(values.astype(np.float32), label.astype(np.int64), names[site], str(meta.get("model", "")))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(str(path), f"does not contain features, label and site ({error})") from None


def read_similarities(path: Path) -> dict[str, NDArray[np.int64]]:
    """Read the counts of pairs by similarity, those of all pairs first."""
    if not path.exists():
        return {}
    histograms = {name: counts.astype(np.int64) for name, counts in read_arrays(path)[0].items()}
    if any(counts.shape != (2, BINS) for counts in histograms.values()):
        raise UserError(str(path), f"does not contain two rows of {BINS} counts")
    return {name: histograms[name] for name in sorted(histograms, key=lambda name: (name != WHOLE, name))}


def edge_of(similarity: float) -> int:
    """Return the position of a similarity among the edges of the bins."""
    return round((similarity + 1) * BINS / 2)


def _lines(path: Path, lacking: list[str]) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines, and add missing or truncated lines to ``lacking``."""
    if not path.exists():
        lacking.append(f"{path.name} is missing: its contents are unknown.")
        return
    torn = list[bytes]()
    yield from stream_lines(path, torn)
    if torn:
        lacking.append(f"The last line of {path.name} was cut off and is left out: more lines may be missing.")


def _uploads(path: Path, lacking: list[str]) -> Uploads:
    """Add up the lines of a ledger; refuse one that is not a ledger entry."""
    uploads = Uploads()
    for number, row in enumerate(_lines(path, lacking), 1):
        # An incomplete line would hide an upload.
        bytes_sent, names = row.get("bytes"), [row.get(name) for name in ("site", "field", "kind")]
        counted = isinstance(bytes_sent, int) and not isinstance(bytes_sent, bool) and bytes_sent >= 0
        if not (counted and row.get("direction") in ("up", "down") and all(isinstance(name, str) for name in names)):
            raise UserError(str(path), f"line {number} is not a ledger entry; restore the original file")
        uploads.add(row)
    return uploads
