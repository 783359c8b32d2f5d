"""Shipped recipes and studies: their names, such as ``demo/fedpad``, usable wherever a path is; copies and the list."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.recipe import plain_yaml

ROOT = Path(__file__).parent / "recipes"
ENDING = ".yaml"
STUDIES = "studies"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all shipped files: paths below ``recipes`` without their ending."""
    return tuple(sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob(f"*{ENDING}")))


def locate(name_or_path: str | Path, beside: Path = Path(), *, verb: str = "") -> Path:
    """Return the requested file: an existing one relative to ``beside``, or the shipped one of this name.

    Only the entries of :func:`names` are shipped names, so no name leads out of the package. With a ``verb``, the file
    must be one that the verb runs; for ``study`` the folder of studies may be omitted.
    """
    path = beside / name_or_path
    with suppress(OSError):  # not a valid file name
        if path.exists() and not path.is_dir():
            return path
    name = plain_name(name_or_path)
    if verb == "study" and name not in names() and f"{STUDIES}/{name}" in names():
        name = f"{STUDIES}/{name}"
    if name in names():
        right = "study" if name.startswith(f"{STUDIES}/") else "run"
        if verb not in ("", right):
            raise UserError(str(name_or_path), f"cannot be used with {verb}; run fedvisage {right} {name}")
        return file_of(name)
    raise UserError(str(name_or_path), f"not found: neither a file nor a shipped recipe or study{_did_you_mean(name)}")


def find(requested: str) -> str:
    """Return the requested shipped name; files in the current directory are ignored."""
    name = plain_name(requested)
    if name not in names():
        raise UserError(requested, f"no shipped recipe or study has that name{_did_you_mean(name)}")
    return name


def file_of(name: str) -> Path:
    """Return the file of a shipped name."""
    return ROOT / f"{name}{ENDING}"


def plain_name(requested: str | Path) -> str:
    """Return a name in the form of :func:`names`, from the form used in the repository."""
    return Path(requested).as_posix().removeprefix("recipes/").removesuffix(ENDING)


def _did_you_mean(name: str) -> str:
    last = name.rpartition("/")[2]
    equal = [shipped for shipped in names() if shipped.rpartition("/")[2] == last]
    endings = {shipped.rpartition("/")[2]: shipped for shipped in reversed(names())}
    by_last = [endings[ending] for ending in get_close_matches(last, endings, n=3)]
    near = equal or get_close_matches(name, names(), n=3) or by_last
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{hint} (`fedvisage recipes` lists them)"


# Copies of shipped recipes and studies. A study names other files relative to itself; the copy uses their shipped names
# instead, so it works in any directory.

_FILE = re.compile(r"[\w./-]+\.yaml\b")


def copy_out(requested: str, destination: Path | None) -> Path:
    """Write a copy of the named recipe or study to a file, or into a directory, and return its path."""
    name = find(requested)
    file_name = Path(f"{posixpath.basename(name)}{ENDING}")
    path = file_name if destination is None else destination / file_name if destination.is_dir() else destination

    def rename(match: re.Match[str]) -> str:
        other = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[0])).removesuffix(ENDING)
        return other if other in names() else match[0]

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_FILE.sub(rename, file_of(name).read_text(encoding="utf-8")))
    except FileExistsError as error:
        raise UserError(str(path), "exists already; give another path, or remove it first") from error
    return path


# The list of ``fedvisage recipes``. Files without a title are parts of studies, such as printed tables: they can be
# named and copied, but are not listed.


@dataclass(frozen=True)
class ShippedFile:
    """One line of the list."""

    name: str
    kind: str
    title: str
    task: str
    method: str | None


def entries() -> list[ShippedFile]:
    """Return all recipes and studies, in the order of their names."""
    files = []
    for name in names():
        tree = _tree(file_of(name))
        if "title" not in tree:
            continue
        method = tree.get("method")
        if method is None:
            kind, people = "study", _study_value(file_of(name), "public") is not None
        else:  # public people or a named face network show recognition, without loading the method
            network = method.get("network", {}) if isinstance(method, dict) else {}
            kind, people = "recipe", tree["data"].get("public") is not None or "name" in network
        method_name = None if method is None else str(method["name"] if isinstance(method, dict) else method)
        files.append(ShippedFile(name, kind, tree["title"], "recognition" if people else "pad", method_name))
    return files


def as_lines(files: Sequence[ShippedFile]) -> list[str]:
    """Return the list as text lines: recipes, then studies."""
    width = max((len(entry.name) for entry in files), default=0)
    lines = []
    for kind, heading in (("recipe", "Recipes"), ("study", "Studies")):
        rows = [f"  {entry.name:{width}}  {entry.task:11}  {entry.title}" for entry in files if entry.kind == kind]
        lines += [heading, *rows]
    return lines


def _study_value(path: Path, key: str) -> Any:
    """Return a study's value of a key, from the file itself or from the files in its ``like``."""
    tree = _tree(path)
    if key in tree:
        return tree[key]
    like = tree.get("like", [])
    values = [_study_value(path.parent / name, key) for name in ([like] if isinstance(like, str) else like)]
    return next((value for value in reversed(values) if value is not None), None)


@cache
def _tree(path: Path) -> dict[str, Any]:
    tree = plain_yaml.read_file(path)
    return tree if isinstance(tree, dict) else {}
