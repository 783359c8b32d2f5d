"""Names of shipped files, such as ``demo/fedpad``, which stand wherever the path of a recipe or study can."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path

from fedvisage.errors import UserError

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
