"""What a shell offers where a recipe, a study or a shipped name belongs: it must be quick and import nothing heavy."""

from __future__ import annotations

from pathlib import Path


def recipe_files(incomplete: str) -> list[str]:
    """Return the recipes that begin so: shipped ones, and files of the user with the directories on the way."""
    return [name for name in shipped_names(incomplete) if not name.startswith("studies/")] + _own_files(incomplete)


def study_files(incomplete: str) -> list[str]:
    """Return the studies that begin so, shipped ones, whose folder can be left out, and the user's."""
    named = [name for name in shipped_names(incomplete) if name.startswith("studies/")]
    alone = [name.removeprefix("studies/") for name in shipped_names(f"studies/{incomplete}")] if incomplete else []
    return named + alone + _own_files(incomplete)


def shipped_names(incomplete: str) -> list[str]:
    """Return the shipped names that begin so."""
    from fedvisage.shipped import names

    return [name for name in names() if name.startswith(incomplete)]


def _own_files(incomplete: str) -> list[str]:
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = sorted(path for path in Path(f"{folder}{slash}").iterdir() if path.name.startswith(start))
    except OSError:
        return []
    shown = [path for path in found if not path.name.startswith(".") or start.startswith(".")]
    files = [f"{folder}{slash}{path.name}" for path in shown if path.suffix in (".yaml", ".yml")]
    return files + [f"{folder}{slash}{path.name}/" for path in shown if path.is_dir()]
