"""Reads the five points of photographs from lists that come with datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers import pictures
from fedvisage.datasets.scanners.tree import Tree, ending_of, without_ending
from fedvisage.errors import UserError

_TRIED = 1000
"""Lines by which the order of a list's numbers is told."""

_ENOUGH = 0.8
"""The share of them that must be faces in that order: heads are turned."""

Points = NDArray[np.float64]


def points_of(tree: Tree, lists: Sequence[str]) -> Mapping[str, Points]:
    """Read lists whose lines end in ten numbers: five points, or five places across and five down.

    A photograph is known by its folder and its name without ending, which the first field ends in.
    """
    found: dict[str, Points] = {}
    for name in lists:
        rows = dict(_rows(tree, name))
        some = np.array([*islice(rows.values(), _TRIED)])
        pairs, columns = some.reshape(-1, 5, 2), some.reshape(-1, 2, 5).transpose(0, 2, 1)
        if _faces(pairs) < _ENOUGH and _faces(columns) < _ENOUGH:
            raise UserError(str(tree.path(name)), "has ten numbers a line that are not the five points of faces: eyes,"
                            " nose, corners of the mouth, from left to right and from above")  # fmt: skip
        by_pairs = _faces(pairs) >= _faces(columns)
        found |= {one: row.reshape(5, 2) if by_pairs else row.reshape(2, 5).T for one, row in rows.items()}
    return found


def _rows(tree: Tree, name: str) -> list[tuple[str, Points]]:
    rows = []
    for at, (number, line) in enumerate(tree.lines(name)):
        fields = line.replace(",", " ").replace('"', " ").split()
        try:
            values = np.array([float(one) for one in fields[-10:]])
        except ValueError:
            values = np.empty(0)
        if len(fields) < 11 or len(values) != 10 or not np.isfinite(values).all():
            if at == 0:
                continue  # the names of columns
            raise UserError(f"{tree.path(name)}, line {number}", "must be a photograph's name and ten numbers")
        whole = without_ending(fields[0]) if ending_of(fields[0]) in pictures.ENDINGS else fields[0]
        rows.append(("/".join(whole.split("/")[-2:]), values))
    if not rows:
        raise UserError(str(tree.path(name)), "has no points")
    return rows


def _faces(points: Points) -> float:
    """Return the share of points that stand as a face's do: eyes above the mouth, each with its left one first."""
    x, y = points[..., 0], points[..., 1]
    upright = (x[:, 0] < x[:, 1]) & (x[:, 3] < x[:, 4]) & (y[:, :2].max(axis=1) < y[:, 3:].min(axis=1))
    return float(upright.mean())
