"""Small packages that add methods, models, datasets or trackers, installed for the time of a test."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedvisage.base import extensions
from fedvisage.methods import on


@contextmanager
def install(
    place: Path, entries: Mapping[str, Mapping[str, str]], files: Mapping[str, str], *, name: str = "mine"
) -> Iterator[None]:
    """Write a distribution of version 1.0 to a directory on the path, and forget its modules at the end.

    ``entries`` has the entry points of each group, and ``files`` the text of each file.
    """
    lines = [
        (f"[fedvisage.{group}]", *(f"{key} = {value}" for key, value in names.items()))
        for group, names in entries.items()
    ]
    metadata = f"{name}-1.0.dist-info"
    content = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{metadata}/entry_points.txt": "\n".join(line for group in lines for line in group),
        f"{metadata}/RECORD": "".join(f"{path},,\n" for path in files),
    }
    for path, text in content.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setattr(sys, "dont_write_bytecode", True)  # a later test may write a file of the same size
        _forget_entries()
        try:
            yield
        finally:
            _forget_entries()
            for module in set(sys.modules) - before:
                if str(getattr(sys.modules[module], "__file__", "")).startswith(f"{place}/"):
                    del sys.modules[module]


def _forget_entries() -> None:
    extensions._entries.cache_clear()
    on.cache_clear()
