"""Evaluation of a deployed pipeline, attack detection and recognition together, on the presentations of a dataset.

The score of a presentation is the mean probability of its frames, like the running mean of a deployed system. Frames
that the pipeline rejects do not count. Attack detection comes first, also at enrolment: only frames that pass it
contribute to a template.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fedvisage.base.errors import BadFile, RunFailed, UserError
from fedvisage.base.files import write_atomically, write_json
from fedvisage.base.progress import Say, Steps, discard, discard_steps, in_steps
from fedvisage.base.streams import numpy_rng
from fedvisage.data.rows import ENROL, PURPOSE
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.finding import recognise
from fedvisage.datasets.frame_sources import open_frames
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.tree import walk
from fedvisage.device.exported import check_free
from fedvisage.device.fused import Model, at_points, open_export
from fedvisage.device.pipeline import ATTACK, BONA_FIDE, NO_DECISION, Embedding, Pipeline
from fedvisage.faces.cropping import Image
from fedvisage.faces.pictures import equidistant
from fedvisage.faces.quality import Settings
from fedvisage.metrics.groups import compare_groups, presentation_rates, read_groups
from fedvisage.metrics.presentations import Point, Presentations, evaluate_presentations
from fedvisage.metrics.similarity import normalise
from fedvisage.report import iso30107

# Presentations of a dataset in its original layout: enrolment, bona fide probes and attacks.

OWN = "folder"
"""The layout of folders that follow no dataset's naming scheme."""


@dataclass(frozen=True)
class Presentation:
    """One presentation: its name, its subject or the subject under attack ("" if unknown), and the attack type."""

    name: str
    subject: str
    species: str
    items: tuple[Item, ...]

    def frames(self, most: int) -> Iterator[Image]:
        """Yield up to ``most`` equidistant frames; raise ``BadFile`` for an unreadable file."""
        if len(self.items) > 1:
            for number in equidistant(len(self.items), most):
                yield from (image for _, image in open_frames(self.items[number]).frames({0}))
            return
        film = open_frames(self.items[0])
        yield from (image for _, image in film.frames(frozenset(equidistant(len(film), most))))


@dataclass(frozen=True)
class TestData:
    """All presentations of a dataset, with their recording conditions.

    A presentation is a video, or the images of one folder. Where a dataset has enrolment videos, as Replay-Attack does,
    they enrol its people; otherwise the first bona fide presentation of each person does, in order of names. All other
    presentations are probes.
    """

    title: str
    enrolment: str
    enrol: Mapping[str, Sequence[Presentation]]
    probes: tuple[Presentation, ...]
    skipped: int
    conditions: Mapping[str, Mapping[str, int]]
    """The number of probes per value of each attribute in the file names, such as the device or the light."""
    copy: tuple[str, ...] = ()
    """The available part of the published data, by place: a small copy is not the dataset."""

    @property
    def count(self) -> int:
        """The number of presentations, including those for enrolment."""
        return len(self.probes) + sum(map(len, self.enrol.values()))


def presentations_in(source: Path, kind: str = "", split: str = "") -> TestData:
    """List the presentations of a dataset, or of one of its official splits."""
    if not source.is_dir():
        raise UserError(
            str(source), "is not a folder; give a dataset as it was downloaded, or one with real/ and attack/"
        )
    layout = kind or recognise(walk(source)) or OWN
    if layout not in SCANNERS:
        kinds = ", ".join(SCANNERS)
        raise UserError("--kind", f"unknown dataset of presentation attacks {layout}; choose one of {kinds}")
    scanner = SCANNERS[layout]
    listing = scanner.list(walk(source), ImportOptions(enroll=scanner.enrolment))
    items = [item for item in listing.items if split in ("", item.split)]
    if not items:
        splits = sorted({item.split for item in listing.items if item.split})
        choice = f"choose one of {', '.join(splits)}" if splits else "this data has no official splits"
        raise UserError("--split", f"no presentation belongs to split {split!r}; {choice}")
    grouped = []
    for _, group in groupby(
        sorted(items, key=lambda item: (item.video, item.frame, item.name)), key=lambda item: item.video
    ):
        frames = tuple(group)
        first = frames[0]
        subject, species = "" if first.own_subject else first.subject, "" if first.label else first.species
        grouped.append(Presentation(first.video, subject, species, frames))
    official = any(item.extra.get(PURPOSE) == ENROL for item in items)
    enrol: dict[str, list[Presentation]] = {}
    for trial in (trial for trial in grouped if trial.subject and not trial.species):
        if official and trial.items[0].extra.get(PURPOSE) == ENROL:
            enrol.setdefault(trial.subject, []).append(trial)
        elif not official:
            enrol.setdefault(trial.subject, [trial])
    enrolled = {trial.name for trials in enrol.values() for trial in trials}
    probes = tuple(trial for trial in grouped if trial.name not in enrolled)
    enrolment = "the dataset's enrolment videos" if official else "each person's first bona fide presentation by name"
    copy = tuple(_counts_by_place(scanner, items))
    return TestData(scanner.title, enrolment, enrol, probes, len(listing.skipped), _conditions(probes), copy)


def _counts_by_place(scanner: Scanner, items: Sequence[Item]) -> Iterator[str]:
    """Yield the available part of the published data, per place."""
    counts = Counter((item.place, item.label) for item in items)
    for place, (real, attacks) in scanner.counts.items():
        classes = ((counts[place, 1], real, "bona fide"), (counts[place, 0], attacks, "attacks"))
        if any(available for available, _, _ in classes):
            parts = [f"{available:,} of {count:,} {kind}" for available, count, kind in classes if count]
            yield f"{place}: {', '.join(parts)}"


def _conditions(trials: Sequence[Presentation]) -> dict[str, dict[str, int]]:
    conditions: dict[str, Counter[str]] = {}
    for trial in trials:
        for name, value in trial.items[0].extra.items():
            if value and name != PURPOSE:
                conditions.setdefault(name, Counter())[value] += 1
    return {name: dict(sorted(values.items())) for name, values in sorted(conditions.items())}


METRICS, TABLE, REPORT, PAGE = "metrics.json", "presentations.csv", "iso30107.json", "iso30107.html"
RESAMPLES = 1000
PASSED_OVER = 0.05
"""The largest share of presentations that may be unreadable."""
MISSING = "does not name an attack-detection model, which evaluating a pipeline requires"


@dataclass
class PresentationResult:
    """The pipeline's results for one presentation."""

    frames: int = 0
    logits: list[float] = field(default_factory=list)
    embeddings: list[Embedding] = field(default_factory=list)
    passed: list[Embedding] = field(default_factory=list)
    """Embeddings of the frames that attack detection classified as bona fide."""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def logit(self) -> float:
        """The logit of the mean probability; NaN without a response."""
        if not self.logits:
            return float("nan")
        values = np.array(self.logits)
        live, attack = (np.logaddexp.reduce(-np.logaddexp(0.0, -sign * values)) for sign in (1, -1))
        return float(live - attack)

    @property
    def reason(self) -> str:
        """The most frequent reason for rejected frames; empty if the pipeline gave a response."""
        return "" if self.logits or not self.reasons else self.reasons.most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class Assessment:
    """The result of an assessment: presentations, operating point, metrics and table rows."""

    presentations: Presentations
    at: Point
    values: dict[str, Any]
    rows: list[dict[str, Any]]

    def lines(self) -> list[str]:
        """Return the metrics as lines of text, for people."""
        return iso30107.lines(self.values)

    def write(self, out: Path, *, report: bool) -> None:
        """Write the metrics and one row per presentation; ``report`` writes the metrics as JSON and HTML reports."""
        out.mkdir(parents=True, exist_ok=True)
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, self.rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(out / TABLE, table.getvalue().encode())
        if not report:
            write_json(out / METRICS, self.values)
            return
        write_json(out / REPORT, self.values)
        write_atomically(out / PAGE, iso30107.page(self.values, self.presentations, self.at).encode())


def assess(
    pipeline: Pipeline,
    trials: TestData,
    *,
    frames: int = 10,
    by: str | None = None,
    resamples: int = RESAMPLES,
    steps: Steps = discard_steps,
) -> Assessment:
    """Run the pipeline on every presentation and compute the metrics of both models together.

    ``by`` is an attribute in the file names, whose groups are compared.
    """
    if pipeline.pad is None or pipeline.pad.threshold is None:
        raise UserError("--pad", MISSING)
    people = pipeline.recognition
    if people is not None and people.threshold is None:
        raise UserError(str(people.directory), "has no decision threshold; export a run whose sites chose one")
    recognition = None if people is None or people.threshold is None else people.threshold.value
    at = Point(pipeline.pad.threshold.value, recognition)
    attributes = {
        name: np.array([trial.items[0].extra.get(name, "") for trial in trials.probes], np.str_)
        for name in trials.conditions
    }
    groups = None if by is None else read_groups(by, attributes, trials.title)
    reading = _ReadingPass(pipeline, frames, steps, trials.count)
    templates, not_enrolled = _templates(reading, trials) if at.recognition is not None else ({}, Counter[str]())
    probes = [(trial, result) for trial in trials.probes if (result := reading.read(trial)) is not None]
    if reading.unreadable > PASSED_OVER * trials.count:
        raise RunFailed(
            f"{reading.unreadable} of {trials.count} presentations cannot be read, such as {reading.example}; a "
            "report on the rest would describe different data"
        )
    if not probes:
        raise UserError("--data", "has presentations for enrolment, but none to evaluate")
    presentations = _presentations(probes, templates)
    values = {
        "format": 1,
        "pipeline": _pipeline(pipeline),
        "test": _test(trials, probes, frames, reading.unreadable, templates, not_enrolled),
        **evaluate_presentations(presentations, at, resamples, numpy_rng(0, "presentations")),
    }
    if groups is not None:
        read = {trial.name for trial, _ in probes}
        groups = groups.where(np.array([trial.name in read for trial in trials.probes]))
        values["by"] = compare_groups(groups, lambda mask, rng: presentation_rates(presentations.where(mask), at, rng))
    return Assessment(presentations, at, values, list(_rows(presentations, at, probes)))


class _ReadingPass:
    """A pass over presentations that counts the unreadable ones and reports progress."""

    def __init__(self, pipeline: Pipeline, frames: int, steps: Steps, count: int) -> None:
        self._pipeline, self._frames, self._steps, self._count = pipeline, frames, steps, count
        self._done, self.unreadable, self.example = 0, 0, "nothing"

    def read(self, trial: Presentation) -> PresentationResult | None:
        """Return the results for a presentation; None if it is unreadable."""
        result = PresentationResult()
        try:
            for frame in trial.frames(self._frames):
                result.frames += 1
                checked = self._pipeline.check(frame, report=True)
                result.reasons.update(checked.reasons)
                face = checked.faces[0] if checked.faces else None
                if face is None or face.pad is None or face.pad.logit is None:
                    continue
                result.logits.append(face.pad.logit)
                if face.embedding is not None:
                    result.embeddings.append(face.embedding)
                    if face.pad.decision == BONA_FIDE:
                        result.passed.append(face.embedding)
        except BadFile as bad:
            self.unreadable += 1
            self.example = f"{trial.name} ({bad})"
            return None
        finally:
            self._done += 1
            self._steps(self._done, self._count)
        return result


def _templates(reading: _ReadingPass, trials: TestData) -> tuple[dict[str, Embedding], Counter[str]]:
    """Enrol all people; return the templates, and counts of the reasons for failed enrolments."""
    templates, refused = dict[str, Embedding](), Counter[str]()
    for subject, enrolment in sorted(trials.enrol.items()):
        results = [result for trial in enrolment if (result := reading.read(trial)) is not None]
        passed = [embedding for result in results for embedding in result.passed]
        if passed:
            templates[subject] = _mean(passed)
        elif any(result.logits for result in results):
            refused["taken for an attack"] += 1
        else:
            refused[next((result.reason for result in results if result.reason), "cannot be read")] += 1
    return templates, refused


def _mean(embeddings: Sequence[Embedding]) -> Embedding:
    mean: Embedding = normalise(np.mean(embeddings, axis=0)[None])[0]
    return mean


def _presentations(
    probes: Sequence[tuple[Presentation, PresentationResult]], templates: dict[str, Embedding]
) -> Presentations:
    enrolled = np.array(sorted(templates), np.str_)
    similarity = np.full((len(probes), len(enrolled)), np.nan)
    if templates:
        enrolled_templates = np.stack([templates[name] for name in sorted(templates)])
        for row, (_, result) in enumerate(probes):
            if result.embeddings:
                similarity[row] = enrolled_templates @ _mean(result.embeddings)
    return Presentations(
        item=np.array([trial.name for trial, _ in probes], np.str_),
        subject=np.array([trial.subject for trial, _ in probes], np.str_),
        species=np.array([trial.species for trial, _ in probes], np.str_),
        live=np.array([result.logit for _, result in probes]),
        similarity=similarity,
        enrolled=enrolled,
    )


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    def describe(exported: Model | None) -> dict[str, Any] | None:
        if exported is None or exported.threshold is None:
            return None
        return {
            "method": exported.method,
            "arithmetic": exported.arithmetic,
            "size": exported.size,
            "model_sha256": exported.digest,
            "graph_sha256": exported.graph_digest,
            "threshold": exported.threshold.value,
            "operating_point": exported.threshold.operating_point,
        }

    return {
        "pad": describe(pipeline.pad),
        "recognition": describe(pipeline.recognition),
        "detector_sha256": pipeline.detector_digest,
    }


def _test(
    trials: TestData,
    probes: Sequence[tuple[Presentation, PresentationResult]],
    frames: int,
    unreadable: int,
    templates: dict[str, Embedding],
    not_enrolled: Counter[str],
) -> dict[str, Any]:
    """Describe the test data without names of people."""
    silent = Counter(result.reason or "no frame" for _, result in probes if not result.logits)
    return {
        "data": trials.title,
        "published": list(trials.copy),
        "subjects": len({trial.subject for trial, _ in probes if trial.subject} | set(trials.enrol)),
        "presentations": len(probes),
        "unreadable": unreadable + trials.skipped,
        "frames_at_most": frames,
        "enrolment": {
            "from": trials.enrolment,
            "enrolled": len(templates),
            "not_enrolled": dict(sorted(not_enrolled.items())),
        },
        "no_response": dict(sorted(silent.items())),
        "conditions": {name: dict(values) for name, values in trials.conditions.items()},
    }


def _rows(
    presentations: Presentations, at: Point, probes: Sequence[tuple[Presentation, PresentationResult]]
) -> Iterator[dict[str, Any]]:
    """Yield one row per presentation; all metrics except comparisons between two people can be recomputed from them."""
    claimed = presentations.claimed
    for number, (trial, result) in enumerate(probes):
        logit = result.logit
        claimed_similarity = presentations.similarity[number][claimed[number]]
        similarity = (
            float(claimed_similarity[0]) if len(claimed_similarity) and np.isfinite(claimed_similarity[0]) else None
        )
        decision = NO_DECISION if not result.logits else BONA_FIDE if logit >= at.pad else ATTACK
        match = None if similarity is None or at.recognition is None else int(similarity >= at.recognition)
        yield {
            "item": trial.name,
            "subject": trial.subject,
            "species": trial.species,
            "frames": result.frames,
            "judged": len(result.logits),
            "logit": repr(logit) if result.logits else "",
            "decision": decision,
            "similarity": "" if similarity is None else repr(similarity),
            "match": "" if match is None else match,
            "accepted": "" if not len(claimed_similarity) else int(bool(match) and decision == BONA_FIDE),
            "reason": result.reason,
        }


# Assessment of exported models on a dataset: checks, evaluation and output files.


def assess_dataset(
    *,
    data: str | None,
    pad: Path | None,
    recognition: Path | None = None,
    kind: str = "",
    split: str = "",
    frames: int = 10,
    by: str | None = None,
    enlarge: bool = False,
    int8: bool = False,
    at: Sequence[str] | None = None,
    iso30107: bool = False,
    out: Path | None = None,
    progress: Say = discard,
) -> Assessment:
    """Evaluate the models on every presentation of a dataset, and write the requested files."""
    if pad is None:
        raise UserError("--pad", MISSING)
    if data is None:
        raise UserError("--data", "does not name a folder; give a dataset as it was downloaded")
    if iso30107 and out is None:
        raise UserError("--out", "does not name a directory for the report; give one")
    if out is not None:
        check_free(out)
    detector, people = (None if path is None else open_export(path, int8=int8) for path in (pad, recognition))
    for model in (detector, people):
        for notice in () if model is None else model.notices:
            progress(notice)
    pipeline = Pipeline(*at_points(detector, people, at or ()), settings=Settings(enlarge=enlarge))
    trials = presentations_in(Path(data), kind, split)
    with in_steps("presentations", progress) as steps:
        assessment = assess(pipeline, trials, frames=frames, by=by, steps=steps)
    if out is not None:
        assessment.write(out, report=iso30107)
    return assessment
