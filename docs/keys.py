"""Writes the tables of recipe keys into the pages, from pydantic's models and the docstring below each key.

``make reference`` runs it. A table is between the comments ``<!-- keys: training -->`` and ``<!-- end of keys -->``; a
test compares it with the code.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))  # this runs as a script

from docs.website import papers, sections  # noqa: E402
from docs.website.markdown import table  # noqa: E402

from fedvisage.methods import ALGORITHMS, METHODS, MODELS, on  # noqa: E402
from fedvisage.recipe import MethodOptions, Recipe, Section  # noqa: E402

BLOCK = re.compile(r"(<!-- keys: (.+?) -->\n).*?(<!-- end of keys -->)", re.DOTALL)
HEAD = ("key", "default", "may be", "meaning")
OF_METHODS = DOCS / "method-keys.md"
TOP = """\
# Keys of methods

What a recipe's section `method` can say beside `name`, by the file that declares it, written from the code by
`make reference`. Keys of all other sections are on the page of [recipe keys](recipe-keys.md). Where a method has a
default of its own, its page on the website (`make docs`) and `RUN/recipe.yaml` have that.
"""


def table_of(prefixes: str) -> str:
    """Return the table of the keys below some sections, such as ``training`` or ``federation -federation.dp``."""
    wanted = [each for each in prefixes.split() if not each.startswith("-")]
    without = [each[1:] for each in prefixes.split() if each.startswith("-")]
    rows = [row for row in sections.rows(Recipe) if within(row[0], wanted) and not within(row[0], without)]
    return table(HEAD, shorten(rows))


def shorten(rows: list[sections.Row]) -> list[sections.Row]:
    """Return the rows, with one row for each section that has the same keys as an earlier one."""
    first: dict[tuple[tuple[str, ...], ...], str] = {}
    defaults = {row[0]: row[1] for row in rows}
    short: list[sections.Row] = []
    like = "."
    for number, (key, default, may_be, meaning) in enumerate(rows):
        if key.startswith(like):
            continue
        inner = [row for row in rows[number + 1 :] if row[0].startswith(f"{key[:-1]}.")]
        model = first.setdefault(tuple((row[0][len(key) :], *row[2:]) for row in inner), key) if inner else key
        if model != key:
            like = f"{key[:-1]}."
            own = {row[0]: row[1] for row in inner if row[1] != defaults[sibling(row[0], key, model)]}
            listed = ", ".join(f"`{name[len(key) :]} {value}" for name, value in own.items())
            may_be, meaning = f"like {model}", f"{meaning} Other defaults: {listed}." if own else meaning
        short.append((key, default, may_be, meaning))
    return short


def sibling(key: str, section: str, other: str) -> str:
    """Return the key of the same name in another section."""
    return f"{other[:-1]}{key[len(section) - 1 :]}"


def covers(row: str, key: str) -> bool:
    """Return whether a row of a table explains a key, by itself or as a section like an earlier one."""
    name, _, rest = row.removeprefix("| `").partition("` |")
    return key == name or (key.startswith(f"{name}.") and "| like `" in rest)


def within(key: str, places: list[str]) -> bool:
    """Return whether a key is one of these or below one."""
    return any(f"{key.strip('`')}.".startswith(f"{number}.") for number in places)


def fill(page: str) -> str:
    """Return a page with new tables."""
    return BLOCK.sub(lambda block: f"{block[1]}{table_of(block[2])}{block[3]}", page)


def pages() -> dict[Path, str]:
    """Return the pages with such tables, and their present texts."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    return {path: text for path, text in texts.items() if BLOCK.search(text)}


def of_methods() -> str:
    """Return the page of methods' keys."""
    return "\n".join([TOP, *(block for kind in declaring() for block in keys_of(kind))])


def all_options() -> list[type[MethodOptions]]:
    """Return the options of all methods, and of all algorithms on all models."""
    kinds = [method.options for method in METHODS.values()]
    return list(dict.fromkeys([*kinds, *(on(name, model).options for name in ALGORITHMS for model in MODELS)]))


def declaring() -> list[type[Section]]:
    """Return the options that declare keys of their own, each once."""
    kinds: dict[type[Section], None] = {}
    for options in all_options():
        for kind in options.__mro__:
            if issubclass(kind, MethodOptions) and kind is not MethodOptions and own_keys(kind):
                kinds[kind] = None
    return sorted(kinds, key=lambda kind: (not kind.__module__.endswith("averaging"), kind.__module__, kind.__name__))


def own_keys(kind: type[Section]) -> set[str]:
    """Return the keys that a section declares itself; none if it was composed of others by a call."""
    if not hasattr(importlib.import_module(kind.__module__), kind.__name__):
        return set()
    return set(vars(kind).get("__annotations__", {})) & set(kind.model_fields)


def keys_of(kind: type[Section]) -> Iterator[str]:
    """Yield the heading and table of the options that one module declares."""
    own = own_keys(kind)
    rows = [row for row in sections.rows(kind) if row[0].strip("`").split(".")[0] in own]
    users = [method.name for method in METHODS.values() if issubclass(method.options, kind)]
    title = papers.account(importlib.import_module(kind.__module__)).title.split(":")[0]
    yield f"## {title} (`{kind.__module__.removeprefix('fedvisage.')}`)\n"
    yield f"Methods: {', '.join(f'`{name}`' for name in users) or 'what algorithms make of it'}.\n"
    yield table(HEAD, rows)


def main() -> None:
    """Write all tables."""
    for path, text in pages().items():
        path.write_text(fill(text), encoding="utf-8")
    OF_METHODS.write_text(of_methods(), encoding="utf-8")


if __name__ == "__main__":
    main()
