"""Everybody's template in memory, searched exactly: no approximation, so who is most similar is always found.

Rows lie in blocks, so that the gallery grows without being copied, and a block's similarities are looked at while they
are still in the processor's cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedvisage.metrics.similarity import Features

ROWS = 8192
AT_ONCE = 128
"""Faces that are searched for at once; more would push a block's similarities out of the cache."""

Hit = tuple[str, float]


class Index:
    """Unit vectors by the id of their person."""

    def __init__(self, size: int, rows: int = ROWS) -> None:
        """Hold nobody yet; ``size`` is that of a vector, ``rows`` how many of them a block has."""
        self._size, self._step = size, rows
        self._blocks: list[Features] = []
        self._ids: list[str] = []
        self._rows: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of people."""
        return len(self._ids)

    def put(self, person: str, vector: Features) -> None:
        """Take a person in, or put a new vector in the place of the old one."""
        row = self._rows.setdefault(person, len(self._ids))
        if row == len(self._ids):
            self._ids.append(person)
            if row == self._step * len(self._blocks):
                self._blocks.append(np.zeros((self._step, self._size), np.float32))
        self._blocks[row // self._step][row % self._step] = vector

    def drop(self, person: str) -> None:
        """Forget a person, of whom nothing stays in memory; one who is not there is no mistake."""
        row = self._rows.pop(person, None)
        if row is None:
            return
        last = len(self._ids) - 1
        moved = self._ids.pop()
        if row != last:
            self._blocks[row // self._step][row % self._step] = self._blocks[last // self._step][last % self._step]
            self._ids[row], self._rows[moved] = moved, row
        self._blocks[last // self._step][last % self._step] = 0
        if last == self._step * (len(self._blocks) - 1):
            self._blocks.pop()

    def everybody(self) -> tuple[list[str], Features]:
        """Return all people with their vectors, a row each, as a copy."""
        return list(self._ids), np.concatenate([np.zeros((0, self._size), np.float32), *self._blocks])[: len(self)]

    def search(self, faces: Features, most: int) -> list[list[Hit]]:
        """Return for each face the most similar people, the most similar first, with their similarities."""
        found: list[list[Hit]] = []
        for start in range(0, len(faces), AT_ONCE):
            found += self._search(np.ascontiguousarray(faces[start : start + AT_ONCE], np.float32), most)
        return found

    def _search(self, faces: Features, most: int) -> list[list[Hit]]:
        best: Features = np.full((len(faces), 0), 0, np.float32)
        rows: NDArray[np.int64] = np.zeros((len(faces), 0), np.int64)
        for number, block in enumerate(self._blocks):
            filled = min(self._step, len(self._ids) - number * self._step)
            similarity = _product(faces, block[:filled])
            if best.shape[1] == most and not (similarity.max(axis=1) > best.min(axis=1)).any():
                continue
            here = _highest(similarity, most)
            rows = np.concatenate([rows, here + number * self._step], axis=1)
            best = np.concatenate([best, np.take_along_axis(similarity, here, axis=1)], axis=1)
            kept = _highest(best, most)
            best, rows = np.take_along_axis(best, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
        order = np.argsort(-best, axis=1, kind="stable")
        return [
            [(self._ids[row], float(value)) for row, value in zip(some[at], values[at], strict=True)]
            for some, values, at in zip(rows, best, order, strict=True)
        ]


def _product(faces: Features, block: Features) -> Features:
    if len(faces) == 1:
        return np.asarray((block @ faces[0])[None])  # one pass over the block, without a second copy in another order
    return np.asarray(faces @ block.T)


def _highest(values: Features, most: int) -> NDArray[np.int64]:
    """Return where the highest values of each row are, in any order."""
    if values.shape[1] <= most:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape)
    return np.argpartition(values, -most, axis=1)[:, -most:]
