"""What the items of an import have shown so far: contents, faults, counts; and what is noted of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.reading import Outcome
from fedvisage.datasets.importers.report import DatasetReport, ImportReport, Tally
from fedvisage.datasets.scanners.item import ALL, Item, Listing
from fedvisage.datasets.scanners.scanner import Scanner
from fedvisage.errors import UserError

Record = Mapping[str, Any]
"""What became of an item: what it was, its fault, and counts."""

COUNTS = ("upscaled", "lost", "own", "short", "turned", "without_box")


@dataclass
class Seen:
    """What the items have shown so far."""

    tally: Tally
    contents: dict[str, Item] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def take(self, item: Item, outcome: Outcome) -> Record:
        """Count what became of an item, and return what is to be noted; without a fault its pictures are written."""
        fault = self._known(item, outcome.digest) or outcome.fault
        record: dict[str, Any] = {"item": item.name, "digest": outcome.digest, "fault": fault}
        if not fault:
            enlarged = sum(picture.cropped.upscaled for picture in outcome.pictures)
            counts = (enlarged, outcome.lost, item.own_subject, outcome.short, outcome.turned, outcome.without_box)
            record |= {name: int(count) for name, count in zip(COUNTS, counts, strict=True)}
        self._count(item, record)
        return record

    def replay(self, item: Item, record: Record) -> None:
        """Count an item as an earlier attempt noted it."""
        assert record["item"] == item.name, "the key of an unfinished import stands for its items"
        if record["digest"]:
            self.contents.setdefault(record["digest"], item)
        self._count(item, record)

    def _count(self, item: Item, record: Record) -> None:
        for name in COUNTS:
            self.counts[name] += record.get(name, 0)
        if record["fault"]:
            self.tally.skip(item.name, record["fault"])

    def _known(self, item: Item, digest: str) -> str:
        """Say if the same content was seen before; under the other class it is a contradiction."""
        earlier = self.contents.setdefault(digest, item) if digest else item
        if earlier is item:
            return ""
        if earlier.label != item.label:
            message = f"{earlier.name!r} and {item.name!r} are the same file in contradicting classes; remove one"
            raise UserError(str(self.tally.source), message)
        return f"the same content as {earlier.name}"

    def report(self, out: Writer, scanner: Scanner, listing: Listing) -> ImportReport:
        """Put the report into the set, and return it."""
        plain = self.tally.attach(
            out,
            upscaled=self.counts["upscaled"],
            own_subjects=self.counts["own"],
            lost_frames=self.counts["lost"],
        )
        if not scanner.official:
            return plain
        found: dict[str, list[int]] = {}
        for item in listing.items:
            for place in {item.place, *({ALL} & scanner.counts.keys())}:
                found.setdefault(place, [0, 0])[1 - item.label] += 1
        report = DatasetReport(
            **vars(plain),
            kind=scanner.kind,
            found={place: (real, attacks) for place, (real, attacks) in sorted(found.items())},
            expected=dict(listing.expected or scanner.counts),
            stray=dict(sorted(listing.stray.items())),
            strangers=listing.examples,
            notes=listing.notes,
            short=self.counts["short"],
            turned=self.counts["turned"],
            without_box=self.counts["without_box"],
        )
        out.attach_report(report.json())
        return report
