"""Random streams are named and independent, and leave the global generators unchanged."""

import itertools
import random

import numpy as np
import pytest
import torch

from fedvisage.base.streams import derive, numpy_rng, seed_global_rng, torch_rng


def test_a_stream_depends_on_its_names_only() -> None:
    first = numpy_rng(0, "A", 1, "order").random(5)
    numpy_rng(0, "B", 1, "order").random(1000)
    assert (numpy_rng(0, "A", 1, "order").random(5) == first).all()
    assert torch.equal(torch.rand(5, generator=torch_rng(3, "x")), torch.rand(5, generator=torch_rng(3, "x")))


def test_similar_names_give_different_streams() -> None:
    names = [("A",), ("A", 1), ("A", "1"), (1, "A"), ("A1",), ("A", ""), ("", "A"), ("A", 1, 1), ("A", 11), ("a",)]
    seeds = [derive(seed, *name) for seed in (0, 1, 10) for name in names]
    assert len(set(seeds)) == len(seeds)


def test_seeds_fit_into_63_bits_and_use_them() -> None:
    seeds = [derive(0, "stream", number) for number in range(2000)]
    assert len(set(seeds)) == 2000
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


def test_streams_of_neighbouring_names_are_uncorrelated() -> None:
    draws = np.stack([numpy_rng(0, "site", number).normal(size=20_000) for number in range(6)])
    for first, second in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_derivation_is_stable_across_versions() -> None:
    """Other numbers would change the bytes of every published run."""
    assert derive(0) == 4246866556266386882
    assert derive(7, "A", 3, "order") == 5979248948587753069


def test_scope_seeds_and_restores_the_global_generator() -> None:
    before = torch.get_rng_state()
    with seed_global_rng(0, "weights"):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    with seed_global_rng(0, "weights"):
        assert torch.equal(torch.rand(3), first)


def test_scope_restores_the_generator_after_an_error_and_nests() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="inside"), seed_global_rng(0, "a"):
        raise ValueError("inside")
    assert torch.equal(torch.get_rng_state(), before)
    with seed_global_rng(0, "outer"):
        alone = [torch.rand(1), torch.rand(1)]
    with seed_global_rng(0, "outer"):
        first = torch.rand(1)
        with seed_global_rng(0, "inner"):
            torch.rand(10)
        assert torch.equal(torch.stack([first, torch.rand(1)]), torch.stack(alone))


def test_scope_seeds_and_restores_the_generators_of_numpy_and_python() -> None:
    """Every generator has a stream of its own: two of them are Mersenne Twisters, as torch's is."""
    before = np.random.get_state(legacy=False)["state"]["key"].tolist(), random.getstate()
    with seed_global_rng(0, "weights"):
        first = np.random.random(3).tolist(), random.random(), torch.rand(1, dtype=torch.float64).item()
    assert (np.random.get_state(legacy=False)["state"]["key"].tolist(), random.getstate()) == before
    np.random.random(), random.random()
    with seed_global_rng(0, "weights"):
        assert (np.random.random(3).tolist(), random.random(), torch.rand(1, dtype=torch.float64).item()) == first
    with seed_global_rng(0, "other"):
        assert not np.isclose(np.random.random(3), first[0]).any()
    assert len({first[0][0], *first[1:]}) == 3
