"""Which sites a run was trained by: told from the lines of its rounds, of which each names who was asked and failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedvisage.base.streams import numpy_rng
from fedvisage.recipe import Federation

# Who takes part in a round: a drawn fraction of the sites, less those that are (in a simulation) offline.


def asked(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> tuple[str, ...]:
    """Draw the sites that the server asks in a round, in sorted order; at least one of those that have joined."""
    names = [name for name in names if settings.joins.get(name, 1) <= round_number]
    count = settings.asks(len(names))
    if count == len(names):
        return tuple(names)
    chosen = numpy_rng(seed, round_number, "participation").choice(len(names), size=count, replace=False)
    return tuple(names[index] for index in sorted(chosen))


def offline(names: Sequence[str], settings: Federation, seed: int, round_number: int) -> frozenset[str]:
    """Draw the sites that are unreachable in a round.

    ``any-site``: each on its own with the given probability. ``one-site``: with that probability a single site, drawn
    anew each round (PrivacyFace, A.2.7).
    """
    if not settings.offline:
        return frozenset()
    if settings.offline_policy == "any-site":
        drawn = {name: numpy_rng(seed, name, round_number, "offline").random() for name in names}
        return frozenset(name for name, value in drawn.items() if value < settings.offline)
    rng = numpy_rng(seed, round_number, "offline")
    lost = rng.random() < settings.offline
    return frozenset([names[int(rng.integers(len(names)))]] if lost else [])


NO_QUORUM = "no quorum"
"""Under this name a round's failures say that nothing was combined in it."""


@dataclass(frozen=True)
class Attendance:
    """Which rounds counted which sites."""

    counted: Mapping[int, tuple[str, ...]]
    """The sites whose training a round counted, by round; without any: nobody was asked, the server trained alone."""
    missed: Mapping[str, tuple[int, ...]]
    """The rounds that asked a site, counted others, and not it."""
    lost: tuple[int, ...]
    """The rounds in which nothing was combined."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that some round counted, sorted."""
        return tuple(sorted({name for names in self.counted.values() for name in names}))

    def as_json(self) -> dict[str, Any]:
        """Return it for ``metrics.json``: how many rounds counted each site, and which did not."""
        rounds = {name: sum(name in names for names in self.counted.values()) for name in self.sites}
        return {"rounds": rounds, "missed": {name: list(which) for name, which in self.missed.items()},
                "lost": list(self.lost)}  # fmt: skip


def attendance_of(rows: Iterable[Mapping[str, Any]]) -> Attendance:
    """Read the lines of ``rounds.jsonl``."""
    counted: dict[int, tuple[str, ...]] = {}
    missed: dict[str, list[int]] = {}
    lost = []
    for row in rows:
        number, names = int(row["round"]), _counted(row)
        if names is None:
            lost.append(number)
            continue
        counted[number] = tuple(names)
        for name in row.get("asked") or ():
            if names and name in row["failed"] and name not in names:
                missed.setdefault(name, []).append(number)
    return Attendance(counted, {name: tuple(missed[name]) for name in sorted(missed)}, tuple(lost))


def _counted(row: Mapping[str, Any]) -> list[str] | None:
    """Return whom a round counted, None where nothing was combined; older lines say it by who replied and failed."""
    if "counted" in row:
        return row["counted"]  # type: ignore[no-any-return]
    failed = row.get("failed") or {}
    names = sorted(set(row.get("replied") or ()) - failed.keys())
    return None if NO_QUORUM in failed or (failed and not names) else names


def spans(numbers: Sequence[int]) -> str:
    """Write numbers in short: ``2, 4 to 6``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" if b > a + 1 else f"{a}, {b}" for a, b in parts)


def exceptions(metrics: Mapping[str, Any]) -> list[str]:
    """Say of a run's figures who was not there: sites that never delivered, rounds without some, rounds in vain."""
    attendance = metrics.get("attendance")
    if not attendance:
        return []
    there = attendance["rounds"]
    never = [name for name in metrics["sites"] if name not in there] if set(there) & set(metrics["sites"]) else []
    said = [f"{', '.join(never)} never delivered"] if never else []
    said += [f"{_rounds(which)} without {name}" for name, which in attendance["missed"].items() if name not in never]
    return said + ([f"nothing was combined in {_rounds(lost)}"] if (lost := attendance["lost"]) else [])


def trained_by(metrics: Mapping[str, Any], most: int = 12) -> str:
    """Say of a run's figures whose data trained its model, in how many rounds, and who was not there."""
    attendance, sites, rounds = metrics.get("attendance"), [str(one) for one in metrics.get("sites") or ()], ""
    if attendance and not attendance["rounds"]:
        return "trained at the server, by no site"
    if attendance and set(attendance["rounds"]) & set(sites):  # else all data were merged into one site
        sites = [name for name in sites if name in attendance["rounds"]]
    if metrics.get("rounds") is not None:
        number = int(metrics["rounds"]) - len(attendance["lost"] if attendance else ())
        rounds = f" in {number} round{'' if number == 1 else 's'}"
    names = f" ({', '.join(sites[:most])}{', …' if len(sites) > most else ''})" if sites else ""
    return "; ".join(
        [f"trained by {len(sites)} site{'' if len(sites) == 1 else 's'}{names}{rounds}", *exceptions(metrics)]
    )


def _rounds(which: Sequence[int]) -> str:
    return f"round{'' if len(which) == 1 else 's'} {spans(which)}"
