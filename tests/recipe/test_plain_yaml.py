"""The strict YAML reader: core schema of YAML 1.2, no duplicate keys, no unbounded or hidden content."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.refusals import refused

from fedvisage.nvflare.authority import read_federation
from fedvisage.recipe import read_tree
from fedvisage.recipe.plain_yaml import DEEPEST, LARGEST, parse, write
from fedvisage.studies.shipped import locate, names
from fedvisage.studies.study import load_study


def check_refused(text: str, *keywords: str) -> None:
    with refused("here", *keywords):
        parse(text, "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("1e-3", 0.001),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("'3'", "3"),
        ("!!str 3", "3"),
        ("!!int '3'", 3),
        ("[a, 1]", ["a", 1]),
        ("{yes: no, 3: x, ~: 1, 1e3: 2}", {"yes": "no", "3": "x", "~": 1, "1e3": 2}),
    ],
)
def test_plain_values_are_those_of_the_core_schema(text: str, value: Any) -> None:
    assert repr(parse(text, "here")) == repr(value)


@pytest.mark.parametrize("name", names())
def test_shipped_files_have_the_same_values_in_yaml_1_1(name: str) -> None:
    def with_text_for_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): with_text_for_keys(inner) for key, inner in value.items()}
        return [with_text_for_keys(inner) for inner in value] if isinstance(value, list) else value

    text = locate(name).read_text(encoding="utf-8")
    assert repr(parse(text, name)) == repr(with_text_for_keys(yaml.safe_load(text)))


@pytest.mark.parametrize("value", ["1e3", "0o17", "yes", "3", "12:30", "plain", "1.5", "-", ".5e3", 1e-5, True, None])
def test_written_files_read_the_same_in_yaml_1_1_and_1_2(value: Any) -> None:
    text = write({"a": value})
    assert parse(text, "here") == yaml.safe_load(text) == {"a": value}


def test_duplicate_key_is_reported_with_both_lines() -> None:
    check_refused("data:\n  sites:\n    O: a\n    C: b\n    O: c\n", "'O'", "lines 3 and 5")
    check_refused("training: {rounds: 1}\ntraining: {rounds: 2}", "lines 1 and 2")
    check_refused("{rounds: 1, 'rounds': 2}", "lines 1 and 1")


def test_keys_of_different_sections_may_be_alike() -> None:
    assert parse("a: {x: 1}\nb: {x: 2}", "here") == {"a": {"x": 1}, "b": {"x": 2}}


READERS: dict[str, Callable[[Path], object]] = {"file": read_tree, "study": load_study, "federation": read_federation}


@pytest.mark.parametrize("kind", READERS)
def test_every_user_file_uses_this_reader(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("title: a\ntitle: b\n")
    with refused(path, "'title'", "lines 1 and 2"):
        READERS[kind](path)


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ("{a: ", "}"), ("- ", "")])
def test_nesting_depth_is_limited(start: str, end: str) -> None:
    assert parse(start * (DEEPEST - 1) + "1" + end * (DEEPEST - 1), "here") is not None
    check_refused(start * 5000 + "1" + end * 5000, f"more than {DEEPEST}")


@pytest.mark.long
def test_alias_expansion_is_limited() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]
    check_refused("\n".join(lines), "values")
    merges = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12))]
    assert parse("\n".join(merges), "here")["a11"] == {"x": 1}
    check_refused("a: &a {b: *a}", "itself")
    check_refused("a: &a {<<: *a}", "itself")


def test_aliased_sections_are_independent_copies() -> None:
    tree = parse("a: &a {x: {y: 1}}\nb: *a\nc: {<<: *a, z: 2}", "here")
    tree["a"]["x"]["y"] = 5
    assert (tree["b"], tree["c"]) == ({"x": {"y": 1}}, {"x": {"y": 1}, "z": 2})


def test_own_keys_of_a_section_override_merged_ones() -> None:
    assert parse("a: &a {x: 1, y: 1}\nb: &b {x: 2}\nc: {<<: [*b, *a], y: 3}", "here")["c"] == {"x": 2, "y": 3}


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system [id]", "!!set {a}", "!mine 3", "? [a]\n: 3", "{<<: 3}", "!!int x"]
)
def test_unsupported_yaml_is_refused_with_its_line(text: str) -> None:
    check_refused(text, "(line 1)")


def test_devices_and_pipes_are_refused_and_a_large_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (Path("/dev/zero"), tmp_path / "pipe.yaml"):
        with refused(path, "regular"):
            read_tree(path)
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(LARGEST + 1)
    with refused("large.yaml", f"{LARGEST >> 20} MiB"):
        read_tree(tmp_path / "large.yaml")
