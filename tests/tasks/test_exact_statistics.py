"""Exact BatchNorm statistics over all training images, requested per layer, also for finished runs."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import refused
from tests.toy import (
    SITES,
    NewRun,
    Sets,
    deterministic_files,
    make_set,
    quiet_reporter,
    recipe_of,
    run_toy,
    tree,
    weights,
)
from torch import Tensor, nn

import fedvisage as fv
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Member
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Order, Reply
from fedvisage.methods import METHODS
from fedvisage.nn.batchnorm import batchnorms
from fedvisage.nn.inputs import as_float, colour_channels
from fedvisage.runs.evaluate import recount
from fedvisage.runs.request import Request
from fedvisage.runs.run import run as whole_run
from fedvisage.runs.train import adoption
from fedvisage.tasks.saved_model import load

SIZES = {"A": 3, "B": 6, "C": 9, "U": 3}
EXACT = {"training__statistics": "exact", "training__rounds": 1}


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return sites of different sizes, to detect equal weights."""
    root = tmp_path_factory.mktemp("uneven")
    return {name: make_set(root / name, name, seed, subjects=size) for seed, (name, size) in enumerate(SIZES.items())}


@pytest.fixture(scope="module")
def run(uneven: Mapping[str, Path], new_run: NewRun) -> Path:
    return new_run(tree(uneven, "fedgpad", **EXACT))


def training_images(uneven: Mapping[str, Path], *sites: str) -> Tensor:
    """Return all training images of some sites, as networks take them."""
    views = [View.of(PreparedSet.open(uneven[name]), "train") for name in sites]
    raw = torch.cat([view.batch(torch.arange(len(view)).numpy()).images for view in views])
    return colour_channels(as_float(raw), "rgb+hsv")


def check_statistics(method: str, content: Mapping[str, Any], finished: Mapping[str, Tensor], shown: Tensor) -> None:
    """Compare a finished network's statistics with those that torch computes of one batch of all images."""
    recipe = recipe_of(content)
    whole = METHODS[method].network(recipe)
    net = nn.ModuleDict({part: whole[part] for part in METHODS[method].finished})
    net.load_state_dict(dict(finished))
    net.train()
    sizes: dict[nn.Module, int] = {}
    for layer in batchnorms(net):
        layer.momentum = 1.0
        layer.register_forward_pre_hook(
            lambda entry, given: sizes.update({entry: given[0].numel() // given[0].shape[1]})
        )
    with torch.no_grad():
        METHODS[method].prediction.predict(Member(net, shown, torch.Generator(), recipe))
    for counted, size in sizes.items():
        counted.get_buffer("running_var").mul_((size - 1) / size)  # torch stores the corrected variance
    actual, expected = statistics(finished), statistics(net.state_dict())
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=1e-3, atol=1e-4), name


def statistics(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if "running" in name}


def test_statistics_equal_one_batch_of_all_training_images(uneven: Mapping[str, Path], run: Path) -> None:
    images = training_images(uneven, *SITES)
    check_statistics("fedgpad", tree(uneven, "fedgpad"), load(run).finished, images)


@pytest.mark.slow
def test_statistics_change_nothing_else(uneven: Mapping[str, Path], run: Path, tmp_path: Path) -> None:
    plain, guarantees = tmp_path / "plain", tmp_path / "said"
    run_toy(tree(uneven, "fedgpad", training__rounds=1), plain)
    run_toy(tree(uneven, "fedgpad", training__rounds=1, training__statistics="averaged"), guarantees)
    assert weights(plain) == weights(guarantees)
    theirs, ours = load(plain).finished, load(run).finished
    differ = {name for name, value in theirs.items() if not torch.equal(value, ours[name])}
    assert differ == set(statistics(theirs))


def test_ledger_records_every_layer_of_every_site(run: Path) -> None:
    rows = [row for row in read_lines(run / LEDGER) if row["call"] == "statistics"]
    up = [row for row in rows if row["direction"] == "up"]
    layers = sum(name.endswith("running_mean") for name in load(run).finished)
    assert len(up) == 3 * len(SITES) * layers
    assert {row["field"] for row in up} == {"running_mean", "running_var", "examples"}
    assert all("training images" in row["guarantee"] for row in up)
    assert {row["kind"] for row in up} == {"statistic"}
    assert {row["field"] for row in rows if row["direction"] == "down"} == {"encoder", "classifier", "layer"}


@pytest.mark.long
def test_finished_run_gets_the_same_statistics_without_training(
    uneven: Mapping[str, Path], run: Path, tmp_path: Path
) -> None:
    run_toy(tree(uneven, "fedgpad", training__rounds=1), tmp_path / "trained")
    again = fv.recount(tmp_path / "trained", tmp_path / "again", cache=tmp_path / "cache", quiet=True)
    assert weights(again.directory) == weights(run)
    assert read_lines(again.directory / ROUNDS) == []
    ours, theirs = (entry / "scores.csv" for entry in (again.directory, run))
    assert ours.read_bytes() == theirs.read_bytes()
    assert load(again.directory).thresholds == load(run).thresholds


@pytest.mark.slow
def test_model_with_exact_statistics_keeps_them(run: Path, tmp_path: Path) -> None:
    recount(run, tmp_path / "twice", tmp_path / "cache", quiet_reporter())
    assert weights(tmp_path / "twice") == weights(run)


def test_unfinished_run_is_refused(tmp_path: Path) -> None:
    with refused(tmp_path, "fedvisage run --resume"):
        recount(tmp_path, tmp_path / "again", tmp_path / "cache", quiet_reporter())
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_resumed_run_gives_the_same_bytes(uneven: Mapping[str, Path], run: Path, tmp_path: Path) -> None:
    class Stopping(LocalTransport):
        def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
            for reply in super().call(orders):
                if any(order.call == "statistics" and int(order.message["layer"]) == 3 for order in orders.values()):
                    raise KeyboardInterrupt
                yield reply

    content = tree(uneven, "fedgpad", **EXACT)
    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", wire=Stopping)
    run_toy(content, tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run")["ledger.jsonl"] == deterministic_files(run)["ledger.jsonl"]
    assert weights(tmp_path / "run") == weights(run)


@pytest.mark.slow
def test_model_of_one_site_has_the_statistics_of_that_site(uneven: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(uneven, "single", **EXACT)
    run_toy(content, tmp_path / "run")
    finished = load(tmp_path / "run").finished
    for name in ("A", "C"):
        own = {key.removeprefix(f"{name}/"): value for key, value in finished.items() if key.startswith(f"{name}/")}
        check_statistics("single", content, own, training_images(uneven, name))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "pooled"])
def test_layers_at_sites_and_of_merged_sites_are_counted(
    uneven: Mapping[str, Path], tmp_path: Path, method: str
) -> None:
    content = tree(uneven, method, **EXACT)
    run_toy(content, tmp_path / "run")
    check_statistics(method, content, load(tmp_path / "run").finished, training_images(uneven, *SITES))


class OneSiteLies(LocalTransport):
    """A transport over which one site sends too few channels."""

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        for reply in super().call(orders):
            if reply.site == "B" and reply.message and "running_mean" in reply.message:
                short = {key: value[:1] if value.ndim else value for key, value in reply.message.items()}
                reply = Reply("B", short, ticket=reply.ticket)
            yield reply


@pytest.mark.long
def test_reply_with_other_channels_does_not_count(uneven: Mapping[str, Path], tmp_path: Path) -> None:
    content = tree(uneven, "fedgpad", **EXACT)
    run_toy(content, tmp_path / "run", wire=OneSiteLies)
    check_statistics("fedgpad", content, load(tmp_path / "run").finished, training_images(uneven, "A", "C"))
    requests = [
        row for row in read_lines(tmp_path / "run" / LEDGER) if row["call"] == "statistics" and row["site"] == "B"
    ]
    assert len([row for row in requests if row["direction"] == "up"]) == 3, "it is not asked about a second layer"


@pytest.mark.parametrize(
    ("method", "changes", "keyword"),
    [
        ("vit", {}, "BatchNorm"),
        ("fedpad", {"federation__secure": True}, "federation.secure"),
        ("fedpad", {"federation__combine": "median"}, "federation.combine"),
        ("privacyface", {}, "noise"),
    ],
)
def test_unsuitable_recipes_are_refused_before_training(
    sets: Sets, tmp_path: Path, method: str, changes: Mapping[str, Any], keyword: str
) -> None:
    content = tree(sets, method, **EXACT, **changes)
    with refused("recipe.training.statistics", keyword):
        run_toy(content, tmp_path / "run")
    assert not (tmp_path / "run" / ROUNDS).exists()


def test_model_with_exact_statistics_needs_them_for_evaluation(
    uneven: Mapping[str, Path], run: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tree(uneven, "fedgpad", training__rounds=1))
    with refused("run", "fedgpad"):
        whole_run(Request(recipe, tmp_path / "judged", tmp_path / "cache", training=adoption(run)), quiet_reporter())
