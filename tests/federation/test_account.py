"""Noise on the models and clusters with noise, together: one account, checked by another composition."""

import json
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from tests.federation.wires import Wire
from tests.refusals import refused
from tests.toy import Sets, recipe_of, run_toy, tree
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.base.streams import torch_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.privacy.clustering import BudgetSplit, ClusteringSettings, release
from fedvisage.federation.privacy.mechanisms import Budget, DerivedDraws
from fedvisage.federation.protections.combine import norm_of_update
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.protections.dp import account_of
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.wire.message import Message, Order, under
from fedvisage.methods import METHODS
from fedvisage.nn.inputs import prepare
from fedvisage.report.page import render
from fedvisage.report.run_files import read_run

DP: dict[str, Any] = {"clip": 0.5, "noise": 3.0, "delta": 1e-3, "entropy": "derived"}
ROUNDS = 2


def recipe_with_both(sets: Sets, **changes: Any) -> dict[str, Any]:
    own = {"method__clustered": "mean-features", "privacy": {"epsilon": 10.0, "delta": 0.05, "noise": "derived"}}
    short = {"training__rounds": ROUNDS, "evaluation__every": 0}
    return tree(sets, "privacyface", **{"federation__dp": DP, **short, **own, **changes})


@dataclass
class WireRecord:
    """Models lent by round, and replies by round, call and site."""

    lent: dict[int, Message] = field(default_factory=dict)
    replies: dict[tuple[int, str, str], Message] = field(default_factory=dict)

    def record(self, site: str, order: Order, message: Message) -> None:
        if order.call == "cluster":
            self.lent[order.round] = {name: value.clone() for name, value in order.message.items()}
        self.replies[order.round, order.call, site] = message


@pytest.fixture(scope="module")
def run_and_wire(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WireRecord]:
    out, wire_record = tmp_path_factory.mktemp("joint") / "run", WireRecord()
    run_toy(recipe_with_both(sets), out, wire=partial(Wire, record=wire_record.record))
    return out, wire_record


@pytest.fixture(scope="module")
def run(run_and_wire: tuple[Path, WireRecord]) -> Path:
    return run_and_wire[0]


@pytest.fixture(scope="module")
def wire_record(run_and_wire: tuple[Path, WireRecord]) -> WireRecord:
    return run_and_wire[1]


def delta_at(epsilon: float, shift: float, selections: int, each: float) -> float:
    """Return the δ of one Gaussian release, Δ/σ = ``shift``, with coins that show one of two data sets by e^each to 1.

    A coin is the worst case of a selection with that ε. With j of k coins for the first data set the loss is that
    of the Gaussian and (2j − k)·each; the Gaussian's own δ at any real ε is in closed form.
    """
    coins = np.arange(selections + 1)
    losses = (2 * coins - selections) * each
    chances = binom.pmf(coins, selections, math.exp(each) / (1 + math.exp(each)))
    rest = epsilon - losses
    gaussian = norm.cdf(shift / 2 - rest / shift) - np.exp(rest) * norm.cdf(-shift / 2 - rest / shift)
    return float((chances * gaussian).sum())


def epsilon_at(delta: float, *mechanisms: Any) -> float:
    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle, *mechanisms) > delta else (low, middle)
    return high


def test_account_equals_an_independent_composition_of_both_logs(run: Path) -> None:
    privacy = json.loads((run / "metrics.json").read_text())["privacy"]
    at_site = read_lines(run / "sites" / "A" / "releases" / "charges.jsonl")
    at_server = read_lines(run / "released" / "charges.jsonl")
    chosen = [one for one in at_site if one["mechanism"] == "selection"]
    summed = [one["sensitivity"] / one["sigma"] for one in at_site if one["mechanism"] == "gaussian"]
    models = [2 * one["sensitivity"] / one["sigma"] for one in at_server]
    assert (len(chosen), len(summed), len(models)) == (ROUNDS, ROUNDS, ROUNDS)
    shift = math.sqrt(sum(one**2 for one in summed + models))
    expected = epsilon_at(0.05 + DP["delta"], shift, len(chosen), chosen[0]["epsilon"])
    assert expected > 0.1
    assert privacy["tight_epsilon"] == pytest.approx(expected, rel=0.01)
    assert privacy["at_delta"] == pytest.approx(0.051)
    assert privacy["tight_epsilon"] < privacy["epsilon"]
    alone = [epsilon_at(DP["delta"] / ROUNDS, one, 0, 0.0) for one in models]
    assert privacy["epsilon"] == pytest.approx(sum(one["epsilon"] for one in at_site) + sum(alone), rel=1e-3)
    assert privacy["delta"] == pytest.approx(sum(one["delta"] for one in at_site) + DP["delta"])
    assert (privacy["relation"], privacy["noise"]) == (["person"], "derived")
    assert (privacy["models"]["relation"], privacy["releases"]["relation"]) == (["site"], ["add-remove"])


def test_lent_weights_count_the_noise_of_earlier_rounds(run: Path) -> None:
    privacy = json.loads((run / "metrics.json").read_text())["privacy"]
    down = {
        (row["round"], row["call"]): row["guarantee"]
        for row in read_lines(run / "ledger.jsonl")
        if row["direction"] == "down" and row["field"] == "model"
    }
    assert down[1, "cluster"] == "", "the first model has no noise on it, and nothing of the sites in it"
    assert down[2, "cluster"].startswith("site level, gaussian × 1")
    assert down[2, "heldout"].startswith("site level, gaussian × 2")
    assert down[2, "heldout"].endswith(f"ε {privacy['tight_epsilon']:.4g} tightly")
    assert "person level" in down[2, "cluster"]
    assert down[2, "cluster"] != down[2, "heldout"]


def test_a_site_clips_the_model_that_a_round_began_with(wire_record: WireRecord) -> None:
    """It does not come with the order to train."""
    for (number, call, site), reply in wire_record.replies.items():
        if call == "train":
            lent = wire_record.lent[number]
            assert norm_of_update({name: reply[name] for name in lent}, lent) <= DP["clip"], site


def test_clustering_uses_each_persons_own_features_under_the_lent_model(wire_record: WireRecord, sets: Sets) -> None:
    """Worked out again for round 2 from the lent model and the images: W, which trained by then, has no part in it."""
    recipe = recipe_of(recipe_with_both(sets))
    net = METHODS["privacyface"].network(recipe)["model"]
    net.load_state_dict(under("model.", wire_record.lent[ROUNDS]))
    net.eval()

    def directions(path: Path, split: str, images: int, people: int | None = None) -> Tensor:
        view = View.of(PreparedSet.open(path), split)
        actual = []
        for person in view.identities[:people]:
            own = np.flatnonzero(view.subjects == person)[:images]
            with torch.no_grad():
                features = normalize(net(prepare(view.batch(own).images, "rgb", torch.device("cpu"))))
            actual.append(normalize(features.sum(0), dim=0))
        return torch.stack(actual)

    centres = directions(Path(recipe.data.sites["A"]), "train", 99)
    candidates = directions(Path(recipe.data.public or ""), "train", 4)
    asked = ClusteringSettings(1.3, 1, 2, Budget(1.0, 0.01))
    draws = DerivedDraws(torch_rng(0, "A", ROUNDS, "noise", f"round {ROUNDS}, clusters"))
    expected = release(centres, candidates, asked, BudgetSplit(), draws).centres
    torch.testing.assert_close(wire_record.replies[ROUNDS, "cluster", "A"]["clusters"], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.long
def test_report_states_the_joint_cost_and_its_adversary(run: Path) -> None:
    privacy = json.loads((run / "metrics.json").read_text())["privacy"]
    html = render(read_run(run))
    assert "all images of one person at one site, added or removed" in html
    assert "It holds against users and other sites" in html
    assert f"ε {privacy['tight_epsilon']:.4g} at δ 0.051" in html
    assert "noise on the models" in html.partition("Models and releases in one account")[2]


def test_one_time_releases_count_once_with_noise_in_every_round(sets: Sets) -> None:
    content = recipe_with_both(sets, method__releases="once", training__rounds=5)
    account = account_of(recipe_of(content), METHODS["privacyface"])
    assert account is not None
    times = {one.release: one.times for one in account.charges(5)}
    assert times == {"clusters, selection": 1, "clusters, sums": 1, "noise on the models": 5}
    assert account.charges(0) == ()


def test_algorithm_1_is_added_as_in_the_paper_and_marked(sets: Sets) -> None:
    recipe = recipe_of(
        recipe_with_both(sets, method__clustering="paper", method__clustered="trained", method__queries=2)
    )
    account = account_of(recipe, METHODS["privacyface"])
    assert account is not None
    clusters = [one for one in account.charges(ROUNDS) if one.release.startswith("clusters")]
    assert sum(one.epsilon for one in clusters) == pytest.approx(2 * ROUNDS * 1.0)
    assert account.figures(ROUNDS)["relation"] == ["paper"]


@pytest.mark.parametrize(
    ("method", "own", "place", "keyword"),
    [
        ("privacyface", {"clustered": "trained"}, "recipe.federation.dp", "mean-features"),
        ("privacyface", {"clustering": "paper", "delta": None}, "recipe.method.delta", "recipe.federation.dp"),
        ("privacyface-without-noise", {}, "recipe.federation.dp", "privacyface-without-noise"),
        ("privacyface-naive", {}, "recipe.federation.dp", "privacyface-naive"),
    ],
)
def test_combinations_without_a_joint_account_are_refused(
    method: str, own: dict[str, Any], place: str, keyword: str, sets: Sets
) -> None:
    content = tree(sets, method, federation__dp=DP, evaluation__every=0)
    content["method"] |= own
    with refused(place, keyword):
        check_protection(recipe_of(content), METHODS[method])


def test_joint_account_needs_a_budget_for_releases(sets: Sets) -> None:
    with refused("recipe.privacy", "budget"):
        check_protection(recipe_of(recipe_with_both(sets, privacy={})), METHODS["privacyface"])
