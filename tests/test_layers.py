"""Layers of packages, limits on the size of the tree, and names. Imports for type checking alone do not count."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

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


MODULES = {
    ".".join(part for part in path.relative_to(SOURCE.parent).with_suffix("").parts if part != "__init__"): path
    for path in SOURCE.rglob("*.py")
}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Yield the imports of a file, except those for type checking alone, as the longest name that is a module."""
    tree = parse(path)
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


def package_of(module: str) -> str:
    """Return the top-level package of a module, or the module's own name at the root."""
    return module.split(".")[1] if "." in module else "fedvisage"


def syntax_nodes() -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of the source tree's syntax with its file."""
    for path in MODULES.values():
        file = str(path.relative_to(SOURCE))
        yield from ((file, node) for node in ast.walk(parse(path)))


@pytest.mark.long
def test_no_import_cycle_between_modules() -> None:
    TopologicalSorter(import_graph()).prepare()  # raises CycleError with the modules of a cycle


def test_every_package_is_in_one_layer() -> None:
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


@pytest.mark.long
def test_nvflare_and_typer_are_imported_by_one_package_each() -> None:
    def users(library: str) -> set[str]:
        return {
            package_of(name)
            for name, path in MODULES.items()
            if any(imported.split(".")[0] == library for imported in imports_of(path))
        }

    assert users("nvflare") == {"nvflare"}
    assert users("typer") == {"cli"}


@pytest.mark.long
def test_only_the_command_line_prints() -> None:
    def prints(path: Path) -> bool:
        calls = [node.func for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
        return any(isinstance(function, ast.Name) and function.id == "print" for function in calls)

    assert {package_of(name) for name, path in MODULES.items() if prints(path)} <= {"cli"}


def test_test_files_have_distinct_names_as_pytest_wants_them() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, following in pairwise(names) if name == following] == []


VAGUE = ("found", "one", "said", "told", "known", "some", "made", "given")


@pytest.mark.long
def test_few_variables_and_parameters_of_the_package_have_vague_names() -> None:
    places = []
    for file, node in syntax_nodes():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            places.append(f"{file}:{node.lineno} {node.id}")
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            places.append(f"{file}:{node.lineno} {node.arg}")
    assert len(places) < 50, places


Function = ast.FunctionDef | ast.AsyncFunctionDef

PARTICIPLE = re.compile(
    r"(?!embed|feed|need|proceed|seed|speed)[a-z]+ed|begun|bound|built|chosen|done|drawn|found|frozen|given|gone|heard|held|hidden|kept|known|left|lost|made|met"
    r"|paid|said|seen|sent|shown|spent|taken|told|written"
)
"""Regular participles, and irregular ones that are not also a verb's base form (as ``put`` and ``read`` are)."""


def is_named_by_participle(node: ast.AST) -> bool:
    """Return whether a function's name is one participle; a property may be an adjective."""
    if not isinstance(node, Function):
        return False
    properties = {"property", "cached_property"} & {ast.unparse(decorator) for decorator in node.decorator_list}
    return not properties and PARTICIPLE.fullmatch(node.name.lstrip("_")) is not None


@pytest.mark.long
def test_few_functions_have_a_participle_as_their_name() -> None:
    functions = [(file, node) for file, node in syntax_nodes() if isinstance(node, Function)]
    places = [f"{file}:{node.lineno} {node.name}" for file, node in functions if is_named_by_participle(node)]
    assert len(places) < 40, places


def test_a_participle_is_recognised() -> None:
    names = ("gathered", "_held", "told", "embed", "read", "put", "gathered_rows")
    functions = [ast.parse(f"def {name}(): pass").body[0] for name in names]
    functions.append(ast.parse("@property\ndef frozen(self): pass").body[0])
    assert [is_named_by_participle(function) for function in functions] == [True] * 3 + [False] * 5


UNSEARCHABLE = re.compile(
    r"(?:^|_)(told|said|says?|meant|asked|asks|unheard|nobody|somebody|everybody|whoever|stands|judged|looked|gone|of_its_own"
    r"|what_(?:is|was|does|a|an|the|it|they)|who_(?:is|has|was)|what_to)(?:_|$)"
)
"""Words of test names that describe a behaviour without its terms, so that a search for the behaviour misses them."""

MOST_PARTICIPLES_IN_TESTS = 35
MOST_VAGUE_VARIABLES_IN_TESTS = 161
MOST_UNSEARCHABLE_TESTS = 1
"""The counts at the last change; lower them when names improve, and never raise them."""


def test_names_in_tests_become_no_vaguer() -> None:
    sources = [path.read_text("utf-8") for folder in ("tests", "campaigns") for path in (ROOT / folder).rglob("*.py")]
    functions = re.findall(r"^\s*(?:async )?def (\w+)", "\n".join(sources), flags=re.MULTILINE)
    stores = re.findall(r"^\s*(\w+)(?:: [^=\n]+)? = |\bfor (\w+) in\b", "\n".join(sources), flags=re.MULTILINE)
    variables = Counter(name for store in stores for name in store if name in VAGUE)
    participles = sorted(name for name in functions if PARTICIPLE.fullmatch(name.lstrip("_")))
    unsearchable = sorted(name for name in functions if name.startswith("test_") and UNSEARCHABLE.search(name[4:]))
    assert len(participles) <= MOST_PARTICIPLES_IN_TESTS, participles
    assert variables.total() <= MOST_VAGUE_VARIABLES_IN_TESTS, variables
    assert len(unsearchable) <= MOST_UNSEARCHABLE_TESTS, unsearchable


def test_few_places_are_kept_from_the_formatter() -> None:
    folders = [ROOT / name for name in ("src", "tests", "campaigns", "benchmarks", "docs", "deploy")]
    comment = "# fmt: " + "skip"
    places = [path for folder in folders for path in folder.rglob("*.py") if comment in path.read_text("utf-8")]
    assert sum(path.read_text("utf-8").count(comment) for path in places) <= 40, places
