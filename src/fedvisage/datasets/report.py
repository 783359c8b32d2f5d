"""The result of an import: counts, and every skipped file with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError, printable
from fedvisage.base.files import json_text
from fedvisage.base.progress import format_count
from fedvisage.data.left_out import LeftOut
from fedvisage.data.rows import BONA_FIDE
from fedvisage.data.writer import Writer
from fedvisage.faces.cropping import LEAST_CONTEXT

DATASET_SPLITS = ("train", "dev", "test", "all")
"""Keys of published counts for a dataset's main videos; other keys are optional parts, such as enrolment."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was not imported, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class ImportReport:
    """The result of an import: counts, and the skipped files; None for what a dataset of this kind does not count."""

    files: int
    images: int
    subjects: int
    bona_fide: int
    species: dict[str, int]
    splits: dict[str, int]
    upscaled: int
    own_subjects: int
    lost_frames: int
    skipped: tuple[SkippedFile, ...]

    # Known datasets of attacks: videos next to the published counts, and other files.
    kind: str | None = None
    found: dict[str, tuple[int, int]] | None = None
    expected: dict[str, tuple[int, int]] | None = None
    stray: dict[str, int] | None = None
    strangers: tuple[str, ...] | None = None
    notes: tuple[str, ...] | None = None
    short: int | None = None
    turned: int | None = None
    without_box: int | None = None
    little_context: int | None = None
    unanswered: dict[str, int] | None = None

    # Datasets of people.
    one_photograph: int | None = None
    people_left_out: int | None = None
    photographs_left_out: int | None = None

    # Printed, but not stored in the set.
    summary: tuple[str, ...] = ()
    """Counts of people next to those of a complete copy, and notes."""
    lists: tuple[str, ...] = ()
    """The lists of pairs and templates that were written next to the set."""

    def json(self) -> str:
        """Return the report as stored in the set."""
        values = asdict(self).items()
        stored = {name: value for name, value in values if value is not None and name not in ("summary", "lists")}
        return json_text(stored)

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        counts = ", ".join(f"{name} {count}" for name, count in [*self.species.items(), *self.splits.items()])
        totals = f"{format_count(self.images, 'image')} of {format_count(self.subjects, 'subject')}"
        lines = [f"{totals} from {format_count(self.files, 'file')}: {counts}", LeftOut.of(asdict(self)).line]
        found, expected = self.found or {}, self.expected or {}
        lines += [self._count_of(place) for place in expected if place in found or place in DATASET_SPLITS]
        lines += [self._count_of(place) for place in found if place not in expected]
        if self.incomplete:
            lines.append("this is an incomplete copy: the published counts are higher")
        lines += [*self.summary, *(self.notes or ())]
        if self.one_photograph:
            single = format_count(self.one_photograph, "person", "people")
            lines.append(f"{single} with one photograph: used for training only")
        if self.people_left_out:
            left_out = format_count(self.people_left_out, "person", "people")
            amounts = f"{left_out} with {format_count(self.photographs_left_out or 0, 'photograph')} left out"
            lines.append(f"{amounts}: fewer than requested")
        # All images of people are bona fide.
        people = self.one_photograph is not None
        classes = (None, None) if people else (self.bona_fide, self.images - self.bona_fide)
        lines += shortcomings(self.subjects, *classes)
        if "heldout" not in self.splits and not people:
            lines.append(
                "nobody is held out: a site that trains on this set has no part in the choice of the threshold"
            )
        ends = f"the picture ends at less than {LEAST_CONTEXT:g} times the face"
        remarks = (
            (self.upscaled, "image", "had to be enlarged, which blurs the cues for attacks: use a smaller size"),
            (self.little_context, "image", f"with little context: {ends}"),
            (self.own_subjects, "file", "without a subject folder: each counts as its own subject"),
            (self.lost_frames, "frame", "of videos left out: no face found, or no depth map"),
        )
        lines += [f"{format_count(count, noun)} {remark}" for count, noun, remark in remarks if count]
        if self.skipped:
            lines.append(f"{format_count(len(self.skipped), 'file')} skipped:")
            lines += [f"  {entry.path}: {entry.reason}" for entry in self.skipped]
        if self.stray:
            others = ", ".join(f"{reason} ({count:,})" for reason, count in self.stray.items())
            lines.append(f"other files were skipped: {others}")
            lines += [f"  {name}" for name in self.strangers or ()]
        further = {
            "videos with fewer face frames than requested (last one used)": self.short,
            "upside down or on their side, turned upright": self.turned,
            "frames without a box (face detected instead)": self.without_box,
        }
        lines += [f"{what}: {count}" for what, count in further.items() if count]
        return [*lines, *self.lists]

    @property
    def incomplete(self) -> bool:
        """Return whether videos of a complete copy are missing; excluded parts, such as enrolment, do not count."""
        found = self.found or {}
        return any(
            count < published
            for place, counts in (self.expected or {}).items()
            if place in found or place in DATASET_SPLITS
            for count, published in zip(found.get(place, (0, 0)), counts, strict=True)
        )

    def _count_of(self, place: str) -> str:
        bona_fide, attacks = (self.found or {}).get(place, (0, 0))
        published = (self.expected or {}).get(place)
        if published is None:
            return f"{place}: {bona_fide:,} bona fide, {attacks:,} attacks"
        pairs = ((bona_fide, published[0], "bona fide"), (attacks, published[1], "attacks"))
        return f"{place}: {', '.join(f'{n:,} of {most:,} {what}' for n, most, what in pairs if n or most)}"


def shortcomings(subjects: int, bona_fide: int | None, attacks: int | None) -> list[str]:
    """Return warnings about a set that cannot train alone; identity sets have no class counts."""
    warnings = []
    if bona_fide == 0:
        warnings.append("warning: all images are attacks; a site that trains needs bona fide images, too")
    if attacks == 0:
        warnings.append("warning: all images are bona fide; a site that trains needs attacks, too")
    if subjects == 1:
        warnings.append("warning: there is one subject; training and held-out images need different ones")
    return warnings


@dataclass
class Tally:
    """The files of an import and those skipped so far; too many skipped files stop it."""

    source: Path
    files: int
    max_bad: float
    skipped: list[SkippedFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse a limit that is not a share."""
        if not 0 <= self.max_bad <= 1:
            raise UserError("max_bad", f"must be in [0, 1], got {self.max_bad}")

    def skip(self, path: str, reason: str) -> None:
        """Record an unusable file; raise a UserError if there are too many."""
        self.skipped.append(SkippedFile(printable(path), reason))
        self.stop_if_too_many()

    def stop_if_too_many(self) -> None:
        """Raise a UserError if more files than the share `max_bad` are unusable."""
        if len(self.skipped) > self.max_bad * self.files:
            raise UserError(
                str(self.source),
                f"at least {len(self.skipped)} of {format_count(self.files, 'file')} cannot be used, more than"
                f" max_bad={self.max_bad:g} allows; nothing was written. {reasons(self.skipped)}. The rest may not"
                " describe the camera: remove or replace these files, or import the rest with --max-bad 1",
            )

    def attach(
        self, out: Writer, *, upscaled: int = 0, own_subjects: int = 0, lost_frames: int = 0, **counts: Any
    ) -> ImportReport:
        """Attach the report to the written set, and return it; `counts` are fields of datasets of one kind."""
        if out.count == 0:
            raise UserError(str(self.source), f"contains no usable image: {reasons(self.skipped)}")
        report = ImportReport(
            files=self.files,
            images=out.count,
            subjects=len(out.subjects),
            bona_fide=out.species[BONA_FIDE],
            species=dict(sorted(out.species.items())),
            splits=dict(sorted(out.splits.items())),
            upscaled=upscaled,
            own_subjects=own_subjects,
            lost_frames=lost_frames,
            skipped=tuple(sorted(self.skipped, key=lambda entry: entry.path)),
            **counts,
        )
        out.attach_report(report.json())
        return report


def reasons(skipped: list[SkippedFile]) -> str:
    """Return the first few files with their faults and the most frequent fault, for an error message."""
    if not skipped:
        return "it has no files"
    reason, count = Counter(entry.reason for entry in skipped).most_common(1)[0]
    shown = "; ".join(f"{entry.path}: {entry.reason}" for entry in skipped[:3])
    return f"{shown}{'; …' if len(skipped) > 3 else ''} (most frequent: {reason}, {format_count(count, 'time')})"
