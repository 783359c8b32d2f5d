"""Layers of packages, limits on the size of the tree, and names. Imports for type checking alone do not count."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedvisage"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("api", "cli"),
    ("nvflare", "studies"),
    ("audit", "runs"),
    ("report",),
    ("device", "tasks"),
    ("datasets", "methods", "starts"),
    ("federation", "render"),
    ("faces", "nn"),
    ("data", "metrics", "recipe"),
    ("base",),
)
"""The packages from top to bottom. A package imports packages of lower layers only."""

ENTRY_POINTS = {"fedvisage", "__main__"}
"""The names of ``import fedvisage`` and ``python -m fedvisage``, above every layer."""

MOST_PACKAGES, MOST_FILES_IN_A_FOLDER, MOST_ROOT_MODULES = 23, 25, 3


def find_modules() -> dict[str, Path]:
    paths = {path: path.relative_to(SOURCE.parent).with_suffix("").parts for path in SOURCE.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in paths.items()}


MODULES = find_modules()


def imports_of(path: Path) -> Iterator[str]:
    """Yield the imports of a file, except those for type checking alone, as the longest name that is a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


@cache
def import_graph() -> dict[str, list[str]]:
    """Return for each module the modules of this package that it imports."""
    return {
        name: sorted({other for other in imports_of(path) if other in MODULES} - {name})
        for name, path in MODULES.items()
    }


def find_cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the cycles that a depth-first search meets."""
    finished: set[str] = set()
    cycles: list[list[str]] = []

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycles.append([*path[path.index(name) :], name])
        elif name not in finished:
            for other in graph[name]:
                visit(other, [*path, name])
            finished.add(name)

    for name in graph:
        visit(name, [])
    return cycles


def package_of(module: str) -> str:
    """Return the top-level package of a module, or the module's own name at the root."""
    return module.split(".")[1] if "." in module else "fedvisage"


def syntax_nodes() -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of the source tree's syntax with its file."""
    for path in MODULES.values():
        file = str(path.relative_to(SOURCE))
        yield from ((file, node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_no_import_cycle_between_modules() -> None:
    assert find_cycles(import_graph()) == []


def test_a_cycle_would_be_noticed() -> None:
    assert find_cycles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]


def test_every_package_stands_in_one_layer() -> None:
    listed = [package for layer in LAYERS for package in layer]
    assert sorted(listed) == sorted({package_of(name) for name in MODULES} - ENTRY_POINTS)


def test_imports_lead_to_lower_layers_only() -> None:
    layer_of = {package: number for number, layer in enumerate(LAYERS, 1) for package in layer}
    layer_of |= dict.fromkeys(ENTRY_POINTS, 0)
    upwards = [
        f"{name} imports {other}"
        for name, others in import_graph().items()
        for other in others
        if package_of(name) != package_of(other) and layer_of[package_of(name)] >= layer_of[package_of(other)]
    ]
    assert upwards == []


def test_the_device_package_imports_only_faces_metrics_data_and_base() -> None:
    imported = {
        package_of(other) for name, others in import_graph().items() if package_of(name) == "device" for other in others
    }
    assert imported <= {"device", "faces", "metrics", "data", "base"}


def test_the_tree_stays_within_its_limits() -> None:
    packages = {package_of(name) for name in MODULES}
    assert len(packages) <= MOST_PACKAGES
    assert len(LAYERS) <= 10
    assert len(list(SOURCE.glob("*.py"))) <= MOST_ROOT_MODULES
    folders = {path.parent for path in MODULES.values()}
    crowded = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: count for name, count in crowded.items() if count > MOST_FILES_IN_A_FOLDER} == {}


def test_the_architecture_page_lists_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [package for layer in LAYERS for package in layer if f"`{package}" not in page] == []
    assert len(page.splitlines()) <= 60


def test_nvflare_and_typer_are_imported_by_one_package_each() -> None:
    def users(library: str) -> set[str]:
        return {
            package_of(name)
            for name, path in MODULES.items()
            if any(imported.split(".")[0] == library for imported in imports_of(path))
        }

    assert users("nvflare") == {"nvflare"}
    assert users("typer") == {"cli"}


def test_only_the_command_line_prints() -> None:
    def prints(path: Path) -> bool:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)

    assert {package_of(name) for name, path in MODULES.items() if prints(path)} <= {"cli"}


def test_test_files_have_distinct_names_as_pytest_wants_them() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, following in pairwise(names) if name == following] == []


def test_few_variables_and_parameters_have_names_that_say_nothing() -> None:
    vague = {"found", "one", "said", "told", "known", "some", "made", "given"}
    places = []
    for file, node in syntax_nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in vague:
            places.append(f"{file}:{node.lineno} {node.id}")
        elif isinstance(node, ast.arg) and node.arg in vague:
            places.append(f"{file}:{node.lineno} {node.arg}")
    assert len(places) < 50, places


Function = ast.FunctionDef | ast.AsyncFunctionDef

PARTICIPLE = re.compile(
    r"[a-z]+ed|begun|bound|built|chosen|done|drawn|found|frozen|given|gone|heard|held|hidden|kept|known|left|lost|made|met"
    r"|paid|said|seen|sent|shown|spent|taken|told|written"
)
"""Regular participles, and irregular ones that are no base form of a verb (as ``put`` and ``read`` are)."""


def is_named_by_participle(node: ast.AST) -> bool:
    """Return whether a function's name is one participle; a property is exempt, because it may be an adjective."""
    if not isinstance(node, Function) or node.name == "embed":
        return False
    properties = {"property", "cached_property"} & {ast.unparse(decorator) for decorator in node.decorator_list}
    return not properties and PARTICIPLE.fullmatch(node.name.lstrip("_")) is not None


def test_few_functions_have_a_participle_as_their_name() -> None:
    functions = [(file, node) for file, node in syntax_nodes() if isinstance(node, Function)]
    places = [f"{file}:{node.lineno} {node.name}" for file, node in functions if is_named_by_participle(node)]
    assert len(places) < 40, places


def test_a_participle_is_recognised() -> None:
    names = ("gathered", "_held", "told", "embed", "read", "put", "gathered_rows")
    functions = [ast.parse(f"def {name}(): pass").body[0] for name in names]
    functions.append(ast.parse("@property\ndef frozen(self): pass").body[0])
    assert [is_named_by_participle(function) for function in functions] == [True] * 3 + [False] * 5


def test_few_places_are_kept_from_the_formatter() -> None:
    folders = [ROOT / name for name in ("src", "tests", "campaigns", "benchmarks", "docs", "deploy")]
    comment = "# fmt: " + "skip"
    places = [path for folder in folders for path in folder.rglob("*.py") if comment in path.read_text("utf-8")]
    assert sum(path.read_text("utf-8").count(comment) for path in places) <= 40, places
