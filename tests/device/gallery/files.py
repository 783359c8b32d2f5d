"""Galleries with random faces, and edits of their files without the key."""

import sqlite3
from pathlib import Path

import numpy as np

from fedvisage.device.gallery.search import Gallery
from fedvisage.metrics.similarity import Features, normalise

KEY, MODEL, NEWER = bytes(range(32)), "sha256:" + "a" * 64, "sha256:" + "b" * 64


def random_faces(seed: int, count: int = 1, size: int = 16) -> Features:
    return normalise(np.random.default_rng(seed).standard_normal((count, size)))


def open_gallery(path: Path, key: bytes = KEY, counters: str = "counters") -> Gallery:
    """Open a gallery whose counter is in a folder beside it."""
    return Gallery(path, key, counters=path.parent / counters)


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements on the file of a gallery, as another program could, and return the rows of the last one."""
    plain = sqlite3.connect(path)
    rows: list[tuple[object, ...]] = []
    for statement in statements:
        rows = plain.execute(statement).fetchall()
    plain.commit()
    plain.close()
    return rows
