"""FedBN: the BatchNorm layers of sites and of the delivered model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.refusals import refused
from tests.toy import ROUNDS, SITES, NewRun, Sets, recipe_of, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site_worker import OWN
from fedvisage.federation.wire.message import Message, under
from fedvisage.methods import METHODS


@pytest.fixture(scope="module")
def fedbn_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets, "fedbn"))


def layers_of(out: Path, site: str) -> Message:
    """Return the BatchNorm layers that a site holds when the run is over."""
    store = SiteStore(out / "sites" / site)
    store.restore(ROUNDS)
    return under(f"{OWN}norms.", store.load())


def test_every_site_has_private_layers(fedbn_run: Path) -> None:
    first, second = (layers_of(fedbn_run, site) for site in SITES[:2])
    for name in ("0.weight", "0.bias", "0.running_mean", "0.running_var"):
        assert not torch.equal(first[name], second[name])


def test_the_layers_of_one_site_never_reach_another(fedbn_run: Path) -> None:
    lines = read_lines(fedbn_run / "ledger.jsonl")
    assert {line["field"] for line in lines if line["direction"] == "down" and line["call"] == "train"} == {"model"}


def test_the_target_gets_the_mean_of_the_sites_layers(fedbn_run: Path) -> None:
    sites = [layers_of(fedbn_run, site) for site in SITES]
    delivered = under("norms.", load_file(fedbn_run / "model.safetensors"))
    assert delivered.keys() == sites[0].keys()
    for name, value in delivered.items():
        expected = np.mean([site[name].double().numpy() for site in sites], axis=0)
        np.testing.assert_allclose(value.double().numpy(), expected, rtol=1e-6, atol=1e-9)


def test_a_start_that_would_not_reach_private_layers_is_refused(sets: Sets) -> None:
    content = tree(sets, "fedbn", training__start="model.safetensors")
    with refused("recipe.training.start", "method.norms"):
        METHODS["fedbn"].check(recipe_of(content))
    content["method"]["norms"] = "shared"
    METHODS["fedbn"].check(recipe_of(content))
    assert set(METHODS["fedbn"].network(recipe_of(content))) == {"model", "norms"}
