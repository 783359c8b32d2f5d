"""A strict YAML reader and writer: keys are text, ``yes`` is a word, duplicate keys are errors, sizes are limited.

Plain values follow the core schema of YAML 1.2: ``true`` and ``false`` are the only truth values, ``1e-3`` is a number,
and ``on``, ``12:30`` and ``2024-01-01`` are text. Tags create no objects.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from fedvisage.base.errors import UserError
from fedvisage.base.files import open_regular

DEEPEST = 40
"""Limit of nested sections: recipes have six, and a recursive reader fails below a thousand."""
LARGEST = 4 << 20
"""Limit of a file's size in bytes: about seventy thousand sites, one per line, which are read in a minute."""
MOST = 1_000_000
"""Limit of values, aliases expanded; a file of the largest size without aliases has fewer."""

_TAG = "tag:yaml.org,2002:"
_NULL, _BOOL = re.compile(r"~|null|Null|NULL|"), re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_ENTRY = re.compile(r"\bsynth:|\sonly:")


class _YamlReader(yaml.SafeLoader):
    """Composes the nodes of a text by the core schema, with a limited depth."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _ForbiddenYaml(f"has more than {DEEPEST} levels of nested sections", self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _kind, _pattern, _first in (
    ("null", _NULL, "~nN"),
    ("bool", _BOOL, "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
):
    _YamlReader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"(?:{_pattern.pattern})$"), [*_first])
_YamlReader.add_implicit_resolver(f"{_TAG}null", re.compile("$"), [""])
_YamlReader.add_implicit_resolver(f"{_TAG}merge", re.compile("<<$"), ["<"])


class _YamlWriter(yaml.SafeDumper):
    """Quotes also those texts that only the core schema reads as numbers."""


for _kind, _pattern in (("int", _INT), ("float", _FLOAT)):
    _YamlWriter.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"(?:{_pattern.pattern})$"), [*"-+.0123456789"])


class _ForbiddenYaml(Exception):
    """An error in valid YAML that no recipe may contain, with its line."""

    def __init__(self, message: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(message if mark is None else f"{message} (line {mark.line + 1})")


def read_file(path: Path) -> Any:
    """Return the plain values in a YAML file."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    if len(data) > LARGEST:
        raise UserError(str(path), f"is larger than {LARGEST >> 20} MiB: not a recipe, study or federation file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"is not valid YAML: {error}") from error
    return parse(text, str(path))


def parse(text: str, place: str, what: str = "is not YAML") -> Any:
    """Return the plain values in a text; ``place`` and ``what`` begin the message about invalid YAML."""
    try:
        reader = _YamlReader(text)
        try:
            return _Values().of(reader.get_single_node())
        finally:
            reader.dispose()
    except _ForbiddenYaml as refused:
        raise UserError(place, str(refused)) from None
    except yaml.YAMLError as error:
        message = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise UserError(place, f"{what}: {message}{_advice(text, error)}") from error


def write(tree: Any) -> str:
    """Return plain values as YAML that versions 1.1 and 1.2 read alike."""
    return yaml.dump(tree, Dumper=_YamlWriter, sort_keys=False, allow_unicode=True)


def _advice(text: str, error: yaml.YAMLError) -> str:
    """Return advice on quoting a data entry if its colon caused the error, else an empty text."""
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines) or not _ENTRY.search(lines[mark.line]):
        return ""
    return f'; quote an entry that contains a colon: "synth: O subjects=6" (line {mark.line + 1})'


class _Values:
    """Converts nodes to plain values. Aliases become copies, and their total number is limited by ``MOST``."""

    def __init__(self) -> None:
        self._count = 0
        self._pairs_of: dict[yaml.Node, dict[str, tuple[yaml.Node, yaml.Node]]] = {}
        self._open: set[yaml.Node] = set()

    def of(self, node: yaml.Node | None) -> Any:
        if node is None:
            return None
        self._count += 1
        if self._count > MOST:
            raise _ForbiddenYaml(f"has more than {MOST:,} values", node.start_mark)
        self._enter(node)
        value = self._value(node)
        self._open.remove(node)
        return value

    def _enter(self, node: yaml.Node) -> None:
        if node in self._open:
            raise _ForbiddenYaml("has a section that contains itself", node.start_mark)
        self._open.add(node)

    def _value(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return {key: self.of(value) for key, (_, value) in self._pairs(node).items()}
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.of(item) for item in node.value]
        if isinstance(node, yaml.ScalarNode):
            return _scalar(kind, node)
        raise _ForbiddenYaml(f"has a value with the YAML tag {node.tag}, which recipes do not support", node.start_mark)

    def _pairs(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return keys and values by the keys' text; the section's own keys replace those that ``<<`` merges in."""
        if node in self._pairs_of:
            return self._pairs_of[node]
        own_pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merged = {**self._merge_sections(value), **merged}
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _ForbiddenYaml("has a key that is not a plain name", key.start_mark)
            if key.value in own_pairs:
                lines = f"{own_pairs[key.value][0].start_mark.line + 1} and {key.start_mark.line + 1}"
                raise _ForbiddenYaml(f"contains {key.value!r} twice in one section, in lines {lines}; keep one")
            own_pairs[key.value] = key, value
        self._pairs_of[node] = {**merged, **own_pairs}
        return self._pairs_of[node]

    def _merge_sections(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return the pairs of a section, or of a list of sections in which earlier sections win."""
        self._enter(node)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for section in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(section, yaml.MappingNode):
                raise _ForbiddenYaml("has a << that does not refer to a section", node.start_mark)
            pairs = {**self._pairs(section), **pairs}
        self._open.remove(node)
        return pairs


def _scalar(kind: str, node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if kind == "str":
        return text
    if kind == "null" and _NULL.fullmatch(text):
        return None
    if kind == "bool" and _BOOL.fullmatch(text):
        return text.lower() == "true"
    if kind == "int" and _INT.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10) if len(text) < 400 else text
    if kind == "float" and (_FLOAT.fullmatch(text) or _INT.fullmatch(text)):
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.lower()))
    raise _ForbiddenYaml(
        f"has {text!r} with the YAML tag {node.tag}, which does not fit the value or is unsupported in recipes",
        node.start_mark,
    )
