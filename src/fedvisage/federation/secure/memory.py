"""A site's memory of its secure sums: the roster of each data set, and the survivors of each round.

The difference between two sums over the same data with different members reveals the uploads of the members that
differ. So a data set belongs to one roster: the site refuses any later roster for it, and any round that was already
summed with other survivors, in this run or another. Data are the same if they share an image, by content. Only the
site's administrator can allow another roster.

Each pair of a roster and a set of images has two files: the images' digests, which never change, and a record. Records
are written under a lock, because several runs of one site share the directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.files import json_key, lock_directory, read_json, read_plain, write_atomically, write_json
from fedvisage.federation.wire.schema import RefusedMessage

PATIENCE = 30.0
"""Seconds to wait for another run of this site that writes its record."""

FIELD = "secure"
ALLOW = "--allow-roster"
"""The option of ``fedvisage site`` with which a site's administrator allows a roster."""

Digests = NDArray[np.uint64]


class RosterMemory:
    """The records of one site in one run."""

    def __init__(self, directory: Path, run: str, images: Digests, allowed: Collection[frozenset[str]] = ()) -> None:
        """Open the memory in a directory for a run on these images; ``allowed`` rosters are always accepted."""
        self._directory, self._run, self._allowed = directory, run, frozenset(allowed)
        self._images = np.unique(images).astype("<u8")
        self._shares_images: dict[str, bool] = {}

    def check_roster(self, roster: Sequence[str]) -> None:
        """Raise ``Refused`` if images of this data took part in secure sums of another roster."""
        for record in self._overlapping() if frozenset(roster) not in self._allowed else ():
            if set(record["roster"]) != set(roster):
                before = f"run {record['run']!r} used the same data"
                raise RefusedMessage(FIELD, _refusal(before, "this run", record["roster"], roster))

    def remember_roster(self, roster: Sequence[str]) -> None:
        """Check a roster and bind the data to it, durably."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with lock_directory(self._directory, PATIENCE):
            self.check_roster(roster)
            path = self._path(roster)
            if not path.exists():
                write_atomically(path.with_suffix(".images"), self._images.tobytes())
                write_json(path, {"roster": sorted(roster), "run": self._run, "rounds": {}})

    def remember_survivors(self, roster: Sequence[str], round_number: int, survivors: Sequence[str]) -> None:
        """Raise ``Refused`` if this round already had other survivors; store these, durably."""
        self.remember_roster(roster)
        with lock_directory(self._directory, PATIENCE):
            number, path = str(round_number), self._path(roster)
            for record in self._overlapping() if frozenset(survivors) not in self._allowed else ():
                earlier = record["rounds"].get(number)
                if earlier is not None and set(earlier["survivors"]) != set(survivors):
                    before = f"run {earlier['run']!r} already summed round {number} on the same data"
                    raise RefusedMessage(FIELD, _refusal(before, "this sum", earlier["survivors"], survivors))
            record = read_json(path)
            if number not in record["rounds"]:
                record["rounds"][number] = {"run": self._run, "survivors": sorted(survivors)}
                write_json(path, record)

    def _path(self, roster: Sequence[str]) -> Path:
        content = json_key(sorted(roster)).encode() + self._images.tobytes()
        return self._directory / f"{hashlib.sha256(content).hexdigest()[:32]}.json"

    def _overlapping(self) -> Iterator[dict[str, Any]]:
        """Yield the records of data that share an image with this run's data."""
        for path in sorted(self._directory.glob("*.json")):
            if path.stem not in self._shares_images:
                other_images = np.frombuffer(read_plain(path.with_suffix(".images")), dtype="<u8")
                self._shares_images[path.stem] = bool(np.isin(self._images, other_images).any())
            if self._shares_images[path.stem]:
                yield read_json(path, "without it this site cannot determine which sums would reveal its uploads")


def _refusal(before: str, now: str, earlier: Collection[str], members: Collection[str]) -> str:
    missing, added = sorted(set(earlier) - set(members)), sorted(set(members) - set(earlier))
    words = [f"without {', '.join(missing)}"] if missing else []
    words += [f"with {', '.join(added)}"] if added else []
    return (
        f"{before}, and {now} is {' and '.join(words)}: together the two sums can reveal single uploads; keep "
        f"the same members, or have this site's administrator restart it with {ALLOW} "
        f"{','.join(sorted(members))}"
    )
