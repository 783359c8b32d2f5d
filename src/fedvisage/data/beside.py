"""The lists that lie beside a prepared set: which pairs of its images, or of its templates, a benchmark asks.

A list is called after the set: ``lfw-pairs.txt`` and ``cfp-pairs-fp.txt`` are lists of pairs beside ``lfw`` and
``cfp``. A set whose images are of templates (IJB) has ``ijbc-templates-pairs.txt``, ``ijbc-templates-gallery-g1.txt``
and so on for each gallery, and ``ijbc-templates-probes.txt``.
"""

from __future__ import annotations

from pathlib import Path

PAIRS, OF_TEMPLATES = "-pairs", "-templates"
ENDING = ".txt"


def list_beside(directory: Path, kind: str, which: str = "") -> Path:
    """Return where a list of a set lies."""
    return directory.with_name(f"{directory.name}{kind}{f'-{which.lower()}' if which else ''}{ENDING}")


def lists_beside(directory: Path, kind: str) -> dict[str, Path]:
    """Return the lists of a kind that lie beside a set, by what stands behind the kind: nothing for the only one."""
    whole = directory.absolute()
    begin, found = f"{whole.name}{kind}", {}
    for path in sorted(whole.parent.iterdir()) if whole.parent.is_dir() else ():
        rest = path.name.removeprefix(begin).removesuffix(ENDING)
        if path.name == f"{begin}{rest}{ENDING}" and rest[:1] in ("", "-") and path.is_file():
            found[rest.removeprefix("-")] = path
    return found
