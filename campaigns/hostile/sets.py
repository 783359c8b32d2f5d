"""Hostile prepared sets, and folders of pictures to import.

The check of a set uses ``csv``, ``json`` and ``hashlib`` and follows docs/decisions/0002-prepared-sets.md. An import
may accept pictures that are regular files in the folder, and nothing outside of it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from campaigns.hostile.case import Case, WronglyAccepted, pick
from campaigns.hostile.files import is_small, mutate_json, mutate_table, replace_file
from campaigns.hostile.pictures import mutate_folder
from PIL import Image
from tests.datasets.importers.files import make_folder, save_video
from tests.toy import make_people, make_set

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.show import describe

LARGEST = 64
"""Side of the valid pictures in pixels."""


class Sets:
    """A set for attack detection, an identity set, and a folder of pictures with a video."""

    def __init__(self, prepared: Path) -> None:
        """Create them."""
        self.sets = [make_set(prepared / "faces", "faces", 0, subjects=4, frames=1)]
        self.sets.append(make_people(prepared / "people", "people", 1))
        self.folder = make_folder(prepared / "folder", subjects=3, images=2)
        save_video(self.folder / "real" / "s0" / "clip.avi", 4)
        labels = "\n".join(
            f"{path.relative_to(self.folder).as_posix()},{int('real' in path.parts)}"
            for path in sorted(self.folder.rglob("*.png"))
        )
        (self.folder / "labels.csv").write_text(f"path,label\n{labels}\n")

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Mutate a set, or a folder to import."""
        if draws.random() < 0.6:
            path = place / "set"
            shutil.copytree(pick(draws, self.sets), path)
            changes = [mutate_set(path, draws) for _ in range(int(draws.integers(1, 3)))]
            verify = bool(draws.random() < 0.5)
            return Case(["set", *changes], partial(_check_set, path, verify))
        root = place / "folder"
        shutil.copytree(self.folder, root)
        changes = [mutate_folder(root, draws) for _ in range(int(draws.integers(1, 4)))]
        if draws.random() < 0.15:
            changes.append(_mutate_text(root / "labels.csv", mutate_table, draws))
        name = "set" if draws.random() < 0.9 else pick(draws, ("../set", "", "a\x1b[2J", "n" * 300, "half \ud800", "."))
        return Case(["folder", *changes], partial(_check_import, root, place / "made", name))


def mutate_set(path: Path, draws: np.random.Generator) -> str:
    """Change a file of a set, and often its size and digest in ``set.json``, as an attacker would."""
    file = path / pick(draws, ("set.json", "rows.csv", "rows.csv", "images.npy", "depth.npy", "points.npy"))
    if not file.is_file():
        file = path / "images.npy"
    if not is_small(file):
        return "nothing"
    if draws.random() < 0.1:
        return f"{file.name} {replace_file(file, draws)}"
    if file.name == "set.json":
        return f"set.json {_mutate_text(file, mutate_json, draws)}"
    try:
        changes = _mutate_text(file, mutate_table, draws) if file.suffix == ".csv" else mutate_array(file, draws)
    except Exception:  # mutated before: NumPy parses the header as Python, which can raise any exception
        return "nothing"
    if draws.random() < 0.6:
        _update_digest(path, file)
        changes += " forged"
    return f"{file.name} {changes}"


def _mutate_text(
    file: Path, change: Callable[[str, np.random.Generator], tuple[str, str]], draws: np.random.Generator
) -> str:
    try:
        changes, text = change(file.read_text(encoding="utf-8"), draws)
    except (ValueError, OSError):
        return "nothing"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return changes


def _update_digest(path: Path, file: Path) -> None:
    """Write size and digest of a changed file into ``set.json``, unless that file was replaced."""
    if not is_small(path / "set.json"):
        return
    try:
        tree = json.loads((path / "set.json").read_text(encoding="utf-8"))
        data = file.read_bytes()
        tree["files"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (path / "set.json").write_text(json.dumps(tree))
    except (ValueError, OSError, KeyError, TypeError):
        return


HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"|u1", b"|O8"),
    (b"|u1", b"<f8"),
    (b"|u1", b"<U9"),
    (b"False", b"True "),
    (b"(", b"(-"),
    (b"(12", b"(99"),
    (b"'shape'", b"'form' "),
    (b"{", b"["),
    (b"<f4", b"|O "),
    (b"}", b" "),
    (b"(", b"(__import__('os').system('id'),"),
    (b"descr", b"de\xffcr"),
    (b", 3)", b", 3j"),
    (b"{", b"{" * 60),
    (b"(", b"(" * 60),
    (b"|u1", b"|V1"),
)


def mutate_array(file: Path, draws: np.random.Generator) -> str:
    """Change an array file: its header, its values, or its format."""
    data, way = (
        file.read_bytes(),
        pick(draws, ("header", "header", "bytes", "values", "cut", "pickle", "archive", "length", "version")),
    )
    if way == "header":
        old, new = pick(draws, HEADERS)
        head, body = data[:128], data[128:]
        changed = head.replace(old, new, 1)
        room = len(head) - 10
        text = changed[10:][:room] if len(changed) > len(head) and draws.random() < 0.5 else changed[10:]
        data = changed[:8] + len(text).to_bytes(2, "little") + text + body
    elif way == "bytes":
        raw = bytearray(data)
        for _ in range(int(draws.integers(1, 9))):
            raw[int(draws.integers(min(len(raw), 200)))] = int(draws.integers(256))
        data = bytes(raw)
    elif way == "values":
        values = np.load(file)
        values.reshape(-1)[int(draws.integers(values.size))] = (
            pick(draws, (0, 255)) if values.dtype == np.uint8 else pick(draws, (np.nan, np.inf, -1e30))
        )
        np.save(file, values)
        return way
    elif way == "cut":
        data = data[: int(draws.integers(len(data)))]
    elif way == "pickle":
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        return way
    elif way == "archive":
        with file.open("wb") as out:
            np.savez(out, images=np.zeros((2, 2), np.uint8))
        return way
    elif way == "length":
        data = data[:8] + int(pick(draws, (0, 1, 0xFFFF, 117))).to_bytes(2, "little") + data[10:]
    else:
        data = data[:6] + bytes([int(draws.integers(256)), int(draws.integers(256))]) + data[8:]
    file.write_bytes(data)
    return way


def _check_set(path: Path, verify: bool) -> None:
    prepared = PreparedSet.open(path, verify=verify)
    describe(prepared)
    np.asarray(prepared.images[:: max(1, len(prepared) // 4)]).sum()
    check_files(path, digests=verify)


def check_files(path: Path, *, digests: bool) -> None:
    """Check a set without the code that opens sets."""
    tree = json.loads((path / "set.json").read_bytes())
    for name, entry in tree["files"].items():
        file = path / name
        if file.is_symlink() or not file.is_file() or file.stat().st_size != entry["bytes"]:
            raise WronglyAccepted(f"{name} is not the file of which set.json speaks")
        if digests and hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
            raise WronglyAccepted(f"{name} is not the one whose digest is in set.json")
    if not isinstance(tree["name"], str) or not tree["name"].isprintable():
        raise WronglyAccepted(f"is called {tree['name']!r}")
    rows = list(csv.DictReader(StringIO((path / "rows.csv").read_text(encoding="utf-8"), newline="")))
    images = np.load(path / "images.npy", mmap_mode="r", allow_pickle=False)
    if not len(rows) == len(images) == tree["count"]:
        raise WronglyAccepted(f"has {len(rows)} rows, {len(images)} images, says {tree['count']}")
    if images.dtype != np.uint8 or images.shape[1:] != (tree["size"], tree["size"], 3):
        raise WronglyAccepted(f"has images of {images.dtype} and {images.shape}")
    _check_rows(rows)
    if "points.npy" in tree["files"] and not np.isfinite(np.load(path / "points.npy")).all():
        raise WronglyAccepted("has points that are no numbers")


def _check_rows(rows: list[dict[str, Any]]) -> None:
    splits: dict[str, set[str]] = {}
    for row in rows:
        if row["label"] not in ("0", "1") or (row["label"] == "1") != (row["species"] == "bonafide"):
            raise WronglyAccepted(f"has an image of label {row['label']!r} and species {row['species']!r}")
        item = row["item"]
        if item.startswith("/") or ".." in item.split("/") or "\\" in item or not item.isprintable() or not item:
            raise WronglyAccepted(f"has an item {item!r}")
        if row["split"] not in ("train", "heldout", "test") or not 0 <= int(row["frame"]) < 2**31:
            raise WronglyAccepted(f"has a split {row['split']!r} or a frame {row['frame']!r}")
        splits.setdefault(row["subject"], set()).add(row["split"])
    if any("heldout" in names and len(names) > 1 for names in splits.values()):
        raise WronglyAccepted("has a subject in heldout and in another split")
    items = [row["item"] for row in rows]
    if len(set(items)) < len(items):
        raise WronglyAccepted("has an item twice")


def _check_import(root: Path, destination: Path, name: str) -> None:
    before = set(root.parent.iterdir())
    report = import_items(
        SCANNERS["folder"], root, destination, ImportOptions(size=24, max_bad=1.0, crop="centre", frames="2"), name=name
    )
    if extra := set(root.parent.iterdir()) - before - {destination}:
        raise WronglyAccepted(f"made {sorted(map(str, extra))}")
    check_files(destination, digests=True)
    for line in report.lines():
        if not line.isprintable():
            raise WronglyAccepted(f"reports {line[:100]!r}")
    prepared = PreparedSet.open(destination, verify=True)
    for index, item in enumerate(prepared.rows.item.tolist()):
        source = root / item
        while not source.exists() and source != root:
            source = source.parent  # a frame's item starts with its video's name
        if not source.is_file() or not source.resolve().is_relative_to(root.resolve()):
            raise WronglyAccepted(f"took {item!r} from outside of the folder, or from nowhere")
        if source.suffix.lower() == ".png":
            _check_pixels(source, prepared.images[index])


def _check_pixels(source: Path, image: Any) -> None:
    """Compare an imported picture with another reader's pixels, where it needs no scaling."""
    with Image.open(source) as picture:
        if picture.size[0] * picture.size[1] > 64_000_000:
            raise WronglyAccepted(f"took a picture of {picture.size}")
        is_plain = picture.size == (24, 24) and picture.mode == "RGB" and not picture.getexif()
        if is_plain and not np.array_equal(np.asarray(picture), np.asarray(image)):
            raise WronglyAccepted(f"took other pixels than {source.name} has")
