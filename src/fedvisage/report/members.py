"""What a comparison needs of a run: its settings, what it was judged on, and its figures.

Runs are known by what they hold, never by what somebody called it. The data that a figure was judged on is named by
the digests in `data.json`: at the user for most figures; at the sites, with the public people that their models must
reject, for recognition's personal ones. A run that is given twice, as a directory or as a copy, is one run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedvisage.data.selection import without_selection
from fedvisage.errors import UserError
from fedvisage.files import json_key, pieces_of
from fedvisage.metrics.scores import LARGEST
from fedvisage.report.compared import figures_of
from fedvisage.report.run_files import Row, as_written, flat, read_mapping
from fedvisage.tasks.seal import check_seal

Settings = tuple[tuple[str, str], ...]
NOT_SETTINGS = (
    *("title", "data", "report", "tracking", "evaluation.features", "evaluation.resamples"),
    "evaluation.snapshots",
    *("runtime.seed", "runtime.threads", "runtime.device", "runtime.checkpoint_every"),
)
"""What two runs may differ in and still be runs of one thing: names, data, seeds, and what no figure follows from."""
PERSONAL = "personal"
"""The figures of recognition that are about the sites' own people."""
USER, SITE, PUBLIC = "data.user", "data.sites.", "data.public"
SHOWN_DIGITS = 6


@dataclass(frozen=True)
class Judged:
    """The data that figures follow from: a name for readers, and a digest that identifies it (empty: unknown).

    ``target`` is the digest of the whole set, of which the data may be a part: parts of one set are one target.
    """

    name: str
    digest: str
    target: str = ""


class Pair(NamedTuple):
    """What two runs share that are paired: the target, the seed, the data judged on, and the sites."""

    target: str
    seed: int
    digest: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """What a comparison needs of a run."""

    path: Path
    method: str
    settings: Settings
    sites: tuple[str, ...]
    """Digests of the sites' sets; names where the sets were somewhere else and have none here."""
    seed: int
    user: Judged
    people: Judged
    """Recognition: the sites' own people, and those whom their models must reject."""
    figures: dict[str, float] = field(repr=False)
    content: str = ""

    def judged(self, figure: str) -> Judged:
        """Return the data that a figure was judged on."""
        return self.people if figure.startswith(f"{PERSONAL}.") else self.user

    def pair(self, figure: str) -> Pair:
        """Return what another run must share to be paired with this one."""
        judged = self.judged(figure)
        return Pair(judged.target, self.seed, judged.digest, self.sites)


def read_members(paths: Sequence[Path]) -> tuple[list[Member], list[str]]:
    """Read runs, each once, and say which were given again."""
    members: dict[str, Member] = {}
    known: dict[Path, Path] = {}
    notes = []
    for path in paths:
        place = path.resolve()
        if place in known:
            notes.append(f"{path} was given twice; it counts once")
            continue
        known[place] = path
        member = read_member(path)
        twin = members.setdefault(member.content, member)
        if twin is not member:
            notes.append(f"{path} has the recipe, the data and the scores of {twin.path}; they count as one run")
    return list(members.values()), notes


def read_member(path: Path) -> Member:
    """Read a run's figures and settings; a run without figures of a user cannot be compared."""
    check_seal(path)
    with as_written(path):
        return _member(path)


def _member(path: Path) -> Member:
    metrics, recipe, digests = (read_mapping(path / name) for name in ("metrics.json", "recipe.yaml", "data.json"))
    figures = figures_of(metrics)
    if not figures:
        raise UserError(str(path), "has no metrics.json with figures at a user; give finished runs")
    method = str(metrics.get("method"))
    settings = tuple((key, value) for key, value in flat(recipe) if _is_setting(key)) or (("method.name", method),)
    settings += _source(path)
    sites = tuple(sorted(str(digests.get(f"{SITE}{name}") or name) for name in metrics.get("sites") or []))
    seed, user, people = int(metrics.get("seed") or 0), _user(metrics, recipe, digests), _people(metrics, digests)
    said = json_key([settings, sites, seed, user.digest, people.digest, sorted(figures.items())])
    content = _digest(said, path / "scores.csv")
    return Member(path, method, settings, sites, seed, user, people, figures, content)


def _source(path: Path) -> Settings:
    """Return the source of a method that was passed in from Python, so that it is no other method's run."""
    sha256 = _section(read_mapping(path / "environment.json"), "method").get("sha256")
    return () if sha256 is None else (("method.source", str(sha256)[:SHOWN_DIGITS]),)


def _digest(said: str, scores: Path) -> str:
    """Return what a run is told by: what was read of it, and its scores as they are."""
    digest = hashlib.sha256(said.encode())
    for piece in pieces_of(scores, LARGEST) if scores.exists() else ():
        digest.update(piece)
    return digest.hexdigest()


def names_of(judged: Iterable[Judged]) -> dict[Judged, str]:
    """Return a name for each data: its own, with the beginning of its digest where others are called the same."""
    data = set(judged)
    called = [one.name for one in data]
    return {
        one: f"{one.name} ({one.digest[:SHOWN_DIGITS] or 'unknown'})" if called.count(one.name) > 1 else one.name
        for one in data
    }


def _user(metrics: Row, recipe: Row, digests: Row) -> Judged:
    """Name the user's data: the set by its digest, and what of it is meant."""
    digest, name = digests.get(USER), str(metrics.get("user"))
    if digest is None:
        return Judged(name, "")
    data, evaluation = _section(recipe, "data"), _section(recipe, "evaluation")
    selection = without_selection(str(data.get("user") or ""))[1]
    pairs = _section(evaluation, "recognition").get("pairs")
    meant = [repr(selection), str(data.get("user_split") or "all"), str(pairs or "")]
    return Judged(name, f"{digest} {hashlib.sha256(json_key(meant).encode()).hexdigest()}", str(digest))


def _people(metrics: Row, digests: Row) -> Judged:
    """Name the sites' own people: their sets, and the public set that has the impostors."""
    sites = [str(name) for name in metrics.get("sites") or []]
    found = [digests.get(f"{SITE}{name}") for name in sites]
    if not found or None in found:
        return Judged("the sites", "")
    people = " ".join([*sorted(map(str, found)), str(digests.get(PUBLIC, ""))])
    return Judged("the sites", people, people)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name)
    return section if isinstance(section, Mapping) else {}


def _is_setting(key: str) -> bool:
    return not any(key == name or key.startswith(f"{name}.") for name in NOT_SETTINGS)
