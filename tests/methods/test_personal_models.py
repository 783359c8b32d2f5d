"""Models of their own that sites train and evaluate: Ditto, FedRep, FedBABU and FedALA."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.methods.combining import combined
from tests.refusals import refused
from tests.toy import ROUNDS, SITES, NewRun, Sets, recipe_of, run_toy, tree
from torch import Tensor

from fedvisage.base.progress import percent
from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.protections.steps import clip_at_site
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message, state_of, under
from fedvisage.methods import METHODS, MODELS, on
from fedvisage.methods.models import resnet18
from fedvisage.metrics.recorded import read_metrics
from fedvisage.metrics.threshold import EDGES
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.report.content import heldout_table
from fedvisage.studies.study import value_of
from fedvisage.tasks.pad.task import TASK, check

PREFIX = {"ditto": "personal/local/", "fedbabu": "local/", "fedala": "local/"}
"""The place of a personal model in a site's private state."""


@pytest.fixture(scope="module")
def ditto_alone(sets: Sets, new_run: NewRun) -> Path:
    """A run of Ditto without the pull towards the common model."""
    return new_run(tree(sets, "ditto", method__pull=0.0))


def kept_by(out: Path, site: str, prefix: str) -> Message:
    store = SiteStore(out / "sites" / site)
    store.restore(ROUNDS)
    return under(prefix, store.load())


HEADS = {
    "resnet18": {"model.fc.weight", "model.fc.bias"},
    "vit-h": {"head.weight", "head.bias"},
    "fedma-vgg": {"output.0.weight", "output.0.bias"},
    "minifasnet": {"model.classes.weight"},
    "timm": {"model.network.classifier.weight", "model.network.classifier.bias"},
    "adapters": {"head.weight", "head.bias"},
    "text-anchored": {"head.log_scale"},
}
"""The last layers of models for attack detection."""


@pytest.mark.parametrize("name", HEADS)
def test_head_of_a_model_is_its_last_layer(name: str, sets: Sets) -> None:
    recipe, compute = recipe_of(combined(sets, "fedrep", name)), resolve_compute("cpu", "fp32")
    net = on("fedrep", name).network(recipe).train()
    statistics = {key: value.clone() for key, value in net.named_buffers()}
    site = Site("A", recipe, 1, View.of(PreparedSet.open(sets["A"]), "train"), net, compute, {}, {})
    assert MODELS[name].head(site).keys() == HEADS[name]
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, statistics[key]) for key, value in net.named_buffers())


@pytest.mark.long
def test_personal_models_without_a_pull_are_those_of_sites_alone(ditto_alone: Path, sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "single"), tmp_path / "single")
    alone = load_file(tmp_path / "single" / "model.safetensors")
    for site in SITES:
        expected, actual = under(f"{site}/", alone), kept_by(ditto_alone, site, PREFIX["ditto"])
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_weights_of_personal_models_stay_at_the_site(ditto_alone: Path) -> None:
    fields = {line["field"] for line in read_lines(ditto_alone / "ledger.jsonl") if line["direction"] == "up"}
    assert fields == {"weights", "examples", "loss", "histogram", "scatter", "by_type", "people", "own_histograms"}


def test_sites_evaluate_their_personal_model_on_their_held_out_images(ditto_alone: Path, sets: Sets) -> None:
    recipe, metrics = recipe_of(tree(sets, "ditto")), read_metrics(ditto_alone / "metrics.json")
    rates, bounds = [], []
    for site in SITES:
        opened = PreparedSet.open(sets[site])
        chosen = opened.rows.split == "heldout"
        net = resnet18.network(recipe)
        net["model"].load_state_dict(under("model.", kept_by(ditto_alone, site, PREFIX["ditto"])))
        stored = torch.from_numpy(np.array(opened.images)[chosen]).permute(0, 3, 1, 2)
        images = prepare(stored, "rgb+hsv", torch.device("cpu"))
        with torch.inference_mode():
            logits = net.eval()["model"](images).squeeze(1).double()
        live = torch.from_numpy(opened.rows.label[chosen] == 1)
        above = logits[live][:, None] - logits[~live][None, :]
        rates.append(float((above > 0).double().mean() + (above == 0).double().mean() / 2))
        # A pair within a bin counts half; the run and this test may round a logit to different sides of an edge.
        bounds.append(float((above.abs() < (EDGES[1] - EDGES[0]) + 1e-4).double().mean() / 2) + 1e-6)
        assert metrics[f"sites_heldout.{site}.personal.own.auc"] == pytest.approx(rates[-1], abs=bounds[-1])
    assert metrics["personal.auc"] == pytest.approx(np.mean(rates), abs=float(np.mean(bounds)))
    assert metrics["personal.model"] == "own"


def test_figures_of_personal_models_are_in_summary_report_and_studies(ditto_alone: Path) -> None:
    metrics = read_metrics(ditto_alone / "metrics.json")
    eers = [metrics[f"sites_heldout.{site}.personal.own.eer"] for site in SITES]
    assert value_of(metrics, "personal.eer") == pytest.approx(np.mean(eers))
    assert any("own models" in line and percent(np.mean(eers)) in line for line in TASK.summarise(metrics))
    table = heldout_table(metrics)
    assert table is not None
    column = table.columns.index("EER %, own model")
    assert [float(row[column]) for row in table.rows] == pytest.approx([100 * eer for eer in eers], abs=0.01)


@pytest.mark.parametrize(("name", "options"), [("fedrep", {}), ("fedala", {"method__rate": 1e6})])
def test_noise_bounds_the_distance_from_the_weights_of_the_server(
    name: str, options: dict[str, float], sets: Sets
) -> None:
    """A site starts from a mix of the server's weights and its own, which is not what the bound refers to."""
    clip = 0.05
    recipe = recipe_of(tree(sets, name, federation__dp={"clip": clip, "noise": 1.0, "delta": 1e-5}, **options))
    method, compute = METHODS[name], resolve_compute("cpu", "fp32")
    with seed_global_rng(0, "initial weights"):
        net = method.network(recipe).train()
    train = clip_at_site(method.calls, recipe, net)["train"]
    view, lent, kept = View.of(PreparedSet.open(sets["A"]), "train"), state_of(net, "model"), dict[str, Tensor]()
    for number in (1, 2):
        site = Site("A", recipe, number, view, net, compute, kept, {})
        with seed_global_rng(0, "library draws"):
            reply = train.run(site, dict(lent))
        moved = [reply[key].double() - value.double() for key, value in lent.items() if value.is_floating_point()]
        assert 0 < float(torch.cat([value.flatten() for value in moved]).norm()) <= clip
        kept = dict(site.private_state())
        # The next lent weights are elsewhere, as other sites have moved them.
        lent = {key: value + 0.1 if value.is_floating_point() else value for key, value in lent.items()}


@pytest.mark.parametrize("name", ["ditto", "fedrep", "fedbabu", "fedala", "mrmtl"])
def test_an_earlier_rounds_model_is_refused_beside_personal_models_of_the_last(name: str, sets: Sets) -> None:
    """FedRep's heads of one round would be evaluated on the body of another."""
    recipe = recipe_of(tree(sets, name, evaluation__every=1, evaluation__keep="best"))
    with refused("recipe.evaluation.keep", name, "last"):
        check(recipe, METHODS[name])
    check(recipe_of(tree(sets, name, evaluation__every=1)), METHODS[name])
