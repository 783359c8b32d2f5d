"""Verification pairs in one file, as InsightFace has LFW, CFP-FP, CFP-FF, AgeDB-30, CALFW, CPLFW and VGG2-FP.

The file says of two pictures whether they are of one person, and not who that is. So every pair has people of its own:
one, or two. What is judged on such a set is its list of pairs, in ten folds in the file's order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvisage.data.pairs import Pair, image_of
from fedvisage.datasets.people.album import Album, Shot, grouped
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.people.lists import FOLDS, consecutive
from fedvisage.datasets.people.pickled import Named, Portion, Refused, outcome
from fedvisage.datasets.people.rec import find_file
from fedvisage.errors import UserError

ENDING = ".bin"

Short = Callable[[Any], bytes]
"""Reads a short text of a file."""


def scan(layout: Layout, source: Path) -> Album:
    """List the pictures of a file and its pairs."""
    path = find_file(source, ENDING, layout)
    pictures, same = read_pickle(path)
    if len(pictures) != 2 * len(same) or not same:
        raise UserError(str(path), f"has {len(pictures):,} pictures for {len(same):,} pairs; a pair has two")
    pairs = [_pair(number, alike) for number, alike in enumerate(same)]
    counts, of = grouped(_shots(layout, path, pictures, pairs))
    notes = (
        f"{len(pairs):,} pairs, {sum(same):,} of one person; who is on them is known within a pair only: judge with"
        " --pairs, and leave the other figures of such a set alone",
    )
    return Album(counts, of, pairs={"": consecutive(pairs, FOLDS)}, notes=notes)


def _pair(number: int, same: bool) -> Pair:
    """Name the pictures of a pair: two of one person, or the first of each of two."""
    name = f"pair{number:06d}"
    return ((name, 1), (name, 2)) if same else ((f"{name}a", 1), (f"{name}b", 1))


def _shots(layout: Layout, path: Path, pictures: Sequence[Portion], pairs: Sequence[Pair]) -> Iterator[Shot]:
    whose = f"{layout.kind}/{path.stem}"
    for place, (name, number) in enumerate(one for pair in pairs for one in pair):
        yield Shot(image_of(name, number), f"{whose}/{name}", pictures[place])


def read_pickle(path: Path) -> tuple[list[Portion], list[bool]]:
    """Return where the pictures of a file are, and its truth values; any other file raises UserError."""
    try:
        with path.open("rb") as file:
            return _as_lists(*outcome(path, file, path.stat().st_size))
    except Refused as refused:
        raise UserError(str(path), f"is no list of pairs in the form of InsightFace's .bin files: {refused}") from None


def _as_lists(value: Any, short: Short) -> tuple[list[Portion], list[bool]]:
    """Return the two lists that a file is about."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(one, list) for one in value):
        raise Refused("it does not hold two lists")
    return [_picture(one, short) for one in value[0]], [_truth(one, short) for one in value[1]]


def _picture(value: Any, short: Short) -> Portion:
    if isinstance(value, Named) and value.name == "_reconstruct":
        _, shape, kind, _, value = _filled(value.state, 5)
        _plain_bytes(shape, kind, value, short)
    elif isinstance(value, Named) and value.name == "_frombuffer":
        value, kind, shape, _ = _filled(value.arguments, 4)
        _plain_bytes(shape, kind, value, short)
    if not isinstance(value, Portion):
        raise Refused("a picture is not bytes")
    return value


def _filled(values: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(values, tuple) or len(values) != count:
        raise Refused("an array is written in a form that is not known")
    return values


def _plain_bytes(shape: Any, kind: Any, content: Any, short: Short) -> None:
    """Refuse an array that is no row of bytes."""
    sizes = [one for one in shape if one != 1] if isinstance(shape, tuple) else None
    if _kind(kind, short) != b"u1" or sizes is None or len(sizes) > 1 or not isinstance(content, Portion):
        raise Refused("a picture is an array that is no row of bytes; keep the encoded file")


def _kind(value: Any, short: Short) -> bytes:
    if not isinstance(value, Named) or value.name != "dtype" or not value.arguments:
        raise Refused("an array has no type that is known")
    return short(value.arguments[0])


def _truth(value: Any, short: Short) -> bool:
    if isinstance(value, Named) and value.name == "scalar" and len(value.arguments or ()) == 2:
        kind, content = value.arguments  # type: ignore[misc]  # there are two
        if _kind(kind, short) == b"b1":
            value = {b"\0": False, b"\1": True}.get(short(content), value)
    if value in (0, 1) and isinstance(value, bool | int):
        return bool(value)
    raise Refused("whether a pair is of one person is neither yes nor no")


def pack(root: Path) -> None:
    """Write a small copy: two pairs of one person, and two of two."""
    from fedvisage.datasets.people.rendered import encoded  # which needs the renderer

    pictures = [encoded(*one) for one in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 0), (0, 0))]
    root.mkdir(parents=True, exist_ok=True)
    (root / "people.bin").write_bytes(write_pickle(pictures, [True, False, True, False]))


def write_pickle(pictures: Sequence[bytes], same: Sequence[bool]) -> bytes:
    """Return the file of some pairs, with the steps that Python 2 used."""
    content = b"".join(b"T" + struct.pack("<i", len(one)) + one for one in pictures)
    return b"\x80\x02](" + content + b"e](" + b"".join(b"\x88" if one else b"\x89" for one in same) + b"e\x86."


LAYOUT = Layout(
    kind="bin",
    title="verification pairs in one file",
    page="https://github.com/deepinsight/insightface/tree/master/recognition/_datasets_",
    expects="lfw.bin                                aligned crops and which pairs are of one person",
    scan=scan,
    file=(".bin", b"\x80("),
    aligned=True,
    benchmark=True,
    pack=pack,
)
