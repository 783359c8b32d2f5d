"""Only few places of the source catch all exceptions, and only one reads and writes JSON."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedvisage"
BROAD = {"Exception", "BaseException"}

MAY_CATCH_ALL = {
    "base/extensions.py": {"load"},
    "starts/checkpoint.py": {"read_state"},
    "starts/files.py": {"_send_tensors"},
    "data/prepared.py": {"_map_array"},
    "faces/pictures.py": {"_read"},
    "device/gallery/authenticated.py": {"__init__", "_writing"},
    "device/gallery/file.py": {"create_file", "open_file"},
    "nvflare/admission.py": {"_watch"},
    "nvflare/bounds.py": {"_deserialize"},
    "nvflare/http_page.py": {"serve_page", "do_GET"},
    "nvflare/node.py": {"_report_errors_of", "run"},
    "nvflare/server_program.py": {"run"},
    "nvflare/site_program.py": {"_answer"},
    "device/service/guard.py": {"_answer"},
    "runs/engine.py": {"_deliver"},
    "runs/ray_worker.py": {"execute", "_as_picklable"},
    "report/tracking/reporting.py": {"_or_without"},
    "studies/cells.py": {"run_group"},
}
"""By file: parsers of hostile files and foreign code, which can raise any exception; ends of NVFlare's processes and of
replies of the service and of pages; jobs and cells, whose exceptions their caller gets; and places that undo a step
before they raise the error again."""


@cache
def trees() -> dict[str, ast.Module]:
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def names_in(node: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def broad_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that catch or suppress all exceptions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type or ast.Name("BaseException")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "suppress":
            caught = node.args
        else:
            continue
        if any(BROAD & names_in(each) for each in caught):
            yield node.lineno


def uses_of_json(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the module ``json`` that a file uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "json":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "json":
            yield node.attr


@pytest.mark.long
def test_all_exceptions_are_caught_at_listed_places_only() -> None:
    places = {
        name: {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(broad_lines(node))
        }
        for name, tree in trees().items()
        if any(broad_lines(tree))
    }
    assert places == MAY_CATCH_ALL


def test_those_places_have_a_comment_with_the_reason() -> None:
    for name in MAY_CATCH_ALL:
        lines = (SOURCE / name).read_text(encoding="utf-8").splitlines()
        for number in broad_lines(ast.parse("\n".join(lines))):
            assert "  # " in lines[number - 1], f"{name}:{number}"


@pytest.mark.long
@pytest.mark.parametrize("functions", [{"dump", "dumps"}, {"load", "loads"}], ids=["written", "read"])
def test_json_is_used_in_one_file_only(functions: set[str]) -> None:
    assert {name for name, tree in trees().items() if functions & set(uses_of_json(tree))} == {"base/files.py"}


def test_checks_find_examples() -> None:
    code = """
try: f()
except: pass
try: f()
except (ValueError, BaseException): pass
with suppress(Exception): f()
with suppress(OSError): f()
"""
    assert list(broad_lines(ast.parse(code))) == [3, 5, 6]
    assert set(uses_of_json(ast.parse("from json import dumps\njson.load(f)"))) == {"dumps", "load"}
