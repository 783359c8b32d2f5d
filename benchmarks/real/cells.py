"""Train and evaluate the cells of the plan, and keep a small record of each: figures, digests, seconds and commit."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedvisage as fv
from benchmarks.real.protocol import ALONE, CUES, RECIPE, Cell, Plan, Setting
from benchmarks.real.scores import score
from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest, read_json, write_json
from fedvisage.base.streams import numpy_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.datasets.show import measure_cues
from fedvisage.metrics.pad import curve_auc, curve_eer, error_curve
from fedvisage.tasks.scoring import mean_score

FUSED = "fused"
"""The name of the averaged score in the records of separately trained models; no site has it."""

SOURCE = "source"
"""The name of the model before its adaptation."""

Figures = dict[str, float]
Record = dict[str, Any]
"""Of one cell: ``models`` with AUC, EER and the AUC at home by model, digests, seconds and commit."""


class Records:
    """The records of a folder: one JSON file per training and setting, one entry per target and seed."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Read the files; refuse records of another plan, of no cell of the plan, and of different pictures."""
        self.folder, self.plan = folder, plan
        self.cells: dict[str, dict[str, Record]] = {
            path.name: read_json(path, "restore it or delete it") for path in sorted(folder.glob("*.json"))
        }
        known = plan.digests  # computing them takes long
        others = [f"{name}: {key}" for name, key, record in self._all() if record["plan"] not in known]
        if others:
            raise UserError(
                str(folder),
                f"has {len(others)} records of another plan ({others[0]}); the protocol changed after these runs: "
                "restore it, or give --records a new folder",
            )
        cells = {(cell.file, cell.key) for cell in plan.cells()}
        if strange := [f"{name}: {key}" for name, key, _ in self._all() if (name, key) not in cells]:
            raise UserError(str(folder), f"has {len(strange)} records that the plan has no cell for ({strange[0]})")
        digests = {digest for _, _, record in self._all() for digest in record["data"].items()}
        if len({kind for kind, _ in digests}) < len(digests):
            raise UserError(str(folder), "has records of different pictures of the same sites; run them again")

    def _all(self) -> Iterator[tuple[str, str, Record]]:
        for name, records in self.cells.items():
            for key, record in records.items():
                yield name, key, record

    def get(self, cell: Cell) -> Record | None:
        """Return the record of a cell, None if it has not ended."""
        return self.cells.get(cell.file, {}).get(cell.key)

    def add(self, cell: Cell, record: Record) -> None:
        """Write the record of a cell; entries of other processes in its file are kept."""
        path = self.folder / cell.file
        self.folder.mkdir(parents=True, exist_ok=True)
        known = read_json(path) if path.exists() else {}
        self.cells[cell.file] = dict(sorted((known | {cell.key: record}).items()))
        write_json(path, self.cells[cell.file])

    @property
    def commits(self) -> list[str]:
        """The commits of all records."""
        return sorted({str(record["commit"]) for _, _, record in self._all()})

    @property
    def seconds(self) -> float:
        """Processor seconds of all records."""
        return sum(float(record["seconds"]) for _, _, record in self._all())


def run_missing(plan: Plan, records: Records, sets: Path, work: Path, trainings: Sequence[str] = ()) -> Iterator[str]:
    """Run each cell without a record, or those of some trainings alone, and yield a line for each."""
    missing = [
        cell for cell in plan.cells() if records.get(cell) is None and (not trainings or cell.training in trainings)
    ]
    commit, data = current_commit(), data_digests(plan, sets)
    for known in (record for _, _, record in records._all()):
        if any(data[kind] != digest for kind, digest in known["data"].items()):
            raise UserError(str(sets), "has other pictures than the recorded runs; use the sets of the first run")
    for number, cell in enumerate(missing, 1):
        kind = plan.trainings[cell.training].sets
        # Runs of other pictures stay in another folder, so that no earlier run is taken for one of these.
        record = measure(plan, cell, sets, work / data[kind])
        records.add(cell, record | {"data": {kind: data[kind]}, "commit": commit})
        yield f"{number} of {len(missing)}: {cell.file} {cell.key}, {records.cells[cell.file][cell.key]['seconds']:g} s"


def measure(plan: Plan, cell: Cell, sets: Path, work: Path) -> Record:
    """Run a cell, and return its record without the names of data and commit."""
    start = processor_seconds()
    models, scores = run_cell(plan, cell, sets, work)
    return {
        "plan": plan.digest[:16],
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "seconds": round(processor_seconds() - start, 1),
        "scores": scores[:16],
        "models": models,
    }


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    return sum(os.times()[:4])


def current_commit() -> str:
    """Return the commit of this checkout, marked if code or recipes differ from it; records may."""
    code = ("src", "recipes", "benchmarks", ":!benchmarks/real/records", ":!benchmarks/records")
    head, changed = (
        subprocess.run(["git", *command], cwd=RECIPE.parents[2], capture_output=True, text=True, check=False).stdout
        for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno", "--", *code])
    )
    return (head.strip() or "unknown") + ("-dirty" if changed else "")


def data_digests(plan: Plan, sets: Path) -> dict[str, str]:
    """Return, per kind of sets, a digest of the pictures of the plan's sites."""
    digests = {}
    for kind in sorted({training.sets for training in plan.trainings.values()}):
        contents = "".join(PreparedSet.open(sets / kind / site).digest for site in plan.sites)
        digests[kind] = hashlib.sha256(contents.encode()).hexdigest()[:16]
    return digests


def run_cell(plan: Plan, cell: Cell, sets: Path, work: Path) -> tuple[dict[str, Figures], str]:
    """Return the figures of a cell's models on its target, and the digest of their scores."""
    training, sites = plan.trainings[cell.training], plan.training_sites(cell)
    paths = {site: sets / training.sets / site for site in (*plan.sites, cell.target)}
    if training.method == CUES:
        return run_cues([paths[site] for site in sites], paths[cell.target])
    if training.method == ALONE:
        return run_alone(plan, cell, paths, work)
    if training.permuted:
        paths |= {site: permute_labels(paths[site], work / f"permuted-{cell.seed}", cell.seed) for site in sites}
    folder = f"{training.trained_by or cell.training}-{cell.setting}"
    out = work / "runs" / folder / f"{cell.target}-{cell.seed}"
    run = train(plan, cell, {site: paths[site] for site in sites}, paths[cell.target], out)
    home = {"home": home_of(run)}
    if training.adapt:
        with TemporaryDirectory() as scratch:
            adapted = fv.evaluate(run, adapt=training.adapt, out=Path(scratch) / "adapted")
            digest = file_digest(Path(scratch) / "adapted" / "scores.csv")
        models = {"": adapted, SOURCE: run.metrics}
        names = ("auc", "eer", "hter")
        return {
            model: rounded({name: float(metrics[name]) for name in names} | home) for model, metrics in models.items()
        }, digest
    figures = {"auc": float(run.metrics["auc"]), "eer": float(run.metrics["eer"])}
    return {"": rounded(figures | home)}, file_digest(out / "scores.csv")


def train(plan: Plan, cell: Cell, sites: Mapping[str, Path], target: Path, out: Path) -> fv.Run:
    """Train at sites with the settings of a cell, or return the run of an earlier call."""
    training = plan.trainings[cell.training]
    changes = {"method.name": training.method, **plan.changes, **training.settings[cell.setting]}
    return train_at(sites, target, cell.seed, changes, out)


def train_at(sites: Mapping[str, Path], target: Path, seed: int, changes: Setting, out: Path) -> fv.Run:
    """Train the recipe with changes at sites, or return the run of an earlier call."""
    changes = {
        "data.sites": {site: str(path) for site, path in sites.items()},
        "data.target": str(target),
        "data.target_name": "target",
        "runtime.seed": seed,
        "runtime.precision": "fp32",  # "auto" depends on the processor
        "runtime.threads": 1,
        "evaluation.features": 0,
        "evaluation.resamples": 0,
        **changes,
    }
    # Each picture counts as its own subject, because the people are unknown: films may overlap between splits.
    return fv.run(RECIPE, out=out, changes=changes, resume=True, quiet=True, allow_overlap=True)


def run_alone(plan: Plan, cell: Cell, paths: Mapping[str, Path], work: Path) -> tuple[dict[str, Figures], str]:
    """Return the figures of the sites' own models and of their mean score.

    A site's own model depends on no other site, so all targets and all trainings with these sets share it.
    """
    training = plan.trainings[cell.training]
    target = PreparedSet.open(paths[cell.target])
    labels, scores, figures = target.rows.label.astype(np.int64), [], dict[str, Figures]()
    for site in plan.training_sites(cell):
        out = work / "runs" / f"alone-{training.sets}-{cell.setting}" / f"{site}-{cell.seed}"
        elsewhere = next(other for other in plan.sites if other != site)
        run = train(plan, cell, {site: paths[site]}, paths[elsewhere], out)
        scores.append(score(run.model, View.of(target)))
        figures[site] = {**error_figures(scores[-1], labels), "home": home_of(run)}
    at_home = float(np.mean([values["home"] for values in figures.values()]))
    figures[FUSED] = {**error_figures(mean_score(scores), labels), "home": at_home}
    digest = hashlib.sha256(np.stack(scores).astype(np.float32).tobytes()).hexdigest()
    return {site: rounded(values) for site, values in figures.items()}, digest


def home_of(run: fv.Run) -> float:
    """Return the mean over sites of the AUC on their own held-out pictures."""
    return float(np.mean([float(part["auc"]) for part in run.metrics.parts("sites_heldout").values()]))


def rounded(figures: Figures) -> Figures:
    """Return figures with the six decimals that records keep."""
    return {name: round(value, 6) for name, value in figures.items()}


def error_figures(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> Figures:
    """Return AUC and EER."""
    curve = error_curve(scores, labels)
    return {"auc": float(curve_auc(curve.far, curve.frr)), "eer": float(curve_eer(curve.far, curve.frr))}


def run_cues(sites: list[Path], target: Path) -> tuple[dict[str, Figures], str]:
    """Fit a logistic regression on the cues of the sites' training pictures, and score the target by it."""
    parts = [(prepared := PreparedSet.open(path), prepared.select("train")) for path in sites]
    cues = np.concatenate([measure_cues(prepared, indices) for prepared, indices in parts])
    labels = np.concatenate([prepared.rows.label[indices] for prepared, indices in parts])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    model.fit(cues, labels)
    home, away = [], PreparedSet.open(target)
    for prepared, _ in parts:
        indices = prepared.select("heldout")
        scores = model.decision_function(measure_cues(prepared, indices))
        home.append(error_figures(scores, prepared.rows.label[indices].astype(np.int64))["auc"])
    scores = model.decision_function(measure_cues(away, away.select(None)))
    figures = error_figures(scores, away.rows.label.astype(np.int64)) | {"home": float(np.mean(home))}
    digest = hashlib.sha256(scores.astype(np.float32).tobytes()).hexdigest()
    return {"": rounded(figures)}, digest


def permute_labels(path: Path, out: Path, seed: int) -> Path:
    """Write a set whose labels are permuted within each split, once per seed."""
    prepared = PreparedSet.open(path)
    written = out / path.name
    if written.exists():
        return written
    out.mkdir(parents=True, exist_ok=True)
    rows, label = prepared.rows, prepared.rows.label.copy()
    for split in np.unique(rows.split):
        indices = np.flatnonzero(rows.split == split)
        label[indices] = numpy_rng(seed, "permuted labels", path.name, str(split)).permutation(label[indices])
    with Writer(written, name=path.name, size=prepared.size, source="permuted labels", crop=prepared.crop) as writer:
        writer.add(
            np.asarray(prepared.images),
            label=label,
            species=np.where(label == 1, "bonafide", "attack"),
            subject=rows.subject,
            video=rows.item,  # a video has one class
            frame=rows.frame,
            split=rows.split,
            item=rows.item,
        )
    return written


def resolution_notices(plan: Plan, sets: Mapping[str, PreparedSet]) -> Iterator[str]:
    """Yield a line for each site whose classes differ in the size of their faces by more than a quarter."""
    for site in plan.sites:
        rows = sets[site].rows
        if "side" not in rows.further:
            continue
        sides = rows.further["side"].astype(float)
        genuine, attacks = (float(np.median(sides[rows.label == label])) for label in (1, 0))
        if max(genuine, attacks) > 1.25 * min(genuine, attacks):
            yield (
                f"{site}: genuine faces are {genuine:.0f} pixels wide, attacks {attacks:.0f}; its classes differ in "
                "resolution, so read its figures on the matched sets"
            )
