"""The random numbers of tests follow from names and the base seed, and every generator has a seed."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.seeding import restored_settings, save_generators, seed_generators, shuffle_groups

from fedvisage.base.processes import use_threads

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("tests", "campaigns", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
GENERATORS = {"default_rng", "RandomState", "SeedSequence", "PCG64", "Philox", "MT19937", "SFC64", "Random", "seed"}
GENERATORS |= {"uuid1", "uuid4"}
"""Functions that take a seed from the operating system if they get none."""

DRAWS = """
import random
import numpy as np
from hypothesis import given, settings, strategies
import pytest

def draw():
    return [random.random(), np.random.rand()]

IMPORTED = draw()
def note(request, *values):
    with (request.config.rootpath / "draws").open("a") as file:
        print(request.node.nodeid, *values, file=file)

@pytest.fixture(scope="session")
def for_all():
    return draw()
@pytest.fixture(scope="module", params=["a", "b"])
def for_file(for_all):
    return for_all, draw()
@pytest.fixture
def for_test():
    return draw()
def test_import(request):
    note(request, IMPORTED)
@pytest.mark.parametrize("number", range(3))
def test_fixtures(request, for_file, for_test, number):
    note(request, for_file, for_test, draw())
def test_late_fixture(request):
    first = draw()
    request.getfixturevalue("for_all")
    note(request, first, draw())
def test_examples(request):
    values = []
    @settings(database=None, max_examples=5)
    @given(strategies.integers())
    def property(value):
        values.append(value)
    property()
    note(request, values)
"""


def run_draws(directory: Path, *options: str) -> dict[str, str]:
    """Run the tests of ``DRAWS`` and return the random numbers of each."""
    (directory / "draws").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.seeding", "-p", "no:cacheprovider", *options]
    command += [f"--rootdir={directory}", f"{directory / 'test_draws.py'}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lines = (directory / "draws").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("ci", ["", "true"])
def test_draws_depend_on_names_and_the_seed_and_not_on_order_or_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    (tmp_path / "conftest.py").write_text("import numpy")
    (tmp_path / "test_draws.py").write_text(DRAWS)
    draws = run_draws(tmp_path)
    assert len(draws) == 9
    assert len(set(draws.values())) == 9
    parallel = run_draws(tmp_path, "-n", "2", "-k", "not import and not 0")
    assert len(parallel) == 6
    assert parallel.items() <= draws.items()
    others = run_draws(tmp_path, "--seed", "1")
    assert not {*others.values()} & {*draws.values()}


def test_torch_draws_depend_on_names_and_repeat_after_a_restored_state() -> None:
    seed_generators(0, "name")
    first = torch.rand(3)
    states = save_generators()
    second = torch.rand(3)
    seed_generators(0, "another name")
    assert not torch.equal(torch.rand(3), first)
    for restore, state in states:
        restore(state)
    assert torch.equal(torch.rand(3), second)
    seed_generators(0, "name")
    assert torch.equal(torch.rand(3), first)


def test_settings_of_torch_are_restored() -> None:
    before = torch.get_num_threads()
    with restored_settings():
        use_threads(before + 1)
        torch.use_deterministic_algorithms(True)
    assert torch.get_num_threads() == before
    assert not torch.are_deterministic_algorithms_enabled()


def unseeded_lines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that take their seed from the operating system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            is_empty = all(isinstance(value, ast.Constant) and value.value is None for value in arguments)
            if name in GENERATORS and is_empty:
                yield node.lineno


def test_every_generator_in_test_code_has_a_seed() -> None:
    pattern = re.compile(rf"\b({'|'.join(GENERATORS)})\(\s*(\w+\s*=)?\s*(None)?\s*,?\s*\)")
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    trees = {path: ast.parse(text) for path, text in texts.items() if pattern.search(text)}
    assert Path(__file__) in trees
    assert [f"{path.relative_to(ROOT)}:{line}" for path, tree in trees.items() for line in unseeded_lines(tree)] == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("np.random.default_rng()", 1),
        ("default_rng(None)", 1),
        ("np.random.default_rng(seed=None)", 1),
        ("torch.Generator().seed()", 1),
        ("random.Random()", 1),
        ("np.random.seed()", 1),
        ("np.random.Generator(np.random.PCG64())", 1),
        ("np.random.default_rng(3)", 0),
        ("torch.Generator().manual_seed(0)", 0),
        ("random.Random('name')", 0),
        ("Secrets.draw(os.urandom)", 0),
    ],
)
def test_calls_without_a_seed_are_found(code: str, count: int) -> None:
    assert len(list(unseeded_lines(ast.parse(code)))) == count


def test_shuffle_keeps_groups_together_and_follows_from_the_seed() -> None:
    names = [f"{group}::test_{number}" for group in "abcdefgh" for number in range(6)]
    shuffled = shuffle_groups(names, 1, lambda name: name[0])
    assert Counter(shuffled) == Counter(names)
    assert shuffled == shuffle_groups(names[::-1], 1, lambda name: name[0])
    assert shuffled != shuffle_groups(names, 2, lambda name: name[0])
    groups = [name[0] for name in shuffled[::6]]
    assert [name[0] for name in shuffled] == [group for group in groups for _ in range(6)]
    assert groups != sorted(groups)
    assert shuffled[:6] != sorted(shuffled[:6])
