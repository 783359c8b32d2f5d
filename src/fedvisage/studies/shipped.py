"""Names of shipped files, such as ``demo/fedpad``, which stand wherever the path of a recipe or study can."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
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


def locate(given: str | Path, beside: Path = Path(), *, verb: str = "") -> Path:
    """Return the file that is meant: a real one relative to ``beside``, or else the shipped one of this name.

    Only what :func:`names` lists is a shipped name, so no name leads out of the package. With a ``verb`` it must be
    one that the verb runs; all studies lie in one folder, which ``study`` need not be told.
    """
    path = beside / given
    if _is_there(path):
        return path
    name = plain(given)
    if verb == "study" and name not in names() and f"{STUDIES}/{name}" in names():
        name = f"{STUDIES}/{name}"
    if name in names():
        right = "study" if name.startswith(f"{STUDIES}/") else "run"
        if verb not in ("", right):
            raise UserError(str(given), f"is not for {verb}; call fedvisage {right} {name}")
        return file_of(name)
    raise UserError(str(given), f"is no file, and no shipped recipe or study is called so{_meant(name)}")


def _is_there(path: Path) -> bool:
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # a name that no file can have
        return False


def find(given: str) -> str:
    """Return the shipped name that is meant; files in the current directory do not count."""
    name = plain(given)
    if name not in names():
        raise UserError(given, f"no shipped recipe or study is called so{_meant(name)}")
    return name


def file_of(name: str) -> Path:
    """Return the file of a shipped name."""
    return ROOT / f"{name}{ENDING}"


def plain(given: str | Path) -> str:
    """Return a name as :func:`names` writes it, from one that is written as in the repository."""
    return Path(given).as_posix().removeprefix("recipes/").removesuffix(ENDING)


def _meant(name: str) -> str:
    last = name.rpartition("/")[2]
    equal = [known for known in names() if known.rpartition("/")[2] == last]
    near = equal or get_close_matches(name, names(), n=3) or _near_by_last(last)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{hint} (`fedvisage recipes` lists them)"


def _near_by_last(last: str) -> list[str]:
    endings = {known.rpartition("/")[2]: known for known in reversed(names())}
    return [endings[ending] for ending in get_close_matches(last, endings, n=3)]


# Copying a shipped recipe or study to a file of one's own.
#
# A study names other files relative to itself. In the copy they get their shipped names, so it works in any
# directory.


_FILE = re.compile(r"[\w./-]+\.yaml\b")


def copy_out(given: str, destination: Path | None) -> Path:
    """Write a copy of what has this name to a file, or into a directory, and return where it is."""
    name = find(given)
    own = Path(f"{posixpath.basename(name)}{ENDING}")
    path = own if destination is None else destination / own if destination.is_dir() else destination
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(with_shipped_names(file_of(name).read_text(encoding="utf-8"), posixpath.dirname(name)))
    except FileExistsError as error:
        raise UserError(str(path), "exists already; give another place, or remove it first") from error
    return path


def with_shipped_names(text: str, folder: str) -> str:
    """Return the text of a file of this folder with the shipped names of the files that it names."""

    def renamed(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, match[0])).removesuffix(ENDING)
        return name if name in names() else match[0]

    return _FILE.sub(renamed, text)


# What ``fedvisage recipes`` says: every shipped recipe and study with its title and task.
#
# Files without a title are parts of studies, such as printed tables. They can be named and copied, and are not
# listed.


@dataclass(frozen=True)
class Entry:
    """One line of the list."""

    name: str
    kind: str
    title: str
    task: str
    method: str | None


def entries() -> list[Entry]:
    """Return all recipes and studies, in the order of their names."""
    return [_entry(name) for name in names() if "title" in _tree(file_of(name))]


def as_lines(found: Sequence[Entry]) -> list[str]:
    """Return the list for people: recipes, then studies."""
    width = max((len(entry.name) for entry in found), default=0)
    lines = []
    for kind, heading in (("recipe", "Recipes"), ("study", "Studies")):
        rows = [f"  {entry.name:{width}}  {entry.task:11}  {entry.title}" for entry in found if entry.kind == kind]
        lines += [heading, *rows]
    return lines


def _entry(name: str) -> Entry:
    tree = _tree(file_of(name))
    method = tree.get("method")
    kind = "study" if method is None else "recipe"
    people = _says(file_of(name), "public") is not None if kind == "study" else _is_of_people(tree)
    return Entry(name, kind, tree["title"], "recognition" if people else "pad", _method_name(method))


def _is_of_people(recipe: dict[str, Any]) -> bool:
    """Tell a recipe for recognition without loading its method: it has public people, or names a network for faces."""
    method = recipe["method"]
    network = method.get("network", {}) if isinstance(method, dict) else {}
    return recipe["data"].get("public") is not None or "name" in network


def _method_name(method: Any) -> str | None:
    return None if method is None else str(method["name"] if isinstance(method, dict) else method)


def _says(path: Path, key: str) -> Any:
    """Return what a study says under a key, itself or through the files that it is like."""
    tree = _tree(path)
    if key in tree:
        return tree[key]
    like = tree.get("like", [])
    said = [_says(path.parent / name, key) for name in ([like] if isinstance(like, str) else like)]
    return next((value for value in reversed(said) if value is not None), None)


@cache
def _tree(path: Path) -> dict[str, Any]:
    tree = plain_yaml.read_file(path)
    return tree if isinstance(tree, dict) else {}
