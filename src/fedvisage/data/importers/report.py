"""What an import did: counts, and every file that was skipped with the reason."""

import json
from collections import Counter
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Skipped:
    """A file that was not imported, and why."""

    path: str
    reason: str


class BadFile(Exception):
    """A file that cannot be used; the message is the reason for the list of skipped files."""


@dataclass(frozen=True)
class ImportReport:
    """What was imported into a set, and what was not."""

    files: int
    images: int
    subjects: int
    bona_fide: int
    species: dict[str, int]
    splits: dict[str, int]
    upscaled: int
    own_subjects: int
    lost_frames: int
    skipped: tuple[Skipped, ...]

    def json(self) -> str:
        """Return the report as it is kept in the set."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def lines(self) -> list[str]:
        """Return the report as lines to print."""
        counts = ", ".join(f"{name} {count}" for name, count in [*self.species.items(), *self.splits.items()])
        lines = [f"{self.images} images of {self.subjects} subjects from {self.files} files: {counts}"]
        if self.upscaled:
            lines.append(
                f"{self.upscaled} images were enlarged, which blurs what tells attacks apart: use a smaller size"
            )
        if self.own_subjects:
            lines.append(f"{self.own_subjects} files have no subject folder; each counts as a subject of its own")
        if self.lost_frames:
            lines.append(f"{self.lost_frames} frames of videos were left out because no face was found in them")
        if self.skipped:
            lines.append(f"{len(self.skipped)} files were skipped:")
            lines += [f"  {entry.path}: {entry.reason}" for entry in self.skipped]
        return lines


def printable(text: str) -> str:
    """Return a text that can be shown and stored, whatever bytes it was made of."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def reasons(skipped: list[Skipped], first: int = 3) -> str:
    """Return the first few files with their faults and the most frequent fault, for an error message."""
    if not skipped:
        return "it has no files"
    kinds = Counter(entry.reason for entry in skipped).most_common(1)[0]
    shown = "; ".join(f"{entry.path}: {entry.reason}" for entry in skipped[:first])
    return f"{shown}{'; …' if len(skipped) > first else ''} (most frequent: {kinds[0]}, {kinds[1]} times)"
