"""The pipeline as it is deployed, judged on presentations: attack detection and recognition together.

A presentation's score is the mean of its frames' probabilities, as a running mean at a door comes to. Nobody is judged
by a frame that the pipeline refuses. Attacks come first, also when people enrol: only frames that pass make a template.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.report import BadFile
from fedvisage.device.checked import ATTACK, BONA_FIDE, NO_DECISION, Embedding
from fedvisage.device.exported import Exported
from fedvisage.device.pipeline import Pipeline
from fedvisage.device.trials import Trial, Trials
from fedvisage.errors import RunFailed, UserError
from fedvisage.files import write_atomically, write_json
from fedvisage.metrics.presentations import Point, Presentations, judge
from fedvisage.metrics.similarity import unit
from fedvisage.progress import Steps, unwatched
from fedvisage.report import iso30107
from fedvisage.streams import numpy_rng

METRICS, TABLE, REPORT, PAGE = "metrics.json", "presentations.csv", "iso30107.json", "iso30107.html"
COLUMNS = (
    *("item", "subject", "species", "frames", "judged", "logit", "decision", "similarity", "match", "accepted"),
    "reason",
)
RESAMPLES = 1000
PASSED_OVER = 0.05
"""The share of presentations that may be unreadable."""


@dataclass
class Seen:
    """What the pipeline said of one presentation."""

    frames: int = 0
    logits: list[float] = field(default_factory=list)
    embeddings: list[Embedding] = field(default_factory=list)
    passed: list[Embedding] = field(default_factory=list)
    """Embeddings of frames that attack detection let pass."""
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
        """Why there was no response: what most frames were refused for."""
        return "" if self.logits or not self.reasons else self.reasons.most_common(1)[0][0]


@dataclass(frozen=True, eq=False)
class Assessed:
    """All that came of an assessment."""

    found: Presentations
    at: Point
    values: dict[str, Any]
    rows: list[dict[str, Any]]

    def lines(self) -> list[str]:
        """Return the figures as lines, for people."""
        return iso30107.lines(self.values)

    def write(self, out: Path, *, report: bool) -> None:
        """Write the figures and a row a presentation, with the report as JSON and HTML if it is asked for."""
        out.mkdir(parents=True, exist_ok=True)
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(out / TABLE, table.getvalue().encode())
        if not report:
            write_json(out / METRICS, self.values)
            return
        write_json(out / REPORT, self.values)
        write_atomically(out / PAGE, iso30107.page(self.values, self.found, self.at).encode())


def assess(
    pipeline: Pipeline, trials: Trials, *, frames: int = 10, resamples: int = RESAMPLES, steps: Steps = unwatched
) -> Assessed:
    """Show every presentation to the pipeline and work out what both models together are worth."""
    at = _point(pipeline)
    course = _Course(pipeline, frames, steps, trials.count)
    templates, not_enrolled = _templates(course, trials) if at.recognition is not None else ({}, Counter[str]())
    probes = [(trial, seen) for trial in trials.probes if (seen := course.look(trial)) is not None]
    if course.unreadable > PASSED_OVER * trials.count:
        raise RunFailed(
            f"{course.unreadable} of {trials.count} presentations cannot be read, such as {course.example}; a report on"
            " the rest would be of other data"
        )
    if not probes:
        raise UserError("--data", "has presentations that enrol, and none to judge")
    found = _presentations(probes, templates)
    values = {
        "format": 1,
        "pipeline": _pipeline(pipeline),
        "test": _test(trials, probes, frames, course.unreadable, templates, not_enrolled),
        **judge(found, at, resamples, numpy_rng(0, "presentations")),
    }
    return Assessed(found, at, values, list(_rows(found, at, probes)))


def _point(pipeline: Pipeline) -> Point:
    if pipeline.pad is None or pipeline.pad.threshold is None:
        raise UserError("--pad", "names no model that tells attacks; a pipeline is judged with one")
    people = pipeline.recognition
    if people is not None and people.threshold is None:
        raise UserError(str(people.directory), "has no threshold to decide by; export a run whose sites chose one")
    recognition = None if people is None or people.threshold is None else people.threshold.value
    return Point(pipeline.pad.threshold.value, recognition)


class _Course:
    """Looks at presentations one after another, and counts those that cannot be read."""

    def __init__(self, pipeline: Pipeline, frames: int, steps: Steps, count: int) -> None:
        self._pipeline, self._frames, self._steps, self._count = pipeline, frames, steps, count
        self._done, self.unreadable, self.example = 0, 0, "nothing"

    def look(self, trial: Trial) -> Seen | None:
        """Return what is said of a presentation; None if it cannot be read."""
        seen = Seen()
        try:
            for frame in trial.frames(self._frames):
                self._add(seen, frame)
        except BadFile as bad:
            self.unreadable += 1
            self.example = f"{trial.name} ({bad})"
            return None
        finally:
            self._done += 1
            self._steps(self._done, self._count)
        return seen

    def _add(self, seen: Seen, frame: NDArray[np.uint8]) -> None:
        seen.frames += 1
        checked = self._pipeline.check(frame, report=True)
        seen.reasons.update(checked.reasons)
        face = checked.faces[0] if checked.faces else None
        if face is None or face.pad is None or face.pad.logit is None:
            return
        seen.logits.append(face.pad.logit)
        if face.embedding is not None:
            seen.embeddings.append(face.embedding)
            if face.pad.decision == BONA_FIDE:
                seen.passed.append(face.embedding)


def _templates(course: _Course, trials: Trials) -> tuple[dict[str, Embedding], Counter[str]]:
    """Enrol everybody; return templates, and why others have none."""
    templates, refused = dict[str, Embedding](), Counter[str]()
    for subject, enrolment in sorted(trials.enrol.items()):
        looks = [seen for trial in enrolment if (seen := course.look(trial)) is not None]
        passed = [embedding for seen in looks for embedding in seen.passed]
        if passed:
            templates[subject] = _mean(passed)
        elif any(seen.logits for seen in looks):
            refused["taken for an attack"] += 1
        else:
            refused[next((seen.reason for seen in looks if seen.reason), "cannot be read")] += 1
    return templates, refused


def _mean(embeddings: Sequence[Embedding]) -> Embedding:
    mean: Embedding = unit(np.mean(embeddings, axis=0)[None])[0]
    return mean


def _presentations(probes: Sequence[tuple[Trial, Seen]], templates: dict[str, Embedding]) -> Presentations:
    enrolled = np.array(sorted(templates), np.str_)
    similarity = np.full((len(probes), len(enrolled)), np.nan)
    if templates:
        known = np.stack([templates[name] for name in sorted(templates)])
        for row, (_, seen) in enumerate(probes):
            if seen.embeddings:
                similarity[row] = known @ _mean(seen.embeddings)
    return Presentations(
        item=np.array([trial.name for trial, _ in probes], np.str_),
        subject=np.array([trial.subject for trial, _ in probes], np.str_),
        species=np.array([trial.species for trial, _ in probes], np.str_),
        live=np.array([seen.logit for _, seen in probes]),
        similarity=similarity,
        enrolled=enrolled,
    )


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    def model(one: Exported | None) -> dict[str, Any] | None:
        if one is None or one.threshold is None:
            return None
        said = one.description
        return {
            "method": said.method, "arithmetic": said.arithmetic, "size": said.size, "model_sha256": one.digest,
            "graph_sha256": one.graph_digest, "threshold": one.threshold.value, "operating_point": one.threshold.rule,
        }  # fmt: skip

    return {
        "pad": model(pipeline.pad),
        "recognition": model(pipeline.recognition),
        "detector_sha256": pipeline.detector_digest,
    }


def _test(
    trials: Trials, probes: Sequence[tuple[Trial, Seen]], frames: int, unreadable: int,
    templates: dict[str, Embedding], not_enrolled: Counter[str],
) -> dict[str, Any]:  # fmt: skip
    """Describe the test, without naming anybody."""
    silent = Counter(seen.reason or "no frame" for _, seen in probes if not seen.logits)
    return {
        "data": trials.title,
        "published": list(trials.copy),
        "subjects": len({trial.subject for trial, _ in probes if trial.subject} | set(trials.enrol)),
        "presentations": len(probes),
        "unreadable": unreadable + trials.skipped,
        "frames_at_most": frames,
        "enrolment": {
            "from": trials.enrolment, "enrolled": len(templates), "not_enrolled": dict(sorted(not_enrolled.items())),
        },
        "no_response": dict(sorted(silent.items())),
        "conditions": {name: dict(values) for name, values in trials.conditions.items()},
    }  # fmt: skip


def _rows(found: Presentations, at: Point, probes: Sequence[tuple[Trial, Seen]]) -> Iterator[dict[str, Any]]:
    """Yield a row a presentation, from which everybody can work out all figures but those of two people."""
    claimed = found.claimed
    for number, (trial, seen) in enumerate(probes):
        logit = seen.logit
        own = found.similarity[number][claimed[number]]
        similarity = float(own[0]) if len(own) and np.isfinite(own[0]) else None
        decision = NO_DECISION if not seen.logits else BONA_FIDE if logit >= at.pad else ATTACK
        match = None if similarity is None or at.recognition is None else int(similarity >= at.recognition)
        yield {
            "item": trial.name, "subject": trial.subject, "species": trial.species, "frames": seen.frames,
            "judged": len(seen.logits), "logit": repr(logit) if seen.logits else "", "decision": decision,
            "similarity": "" if similarity is None else repr(similarity), "match": "" if match is None else match,
            "accepted": "" if not len(own) else int(bool(match) and decision == BONA_FIDE), "reason": seen.reason,
        }  # fmt: skip
