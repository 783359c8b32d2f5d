"""Seeds of tests: the random numbers of a test follow from its name and ``--seed`` alone.

The global generators of Python, NumPy and torch are seeded before each test, each fixture's set-up and each file's
import. Neither the order of tests nor the number of workers changes what a test draws. The number of threads, which
runs set, is restored after each test and fixture. ``--shuffle`` runs the groups of tests, and the tests of each group,
in an order that follows from ``--seed``.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from fedvisage.base.processes import use_threads

# Hypothesis's own profile for CI, which the variable CI selects, would ignore the seed. Busy machines need no deadline.
settings.register_profile(
    "seeded", derandomize=False, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("seeded")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of seeds."""
    parser.addoption("--seed", type=int, default=0, help="base seed of all tests (0)")
    parser.addoption("--shuffle", action="store_true", help="run the tests in an order that follows from --seed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis, whose plugin is configured later, draw its examples from the same seed.

    Without the replacement, it also draws constants from the sources of modules that other tests have imported.
    """
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.option.seed)
    setattr(providers, "is_local_module_file", lambda path: False)  # noqa: B010  # not exported


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Seed a file of tests before its import."""
    seed_generators(collector.config.option.seed, collector.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Seed a fixture by its name, parameter and scope, and restore the generators afterwards."""
    if fixturedef.func.__module__.startswith("_pytest."):  # tmp_path and the like draw nothing
        return (yield)
    states = save_generators()
    parameter = getattr(request, "param_index", 0)
    seed_generators(request.config.option.seed, request.node.nodeid, fixturedef.argname, parameter)
    try:
        with restored_settings():
            return (yield)
    finally:
        for restore, state in states:
            restore(state)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Seed a test by its name, and restore its process-wide settings."""
    seed_generators(item.config.option.seed, item.nodeid)
    with restored_settings():
        return (yield)


def seed_generators(*names: object) -> None:
    """Seed the global generators of Python, and of NumPy and torch if they are imported."""
    seed = int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:4])
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)  # torch.manual_seed takes 250 times as long


def save_generators() -> list[tuple[Callable[[Any], object], Any]]:
    """Return the states of the global generators, each with the function that restores it."""
    states: list[tuple[Callable[[Any], object], Any]] = [(random.setstate, random.getstate())]
    if "numpy" in sys.modules:
        generator = sys.modules["numpy"].random
        states.append((generator.set_state, generator.get_state()))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        states.append((torch.set_rng_state, torch.get_rng_state()))
    return states


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore torch's settings after the block: a run sets them by its recipe, and rounding depends on them."""
    if "torch" not in sys.modules:
        yield
        return
    torch = sys.modules["torch"]
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            use_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)


def shuffle_groups(names: Iterable[str], seed: int, group_of: Callable[[str], str]) -> list[str]:
    """Return the names of tests in an order that follows from a seed; those of a group stay together."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(group_of(name), []).append(name)
    generator = random.Random(seed)
    shuffled = generator.sample(sorted(groups), len(groups))
    return [name for group in shuffled for name in generator.sample(groups[group], len(groups[group]))]
