"""Attendance: the draw of a round's sites, and the sites that trained a run, from the lines of ``rounds.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedvisage.base.streams import numpy_rng
from fedvisage.recipe import Federation


def select_sites(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> tuple[str, ...]:
    """Draw the sites of a round, in sorted order: a share of those that have joined, at least one."""
    names = [name for name in names if settings.joins.get(name, 1) <= round_number]
    count = settings.asks(len(names))
    if count == len(names):
        return tuple(names)
    indices = numpy_rng(seed, round_number, "participation").choice(len(names), size=count, replace=False)
    return tuple(names[index] for index in sorted(indices))


def draw_offline(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> frozenset[str]:
    """Draw the sites that are unreachable in a round of a simulation.

    ``any-site``: each site drops out independently with the configured probability. ``one-site``: with that probability
    a single site drops out, drawn per round (PrivacyFace, A.2.7).
    """
    if not settings.offline:
        return frozenset()
    if settings.offline_policy == "any-site":
        drawn = {name: numpy_rng(seed, name, round_number, "offline").random() for name in names}
        return frozenset(name for name, value in drawn.items() if value < settings.offline)
    rng = numpy_rng(seed, round_number, "offline")
    drop_one = rng.random() < settings.offline
    return frozenset([names[int(rng.integers(len(names)))]] if drop_one else [])


LISTED_SITES = 12
"""The largest number of sites that a summary names."""

NO_QUORUM = "no quorum"
"""The name under which a round's failures record that nothing was combined."""


@dataclass(frozen=True)
class Attendance:
    """The rounds of a run, with the sites that they counted."""

    counted: Mapping[int, tuple[str, ...]]
    """The sites whose training a round counted, by round; empty if the server trained alone."""
    missed: Mapping[str, tuple[int, ...]]
    """By site, the rounds that selected it and counted other sites but not this one."""
    lost: tuple[int, ...]
    """The rounds that combined nothing."""
    uncommitted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By site, the rounds whose private state it could not store, so that it continued from an earlier one."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites that at least one round counted, sorted."""
        return tuple(sorted({name for names in self.counted.values() for name in names}))

    def as_json(self) -> dict[str, Any]:
        """Return the section for ``metrics.json``: the number of rounds that counted a site, and missed rounds."""
        rounds = {name: sum(name in names for names in self.counted.values()) for name in self.sites}
        section: dict[str, Any] = {
            "rounds": rounds,
            "missed": {name: list(numbers) for name, numbers in self.missed.items()},
            "lost": list(self.lost),
        }
        if self.uncommitted:
            section["uncommitted"] = {name: list(numbers) for name, numbers in self.uncommitted.items()}
        return section


def attendance_of(rows: Iterable[Mapping[str, Any]]) -> Attendance:
    """Return the attendance in the lines of ``rounds.jsonl``."""
    counted: dict[int, tuple[str, ...]] = {}
    missed: dict[str, list[int]] = {}
    uncommitted: dict[str, list[int]] = {}
    lost = []
    for row in rows:
        number = int(row["round"])
        # Lines of an earlier version only list replies and failures.
        earlier = "counted" not in row
        names = counted_sites(row.get("replied") or (), row.get("failed") or {}) if earlier else row["counted"]
        for name in row.get("uncommitted") or ():
            uncommitted.setdefault(name, []).append(number)
        if names is None:
            lost.append(number)
            continue
        counted[number] = tuple(names)
        for name in row.get("asked") or ():
            if names and name in row["failed"] and name not in names:
                missed.setdefault(name, []).append(number)
    missed_rounds, uncommitted_rounds = (
        {name: tuple(rounds[name]) for name in sorted(rounds)} for rounds in (missed, uncommitted)
    )
    return Attendance(counted, missed_rounds, tuple(lost), uncommitted_rounds)


def counted_sites(replied: Iterable[str], failed: Mapping[str, str]) -> list[str] | None:
    """Return the sites whose replies a round counts, sorted; None if it has nothing to combine."""
    names = sorted(set(replied) - failed.keys())
    return None if NO_QUORUM in failed or (failed and not names) else names


def failures_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sites that failed in a round, and the reasons: they did not reply, or could not store their state."""
    yield from (row.get("failed") or {}).items()
    for name, reason in (row.get("uncommitted") or {}).items():
        yield name, f"could not store its private state: {reason}"


def spans(numbers: Sequence[int]) -> str:
    """Return a short text for numbers: ``2, 4 to 6``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" if b > a + 1 else f"{a}, {b}" for a, b in parts)


def absences(metrics: Mapping[str, Any]) -> list[str]:
    """Return notes on a run's absences: sites that never delivered, rounds without a site, rounds without a result."""
    attendance = metrics.get("attendance")
    if not attendance:
        return []
    counts = attendance["rounds"]
    never = [name for name in metrics["sites"] if name not in counts] if set(counts) & set(metrics["sites"]) else []
    notes = [f"{_list_sites(never)} never delivered"] if never else []
    missed = [f"{_rounds(rounds)} without {name}" for name, rounds in attendance["missed"].items() if name not in never]
    notes += missed[:LISTED_SITES]
    if len(missed) > LISTED_SITES:
        notes.append(f"some rounds without {len(missed) - LISTED_SITES} more")
    notes += [
        f"{name} lost its private state of {_rounds(rounds)}, which it could not store"
        for name, rounds in attendance.get("uncommitted", {}).items()
    ]
    return notes + ([f"nothing was combined in {_rounds(lost)}"] if (lost := attendance["lost"]) else [])


def training_summary(metrics: Mapping[str, Any]) -> str:
    """Return a text about the training of a run's model: its sites, its number of rounds, and absences."""
    attendance, sites, rounds = metrics.get("attendance"), [str(name) for name in metrics.get("sites") or ()], ""
    if attendance and not attendance["rounds"]:
        return "trained at the server, by no site"
    if attendance and set(attendance["rounds"]) & set(sites):  # false if all data were merged into one site
        sites = [name for name in sites if name in attendance["rounds"]]
    if metrics.get("rounds") is not None:
        number = int(metrics["rounds"]) - len(attendance["lost"] if attendance else ())
        rounds = f" in {number} round{'' if number == 1 else 's'}"
    names = f" ({_list_sites(sites)})" if sites else ""
    return "; ".join(
        [f"trained by {len(sites)} site{'' if len(sites) == 1 else 's'}{names}{rounds}", *absences(metrics)]
    )


def _list_sites(names: Sequence[str]) -> str:
    rest = len(names) - LISTED_SITES
    return ", ".join(names[:LISTED_SITES]) + (f" and {rest} more" if rest > 0 else "")


def _rounds(which: Sequence[int]) -> str:
    return f"round{'' if len(which) == 1 else 's'} {spans(which)}"
