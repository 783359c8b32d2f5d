"""A site's memory of the runs that used its data: their members, their settings, and the survivors of each round.

Training is deterministic, so two runs over the same data can be solved for the upload of one site, unless both reveal
the same numbers. So a data set that a run with secure sums trained on, even without an upload, belongs to one roster
and one set of settings, and its uploads leave the site in no other way. The site refuses any later run with other
sites, with other settings, or without secure sums, and any round that was already summed with other survivors. Data are
the same if they share an image, by content; a repeated run must have exactly the same images, labels and depth maps.
Only the site's administrator can allow an exception.
``docs/decisions/0043-differing-sums.md`` has the attacks.

Each record has two files: the images' digests, which never change, and what the run did with them. Records are written
under a lock, because several runs of one site share the directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.files import flatten, json_key, lock_directory, read_json, read_plain, write_atomically, write_json
from fedvisage.federation.wire.refused import RefusedMessage
from fedvisage.recipe import Recipe, tree_of

PATIENCE = 30.0
"""Seconds to wait for another run of this site that writes its record."""

FIELD = "secure"
ALLOW = "--allow-roster"
"""The option of ``fedvisage site`` with which a site's administrator allows a roster, or runs without secure sums."""

PLAIN = "plain"
"""The value of that option for runs without secure sums. Their records have no settings."""

WITHOUT_EFFECT = (
    "title",
    "evaluation",
    "report",
    "tracking",
    "data.sites",
    "data.target",
    "data.target_name",
    "data.target_split",
    "data.benchmarks",
    "federation.deadline",
    "federation.sit_out",
    "federation.quorum",
    "federation.give_up_after",
    "federation.rates",
    "training.early_stop",
    "runtime.workers",
    "runtime.checkpoint_every",
)
"""The keys of a recipe, or sections, that change no number of an upload. The roster is compared by itself."""

MOST_KEYS = 3
"""Keys that a refusal lists."""

Digests = NDArray[np.uint64]


def settings_in_sum(recipe: Recipe) -> dict[str, str]:
    """Return the settings that can change an upload, by dotted key.

    The number of rounds matters only to a cosine schedule. All other settings stay, however alike they seem to treat
    the sites: a site with more images than a batch reacts to a seed, a batch size or a learning rate in another way
    than a site with fewer, and the difference between two sums shows it alone.
    """
    ignored = WITHOUT_EFFECT + (() if recipe.training.schedule.name == "cosine" else ("training.rounds",))
    pairs = flatten(tree_of(recipe))
    return {key: value for key, value in pairs if not any(f"{key}.".startswith(f"{name}.") for name in ignored)}


class RunMemory:
    """The records of one site in one run."""

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        run: str,
        images: Digests,
        allowed: Collection[frozenset[str]] = (),
        content: str = "",
    ) -> None:
        """Open the memory in a directory for a run on these images.

        ``allowed`` has the rosters whose sums the administrator allows, and ``PLAIN`` for runs without secure sums.
        ``content`` is a digest of all that training reads of the images, such as their labels and order.
        """
        self._directory, self._run, self._allowed = directory, run, frozenset(allowed)
        self._roster = sorted(recipe.data.sites)
        self._settings = {} if recipe.federation.secure is None else settings_in_sum(recipe)
        self._images, self._content = np.unique(images).astype("<u8"), content
        self._shares_images: dict[str, bool] = {}
        self._is_bound = False

    def check_use(self, *, in_sum: bool = True) -> None:
        """Raise ``Refused`` if earlier runs on images of this data and this run could reveal single uploads.

        Without secure sums in training, a run has a sum only before it, and ``in_sum`` is false for the training.
        """
        needed = self._roster if self._settings else [PLAIN]
        if frozenset(needed) in self._allowed:
            return
        for path, record in self._related():
            if (reason := self._conflict(path, record, in_sum)) is not None:
                raise RefusedMessage(FIELD, reason + _or_allow(",".join(needed)))

    def remember_use(self) -> None:
        """Check this run, and bind the data to its roster and settings, durably, once per process."""
        if self._is_bound:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        with lock_directory(self._directory, PATIENCE):
            self.check_use(in_sum=bool(self._settings))
            former = self._path(self._roster)
            if self._settings and former.exists():
                # Replace a record of an earlier version, without settings, whose name depends on roster and images
                # only, by one with the settings that the administrator allowed.
                record = read_json(former)
                self._write(record["run"], record["rounds"])
                former.unlink()
                former.with_suffix(".images").unlink()
            elif not self._own_path.exists():
                self._write(self._run, {})
        self._is_bound = True

    def remember_survivors(self, round_number: int, survivors: Sequence[str]) -> None:
        """Raise ``Refused`` if this round already had other survivors; store these, durably."""
        self.remember_use()
        with lock_directory(self._directory, PATIENCE):
            number, path = str(round_number), self._own_path
            for _, record in self._related() if frozenset(survivors) not in self._allowed else ():
                earlier = record["rounds"].get(number)
                if earlier is not None and set(earlier["survivors"]) != set(survivors):
                    raise RefusedMessage(
                        FIELD,
                        f"run {earlier['run']!r} already summed round {number} on the same data, and this sum is "
                        f"{_change(earlier['survivors'], survivors)}: together the two can reveal single uploads; "
                        f"keep the same members{_or_allow(','.join(sorted(survivors)))}",
                    )
            record = read_json(path)
            if number not in record["rounds"]:
                record["rounds"][number] = {"run": self._run, "survivors": sorted(survivors)}
                write_json(path, record)

    def _conflict(self, path: Path, record: Mapping[str, Any], in_sum: bool) -> str | None:
        """Return why this run and a recorded one could reveal single uploads, and what to do; None if they cannot."""
        before, settings = f"run {record['run']!r}", record.get("settings")
        if self._settings == settings == {}:
            if not in_sum or not record["rounds"] or path == self._own_path:
                return None
            reason = f"{before} had a sum before training over other images or labels of this site"
            remedy = "keep the same data, or leave evaluation.shortcuts out"
        elif not self._settings:
            reason, remedy = f"{before} used the same data with federation.secure, and this run has none", "set it"
        elif settings == {}:
            reason, remedy = f"{before} used the same data without federation.secure", "use other data"
        elif set(record["roster"]) != set(self._roster):
            change = _change(record["roster"], self._roster)
            reason, remedy = f"{before} used the same data, and this run is {change}", "keep the same members"
        elif settings is None:  # a record of an earlier version
            reason, remedy = f"{before} used the same data, and its settings are unknown", "use other data"
        elif keys := sorted({key for key, _ in settings.items() ^ self._settings.items()}):
            more = f" and {len(keys) - MOST_KEYS} more keys" if len(keys) > MOST_KEYS else ""
            listed = ", ".join(keys[:MOST_KEYS]) + more
            reason, remedy = f"{before} used the same data with another {listed}", "keep the same settings"
        elif path != self._own_path:  # the other sites' part may be the same, so the difference is this site's alone
            reason = f"{before} had the same settings and other images or labels of this site"
            remedy = "keep the same data"
        else:
            return None
        return f"{reason}: together the two can reveal single uploads; {remedy}"

    def _write(self, run: str, rounds: Mapping[str, Any]) -> None:
        write_atomically(self._own_path.with_suffix(".images"), self._images.tobytes())
        content = {"roster": self._roster, "run": run, "settings": self._settings, "rounds": rounds}
        write_json(self._own_path, content)

    @property
    def _own_path(self) -> Path:
        return self._path([self._roster, self._settings] if self._settings else PLAIN, self._content)

    def _path(self, use: object, content_digest: str = "") -> Path:
        content = json_key(use).encode() + content_digest.encode() + self._images.tobytes()
        return self._directory / f"{hashlib.sha256(content).hexdigest()[:32]}.json"

    def _related(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the records of data that share an image with this run's data, or of a run with the same settings."""
        for path in sorted(self._directory.glob("*.json")):
            if path.stem not in self._shares_images:
                other_images = np.frombuffer(read_plain(path.with_suffix(".images")), dtype="<u8")
                self._shares_images[path.stem] = bool(np.isin(self._images, other_images).any())
            record = read_json(path, "without it this site cannot determine which sums would reveal its uploads")
            is_alike = record["roster"] == self._roster and record.get("settings") == self._settings
            if self._shares_images[path.stem] or is_alike:
                yield path, record


def _change(earlier: Collection[str], members: Collection[str]) -> str:
    missing, added = sorted(set(earlier) - set(members)), sorted(set(members) - set(earlier))
    words = [f"without {', '.join(missing)}"] if missing else []
    words += [f"with {', '.join(added)}"] if added else []
    return " and ".join(words)


def _or_allow(value: str) -> str:
    return f", or have this site's administrator restart it with {ALLOW} {value}"
