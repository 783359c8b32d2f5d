"""Hostile recipes, studies and federation files: the shipped ones, changed as texts and as trees.

An accepted text has no duplicate keys, only keys of the resolved recipe, and finite numbers; and the resolved recipe,
written and read again, is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from campaigns.hostile.case import Case, WronglyAccepted, pick

from fedvisage.methods import read_method
from fedvisage.nvflare.authority import read_federation
from fedvisage.recipe import Recipe, load, text_of, tree_of
from fedvisage.studies.study import load_study as read_study

SHIPPED = Path(__file__).parents[2] / "recipes"
FEDERATION = """name: faces
server: {host: fed.example.org, port: 8002}
operator: {email: operator@example.org}
sites:
  bank: {organisation: bank}
  border: {organisation: agency}
"""
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, float("nan"), float("inf"), -float("inf"), 1e-320, 0.5, True,
    False,
)  # fmt: skip
TEXTS = (
    "", " ", "no", "~", "null", "../../etc/passwd", "/etc/passwd", "a\x00b", "\x1b[31mred", "x" * 50_000, "\u202e",
    "C/../../D",
    "synth: O, subjects=9999999999", "synth:", "1e3", "0x10", "1_000", "12:30:45", "2020-01-01", "{{7*7}}", "${HOME}",
)  # fmt: skip
LINES = (
    "<<: *nowhere", "a: &a [*a]", "? [1, 2]\n: x", "!!python/object/apply:os.system ['id']", "--- second", "\t- tab",
    "training: {rounds: 3, rounds: 4}", "%YAML 9.9", "key: !!binary aGk=", "x: !!set {a, b}", "- list", "7: seven",
    "null: 1", "[1, 2]: pair", "method: fedpad", "data: {}", "a: 1e999", "x: 0o17", "on: off", "...", "{", "'",
    "\x00", "\ufeff",
)  # fmt: skip


class Recipes:
    """All shipped recipes and studies, and a federation file."""

    def __init__(self, prepared: Path) -> None:
        """Read their texts."""
        recipes = [path for folder in ("demo", "paper") for path in sorted((SHIPPED / folder).glob("*.yaml"))]
        studies = sorted((SHIPPED / "studies").glob("*.yaml"))
        studies = [path for path in studies if "rows" in path.read_text() and "size" not in path.stem]
        self.recipes, self.studies = recipes, studies

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change one file."""
        kind = pick(draws, ("recipe", "recipe", "recipe", "study", "federation"))
        if kind == "federation":
            text = FEDERATION
        else:
            text = pick(draws, self.recipes if kind == "recipe" else self.studies).read_text(encoding="utf-8")
        changes = [kind]
        for _ in range(int(draws.integers(1, 4))):
            way, text = (_mutate_tree if draws.random() < 0.5 else _mutate_text)(text, draws)
            changes.append(way)
        path = place / "file.yaml"
        data = text.encode("utf-8", "surrogatepass")
        if draws.random() < 0.1:
            data = _mutate_bytes(data, draws)
            changes.append("bytes")
        path.write_bytes(data)
        overrides = [pick(draws, OVERRIDES)] if kind == "recipe" and draws.random() < 0.2 else []
        check = {"recipe": partial(_check_recipe, path, overrides), "study": partial(_check_study, path),
                "federation": partial(_check_federation, path)}[kind]  # fmt: skip
        return Case([*changes, *overrides], check)


LOADER, DUMPER = getattr(yaml, "CSafeLoader", yaml.SafeLoader), getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""LibYAML where it is installed, independent of the loader under test."""

DEEP = "[" * 100
MOST_BRANCHES = 5000
"""Branches that a change can choose from; a recursive tree has no end of them."""

OVERRIDES = (
    "training.rounds=5", "training.rounds=NaN", "=", "a.b.c.d=1", "training=5", "data.sites.X/../../Y=synth: O",
    "method.name=[",
    "training.rounds=" + "[" * 5000, "runtime.seed=1e400", "..=1", "training.rounds.=1",
    "data.sites.bank=!!python/name:os.system",
)  # fmt: skip


def _check_recipe(path: Path, overrides: list[str]) -> None:
    recipe = load(path, overrides, read_method)
    _check_resolved(recipe, path, overrides)


def _check_resolved(recipe: Recipe, path: Path, overrides: list[str]) -> None:
    tree = tree_of(recipe)
    for key, value in _leaves(tree):
        if isinstance(value, float) and not math.isfinite(value):
            raise WronglyAccepted(f"{key} is {value}")
    for name in tree["data"]["sites"]:
        if not name or any(letter in name for letter in "/\\\0 \n\x1b") or name in (".", ".."):
            raise WronglyAccepted(f"a site is called {name!r}")
    again = path.with_name("again.yaml")
    again.write_text(text_of(recipe), encoding="utf-8")
    if load(again, [], read_method) != recipe:
        raise WronglyAccepted("what was resolved reads back as another recipe")
    _check_unique_keys(path)
    if not overrides:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
        if extra := set(content) - set(tree):
            raise WronglyAccepted(f"{sorted(map(str, extra))} are no keys of a recipe")


def _check_unique_keys(path: Path) -> None:
    """Check that a text has no duplicate keys, whose meaning would be ambiguous."""
    nodes = [yaml.compose(path.read_text(encoding="utf-8"), Loader=LOADER)]
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := {key for key in keys if keys.count(key) > 1}:
                raise WronglyAccepted(f"says {sorted(value for _, value in twice)} twice")
            nodes += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def _check_study(path: Path) -> None:
    study = read_study(path)
    _check_unique_keys(path)
    for seed in study.seeds:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise WronglyAccepted(f"a seed is {seed!r}")
    if not set(study.sites) | set(study.targets) <= set(study.sets):
        raise WronglyAccepted("names sets that it does not have")


def _check_federation(path: Path) -> None:
    federation = read_federation(path)
    _check_unique_keys(path)
    for name in (*federation.sites, federation.name, federation.server.host):
        if any(letter in name for letter in "/\\\0 \n\x1b") or name in ("", ".", ".."):
            raise WronglyAccepted(f"something is called {name!r}")
    if {name.lower() for name in federation.sites} & {"server", "operator"} or not 0 < federation.server.port < 65536:
        raise WronglyAccepted("a name or a port that cannot be one")


def _leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict | list):
        for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, f"{key}.{name}")
    else:
        yield key, tree


def _mutate_tree(text: str, draws: np.random.Generator) -> tuple[str, str]:
    """Change one value of a tree; a text that is not a tree stays as it is."""
    try:
        tree = yaml.load(text, Loader=LOADER) if DEEP not in text else None
        options = list(islice(branches(tree), MOST_BRANCHES))
    except (yaml.YAMLError, ValueError, RecursionError):
        return "no tree", text
    if not options:
        return "empty tree", text
    node, key = pick(draws, options)
    way = int(draws.integers(6))
    if way == 0:
        del node[key]
    elif way == 1:
        node[key] = pick(draws, NUMBERS)
    elif way == 2:
        node[key] = pick(draws, TEXTS)
    elif way == 3:
        node[key] = pick(draws, ([], {}, None, [[]], {"": ""}, [None], {"name": 7}, ["a"] * 1000))
    elif way == 4 and isinstance(node, dict):
        node[pick(draws, (*TEXTS, 7, None, 1.5, True, ("a", "b"), f"{key} ", str(key).upper()))] = node.pop(key)
    else:
        value = node[key]
        for _ in range(int(draws.integers(1, 200))):
            value = {"a": value} if draws.random() < 0.5 else [value]
        node[key] = value
    try:
        return ("left out", "number", "text", "form", "key", "deep")[way], yaml.dump(
            tree, Dumper=DUMPER, sort_keys=False
        )
    except (yaml.YAMLError, ValueError, RecursionError):
        return "no text", text


def branches(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from branches(tree[key])


def _mutate_text(text: str, draws: np.random.Generator) -> tuple[str, str]:
    """Change one line of a text, or its end."""
    lines, way = text.split("\n"), int(draws.integers(8))
    at = int(draws.integers(len(lines)))
    if way == 0:
        lines.insert(at, pick(draws, LINES))
    elif way == 1:
        lines.insert(at, lines[at])
    elif way == 2:
        lines[at] = " " * int(draws.integers(6)) + lines[at].strip()
    elif way == 3:
        lines[at] = lines[at][: int(draws.integers(len(lines[at]) + 1))]
    elif way == 4:
        lines = lines[: at + 1]
    elif way == 5:
        lines[at] = lines[at].replace(":", pick(draws, (": &x", ": *x", ": !!str", ":", " :", "::", ": |", ": >")), 1)
    elif way == 6:
        bomb = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
        lines[at:at] = bomb if draws.random() < 0.5 else ["deep: " + "[" * 20_000]
    else:
        lines[at] = lines[at].replace("e", pick(draws, "éе\u200be\x07"), 1)
    names = ("line", "twice", "indent", "cut line", "cut", "marks", "bomb", "letters")
    return names[way], "\n".join(lines)


def _mutate_bytes(data: bytes, draws: np.random.Generator) -> bytes:
    raw = bytearray(data or b" ")
    for _ in range(int(draws.integers(1, 6))):
        raw[int(draws.integers(len(raw)))] = int(draws.integers(256))
    return bytes(raw)
