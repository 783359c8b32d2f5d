"""What a report says of pictures that were at two places of a run."""

from __future__ import annotations

from fedvisage.report.run_files import RunFiles
from fedvisage.tasks.overlap import USER, Overlap

UNSEEN = "whose images took no part in training"


def unseen(run: RunFiles) -> str:
    """Say of the user's images whether training saw them."""
    found = Overlap.from_json(run.overlap)
    user = found.anywhere.get(USER)
    if found.about(USER).named:
        return "some of whose people took part in training"
    if user is None or not user.exact + user.near:
        return UNSEEN
    return f"{user.exact + user.near} of whose {user.of} images took part in training"


def sentences(run: RunFiles) -> list[str]:
    """Say what places share, or that nothing was found; nothing of a run that did not look."""
    if not run.overlap:
        return []
    found = Overlap.from_json(run.overlap)
    lines = found.sentences(str(run.metrics.get("user") or ""))
    if not lines:
        count = sum(one.of for one in found.anywhere.values())
        return [f"None of the run's {count:,} images was found at two of its places, by equal bytes or by near hashes."]
    return [f"{line[0].upper()}{line[1:]}." for line in lines]
