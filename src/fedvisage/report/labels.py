"""Short names for groups of runs: the method, and what of the recipes differs; what is long stands in a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from fedvisage.report.members import Settings

LONG = 32
WITHOUT_MEANING = ("name", "default")
"""Last words of keys that say nothing alone: `training.optimizer.name` is called optimizer."""
_WORDS = {"None": "none", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Label:
    """What a group is called, and what that stands for where it is not all said."""

    text: str
    stands_for: str = ""


def labels_of(groups: Sequence[Settings]) -> dict[Settings, Label]:
    """Name each group by its method and the settings in which groups differ.

    A method's own options count among groups of that method only: others do not have them.
    """
    trees = {settings: dict(settings) for settings in groups}
    method = {settings: tree.get("method.name", "run") for settings, tree in trees.items()}
    everywhere = [key for key in _differing(list(trees.values())) if not key.startswith("method.")]
    labels, shortened = {}, []
    for settings, tree in trees.items():
        rivals = [trees[other] for other in groups if method[other] == method[settings]]
        own = [key for key in _differing(rivals) if key.startswith("method.")]
        names = {key: name for key, name in short_names([*own, *everywhere]).items() if key in tree}
        said = ", ".join(f"{name} {_WORDS.get(tree[key], tree[key])}" for key, name in names.items())
        label = Label(f"{method[settings]} · {said}" if said else method[settings])
        if len(label.text) > LONG:
            shortened.append(settings)
            label = Label(method[settings], ", ".join(f"{key}={tree[key]}" for key in names))
        labels[settings] = label
    return _told_apart(labels, shortened)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of each dotted key that no other key has."""
    parts = {key: _meaning(key.split(".")) for key in keys}
    names = {}
    for key, own in parts.items():
        ends = (own[-length:] for length in range(1, len(own) + 1))
        others = [other for name, other in parts.items() if name != key]
        alone = (end for end in ends if all(other[-len(end) :] != end for other in others))
        names[key] = ".".join(next(alone, key.split(".")))
    return names


def _meaning(parts: list[str]) -> list[str]:
    return parts[:-1] if len(parts) > 1 and parts[-1] in WITHOUT_MEANING else parts


def _differing(trees: Sequence[Mapping[str, str]]) -> list[str]:
    keys = sorted({key for tree in trees for key in tree})
    return [key for key in keys if key != "method.name" and len({tree.get(key) for tree in trees}) > 1]


def _told_apart(labels: dict[Settings, Label], shortened: Sequence[Settings]) -> dict[Settings, Label]:
    """Give letters to groups that were shortened to one text."""
    texts = [label.text for label in labels.values()]
    letters = iter([*ascii_uppercase, *map(str, range(1, len(labels) + 1))])
    return {
        settings: Label(f"{label.text} · {next(letters)}", label.stands_for)
        if settings in shortened and texts.count(label.text) > 1
        else label
        for settings, label in labels.items()
    }
