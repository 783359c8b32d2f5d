"""What the source may do at few places only: catch whatever is raised, and read or write JSON by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedvisage"
BROAD = {"Exception", "BaseException"}

MAY_CATCH_ALL = {
    "starts/checkpoint.py": {"read_state"},
    "starts/files.py": {"_send_tensors"},
    "data/prepared.py": {"_map_array"},
    "faces/pictures.py": {"_read"},
    "device/gallery/authenticated.py": {"__init__", "_outermost_change"},
    "device/gallery/file.py": {"create_file", "open_file"},
    "nvflare/bounds.py": {"_deserialize"},
    "nvflare/node.py": {"_report_errors_of", "run"},
    "nvflare/server_program.py": {"run"},
    "nvflare/site_program.py": {"_answer"},
    "device/service/guard.py": {"_answer"},
    "runs/engine.py": {"_deliver"},
    "report/tracking/reporting.py": {"_or_without"},
}
"""By file: where a parser of a stranger's file or other people's code can raise anything, where a process of NVFlare's
or an answer of the service ends, and where what was begun is taken back before the error goes on."""

WRITES_JSON = {"base/files.py"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def names_in(node: ast.expr | None) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node is not None else set()


def broad(tree: ast.AST) -> Iterator[int]:
    """Yield the lines at which everything is caught: by ``except`` without a name, or by the name of all."""
    for node in ast.walk(tree):
        suppresses = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress"
        bare = isinstance(node, ast.ExceptHandler) and (node.type is None or BROAD & names_in(node.type))
        if bare or (suppresses and any(BROAD & names_in(one) for one in node.args)):
            yield node.lineno


def uses_of_json(tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports of the module ``json``, or takes from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "json":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "json":
            yield node.attr


def test_everything_is_caught_at_named_places_only() -> None:
    found = {
        name: {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(broad(node))
        }
        for name, tree in trees()
        if any(broad(tree))
    }
    assert found == MAY_CATCH_ALL


def test_those_places_say_why_in_their_line() -> None:
    for name in MAY_CATCH_ALL:
        lines = (SOURCE / name).read_text(encoding="utf-8").splitlines()
        for number in broad(ast.parse("\n".join(lines))):
            assert "  # " in lines[number - 1], f"{name}:{number}"


def test_json_is_written_at_one_place_only() -> None:
    writers = {name for name, tree in trees() if {"dump", "dumps"} & set(uses_of_json(tree))}
    assert writers == WRITES_JSON


def test_json_is_read_at_one_place_only() -> None:
    readers = {name for name, tree in trees() if {"load", "loads"} & set(uses_of_json(tree))}
    assert readers == WRITES_JSON


def test_what_these_tests_look_for_is_found() -> None:
    code = """
try: f()
except: pass
try: f()
except (ValueError, BaseException): pass
with suppress(Exception): f()
with suppress(OSError): f()
"""
    assert list(broad(ast.parse(code))) == [3, 5, 6]
    assert set(uses_of_json(ast.parse("from json import dumps\njson.load(f)"))) == {"dumps", "load"}
