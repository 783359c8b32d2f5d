"""DP-SGD per person: clipped gradients, noise, sampling, cost, and what a run sends, repeats and refuses."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.rdp import RdpAccountant
from safetensors.torch import load_file
from scipy.stats import norm
from tests.federation.wires import Wire
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import failed, refused
from tests.toy import SITES, NewRun, Sets, copy_set, deterministic_files, open_run_data, recipe_of, run_toy, tree
from torch.nn.functional import cross_entropy

from fedvisage.base.streams import torch_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.batch import Batch
from fedvisage.federation.privacy.accountant import (
    LEAST_MULTIPLIER,
    BudgetSpent,
    Charge,
    Relation,
    costs_from_table,
    joint_cost,
    table_of,
    tight_epsilon,
)
from fedvisage.federation.privacy.mechanisms import Budget, SystemDraws, standard_deviation
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.protections.dpsgd import add_clipped, check_norms, step_noise, train_on_people
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.releases import CHARGES, Allowance, Releases, SiteAccount
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, under
from fedvisage.methods import METHODS, find
from fedvisage.methods.algorithms.fedavg import local_training
from fedvisage.methods.catalogue import on
from fedvisage.methods.models import vit
from fedvisage.methods.models.model import Loss, train_batches
from fedvisage.metrics.recorded import read_metrics
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import tree_of
from fedvisage.report.privacy import promises

PRIVACY = {"clip": 1.0, "epsilon": 8.0, "delta": 1e-3, "rate": 0.5, "people": 2}
PLAIN_STEP: dict[str, Any] = {"name": "sgd", "lr": 0.5}
EVERYONE = {"clip": 1e3, "noise": 0.0, "rate": 1.0, "people": 4, "images": 100}
"""All four people of a site in every step, without noise or an effective bound."""


def content(sets: Sets, **changes: Any) -> dict[str, Any]:
    """Return FedAvg on a narrow vision transformer with privacy of people; a site trains on four people."""
    settings: dict[str, Any] = {"training__rounds": 2, "evaluation__every": 0, "privacy": {"noise": "derived"}}
    settings |= {"training__privacy": PRIVACY}
    recipe = tree(sets, on("fedavg", "vit"), **settings | changes)
    network = {"width": 8, "depth": 2, "heads": 2}
    recipe["method"] = {"name": "fedavg", "model": "vit", "weight": "uniform", "network": network}
    return recipe


def first_upload(recipe: dict[str, Any], out: Path) -> Message:
    """Run a recipe and return what site A sent in the first round."""
    replies: list[Message] = []

    def record(site: str, _: Order, message: Message) -> None:
        if site == "A":
            replies.append({name: value.clone() for name, value in message.items()})

    run_toy(recipe, out, wire=partial(Wire, record=record))
    return replies[0]


def initial_weights(recipe: dict[str, Any]) -> Message:
    net = find(recipe["method"]).initial_network(recipe_of(recipe))
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def site_of(sets: Sets, tmp_path: Path, **changes: Any) -> Site:
    """Return site A of a recipe in its first round."""
    recipe, method = content(sets, **changes), on("fedavg", "vit")
    train, net = open_run_data(recipe, tmp_path, method).sites["A"].train, method.network(recipe_of(recipe))
    return Site("A", recipe_of(recipe), 1, train, net, resolve_compute("cpu", "fp32"), {}, {})


@pytest.fixture(scope="module")
def private_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(content(sets))


# The gradient of a step.


@pytest.mark.parametrize("bound", [0.1, 3.0, 1e6])
def test_a_persons_gradient_is_clipped_over_all_weights_together(bound: float) -> None:
    draws = np.random.default_rng(0)
    parts = [draws.normal(size=shape).astype(np.float32) for shape in ((3, 4), (5,))]
    total = [torch.full(part.shape, 2.0, dtype=torch.float64) for part in parts]
    add_clipped([*total, torch.zeros(2, dtype=torch.float64)], [*map(torch.from_numpy, parts), None], bound)
    length = math.sqrt(sum((part.astype(np.float64) ** 2).sum() for part in parts))
    for summed, part in zip(total, parts, strict=True):
        np.testing.assert_allclose(summed.numpy(), 2 + part.astype(np.float64) * min(1, bound / length), rtol=1e-12)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_counts_as_zero(value: float) -> None:
    total = [torch.ones(2, dtype=torch.float64)]
    add_clipped(total, [torch.tensor([1.0, value])], 1.0)
    assert total[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("clip", [0.05, 0.5, 1e3])
def test_a_step_is_the_sum_of_clipped_gradients_by_hand(clip: float, sets: Sets, tmp_path: Path) -> None:
    """One network in float64, one backward pass per person, and the clipping as the paper prints it."""
    privacy = {**EVERYONE, "clip": clip, "people": 3}
    changes: dict[str, Any] = {"training__optimizer": PLAIN_STEP, "training__local": {"batches": 1}}
    recipe = content(sets, training__privacy=privacy, training__augment={}, training__rounds=1, **changes)
    actual = first_upload(recipe, tmp_path / "run")
    net = find(recipe["method"]).initial_network(recipe_of(recipe)).double()
    view = View.of(PreparedSet.open(sets["A"]), "train")
    total = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    for person in view.identities:
        batch = view.batch(np.flatnonzero(view.subjects == person))
        images = prepare(batch.images, recipe_of(recipe).input.colour, torch.device("cpu")).double()
        net.zero_grad()
        cross_entropy(vit.head(net, vit.represent(net, images)), batch.labels.long()).backward()
        gradients = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        for name, gradient in gradients.items():
            total[name] += gradient / max(1, length / clip)
    for name, value in net.named_parameters():
        expected = value.detach() - PLAIN_STEP["lr"] * total[name] / 3
        torch.testing.assert_close(actual[name].double(), expected, rtol=1e-4, atol=2e-5 * min(clip, 10))


@pytest.mark.long
def test_without_noise_and_with_everyone_steps_are_those_of_full_batches(sets: Sets, tmp_path: Path) -> None:
    """Each of a site's four people has six images, so the mean over people is that over images."""
    changes: dict[str, Any] = {"training__optimizer": PLAIN_STEP, "training__augment": {}, "training__batch": 24}
    run_toy(content(sets, training__privacy=EVERYONE, **changes), tmp_path / "null")
    run_toy(content(sets, training__privacy=None, **changes), tmp_path / "plain")
    null, plain = (load_file(tmp_path / name / "model.safetensors") for name in ("null", "plain"))
    start = initial_weights(content(sets))
    assert max(float((plain[name] - start[name]).abs().max()) for name in plain) > 0.1
    for name, value in plain.items():
        torch.testing.assert_close(null[name], value, rtol=1e-4, atol=1e-5)
    assert "privacy" not in json.loads((tmp_path / "null" / "metrics.json").read_text())


@pytest.mark.parametrize("person", [0, 3])
def test_one_person_less_moves_a_step_by_the_clip_at_most(person: int, sets: Sets, tmp_path: Path) -> None:
    """Random changes of the others' images must not depend on the person, the first or the last by name."""
    changes: dict[str, Any] = {"training__optimizer": {"name": "sgd", "lr": 1.0}, "training__local": {"batches": 1}}
    changes |= {"training__augment": {"flip": 0.5, "shift": 0.1, "brightness": 0.3}, "training__rounds": 1}
    changes |= {"training__privacy": {**EVERYONE, "clip": 0.2, "people": 1, "images": 4}}
    rows = PreparedSet.open(sets["A"]).rows.subject
    chosen = np.flatnonzero(rows != sorted(set(rows))[person])
    fewer = dict(sets) | {"A": copy_set(sets["A"], tmp_path / "A", chosen=chosen)}
    uploads = [first_upload(content(which, **changes), tmp_path / name) for name, which in (("1", sets), ("2", fewer))]
    moved = math.sqrt(sum(float((uploads[0][name] - uploads[1][name]).double().square().sum()) for name in uploads[0]))
    assert moved == pytest.approx(0.2, rel=1e-3)  # every gradient here is longer, and weights are of float32


# Noise and sampling.


def test_noise_is_that_of_the_stream_of_site_and_round(sets: Sets, tmp_path: Path) -> None:
    """At this rate nobody is drawn, so the step is the noise alone; the stream draws people first."""
    privacy = {"clip": 0.5, "noise": 3.0, "delta": 1e-3, "rate": 1e-9, "people": 2}
    changes: dict[str, Any] = {"training__optimizer": {"name": "sgd", "lr": 1.0}, "training__local": {"batches": 1}}
    recipe = content(sets, training__privacy=privacy, training__rounds=1, **changes)
    actual, start = first_upload(recipe, tmp_path / "run"), initial_weights(recipe)
    stream = torch_rng(0, "A", 1, "noise", "round 1, weights")
    torch.rand(4, dtype=torch.float64, generator=stream)
    moved = []
    for name, value in start.items():
        expected = torch.randn(value.shape, dtype=torch.float64, generator=stream) * 3.0 * 0.5 / 2
        torch.testing.assert_close(actual[name].double(), value - expected, rtol=1e-6, atol=1e-6)
        moved.append((actual[name] - value).flatten())
    every = torch.cat(moved)
    assert float(every.std()) == pytest.approx(0.75, rel=4 / math.sqrt(2 * len(every)))


def test_people_are_drawn_independently_at_the_rate(sets: Sets, tmp_path: Path) -> None:
    privacy = {**EVERYONE, "rate": 0.3, "images": 4}
    site = site_of(sets, tmp_path, training__privacy=privacy, training__local={"batches": 300})
    drawn: list[tuple[str, int]] = []

    def loss(site: Site, batch: Batch) -> torch.Tensor:
        assert batch.positions is not None
        (person,) = set(site.data.subjects[batch.positions])
        drawn.append((str(person), len(batch.positions)))
        return next(iter(site.net.parameters())).sum()

    train_on_people(site, loss)
    assert {images for _, images in drawn} == {4}
    for person in site.data.identities:
        times = sum(name == person for name, _ in drawn)
        assert abs(times - 90) < 4 * math.sqrt(300 * 0.3 * 0.7)
    per_step = len(drawn) / 300
    assert per_step == pytest.approx(1.2, abs=4 * math.sqrt(4 * 0.3 * 0.7 / 300))


# Cost.


def steps_of(multiplier: float, rate: float, times: int) -> list[Charge]:
    return [Charge("r", "sampled-gaussian", 0.0, 0.0, "person", 2.0, 2 * multiplier, times, rate)]


@pytest.mark.parametrize(("multiplier", "rate", "delta"), [(1.0, 0.1, 1e-5), (0.7, 0.5, 1e-3), (3.0, 0.2, 1e-6)])
def test_cost_of_one_step_is_that_of_the_closed_form(multiplier: float, rate: float, delta: float) -> None:
    """The densities' ratio increases, so δ is a difference of two tails, for a person added and for one removed."""
    epsilon = tight_epsilon(steps_of(multiplier, rate, 1), delta)

    def delta_at(epsilon: float) -> float:
        with_person = [(1 - rate, 0.0), (rate, 1.0)]

        def tail(mixture: Sequence[tuple[float, float]], start: float) -> float:
            return float(sum(share * norm.sf(start, mean, multiplier) for share, mean in mixture))

        removed = added = 0.0
        if (odds := (math.exp(epsilon) - 1 + rate) / rate) > 0:
            start = multiplier**2 * math.log(odds) + 0.5
            removed = tail(with_person, start) - math.exp(epsilon) * tail([(1.0, 0.0)], start)
        if (odds := (math.exp(-epsilon) - 1 + rate) / rate) > 0:
            end = multiplier**2 * math.log(odds) + 0.5
            added = 1 - tail([(1.0, 0.0)], end) - math.exp(epsilon) * (1 - tail(with_person, end))
        return max(removed, added)

    assert delta_at(epsilon) == pytest.approx(delta, rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize(("epsilon", "rate", "rounds", "steps"), [(8.0, 0.2, 3, 20), (1.0, 0.1, 10, 10)])
def test_noise_for_a_budget_agrees_with_another_accountant(
    epsilon: float, rate: float, rounds: int, steps: int, sets: Sets
) -> None:
    """Rényi differential privacy bounds the same mechanism from above, and by less than a quarter too high here."""
    privacy = {"clip": 3.0, "epsilon": epsilon, "delta": 1e-5, "rate": rate}
    local = {"batches": steps}
    noised = step_noise(
        recipe_of(content(sets, training__privacy=privacy, training__rounds=rounds, training__local=local))
    )
    assert noised is not None
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noised.multiplier))
    bound = RdpAccountant(list(range(2, 256))).compose(event, rounds * steps).get_epsilon(1e-5)
    assert epsilon <= bound < 1.25 * epsilon
    total = [noised.charge(f"round {number}, weights") for number in range(rounds)]
    assert 0.99 * epsilon < joint_cost(total, 1e-5).tight_epsilon <= epsilon
    assert math.fsum(charge.delta for charge in total) == pytest.approx(1e-5)


def test_cost_without_sampling_is_that_of_gaussian_releases() -> None:
    deviation = standard_deviation(Budget(3.0, 1e-5), 1.0)
    assert tight_epsilon(steps_of(deviation * math.sqrt(16), 1.0, 16), 1e-5) == pytest.approx(3.0, rel=2e-3)


@pytest.mark.parametrize("multiplier", [0.04, 1e-6])
def test_sampled_steps_with_almost_no_noise_cost_as_much_as_unsampled_ones(multiplier: float) -> None:
    unsampled = Charge("r", "gaussian", 0.0, 0.0, "person", 2.0, 2 * multiplier, 3)
    assert tight_epsilon(steps_of(multiplier, 0.1, 3), 1e-5) == pytest.approx(tight_epsilon([unsampled], 1e-5))


def test_account_uses_the_sampling_from_the_least_multiplier_on() -> None:
    """At the limit, both figures differ by little, so the cost decreases with the noise."""
    below, at = (tight_epsilon(steps_of(multiplier, 0.5, 1), 1e-5) for multiplier in (0.0499, LEAST_MULTIPLIER))
    assert 0.95 * below < at < below


def test_a_site_pays_only_for_rounds_that_select_it(sets: Sets) -> None:
    privacy = {"clip": 1.0, "noise": 1.0, "delta": 1e-3}
    changes = {"training__privacy": privacy, "training__rounds": 9, "federation": {"participation": 0.34}}
    noised = step_noise(recipe_of(content(sets, **changes)))
    assert noised is not None
    assert 3 <= noised.visits < 9
    expected = tight_epsilon(steps_of(1.0, 0.1, 2 * noised.visits), 1e-3)
    assert noised.allowance().total.epsilon == pytest.approx(expected)


def test_a_budget_that_no_noise_meets_is_refused(sets: Sets) -> None:
    privacy = {**PRIVACY, "epsilon": 1e-7, "delta": 1e-9}
    with refused("recipe.training.privacy.epsilon", "1e-07"):
        step_noise(recipe_of(content(sets, training__privacy=privacy)))


def test_clip_whose_noise_exceeds_a_reply_is_refused(sets: Sets) -> None:
    privacy = {**PRIVACY, "rate": 1.0, "epsilon": 0.005, "delta": 1e-7, "clip": 1000}
    with refused("recipe.training.privacy.clip", "1000", "epsilon"):
        step_noise(recipe_of(content(sets, training__privacy=privacy)))


@pytest.mark.parametrize(
    ("rounds", "place", "most"),
    [(50_001, "recipe.training", "100,000"), (10**15, "recipe.training.rounds", "100000")],
)
def test_a_site_refuses_a_recipe_whose_account_would_take_minutes(
    rounds: int, place: str, most: str, sets: Sets
) -> None:
    with refused(place, most):
        recipe_of(content(sets, training__rounds=rounds))


def test_costs_of_sampled_releases_cross_the_wire_with_their_rate() -> None:
    charges = steps_of(1.5, 0.25, 10)
    total = joint_cost(charges, 1e-5)
    actual, same = costs_from_table(table_of(charges, total))
    assert (replace(actual[0], release="r"), same) == (charges[0], total)
    assert all(len(row) == 7 for row in table_of([replace(charges[0], mechanism="gaussian", rate=None)], total))


# The account of a site.


def test_the_runs_of_a_site_share_one_account(tmp_path: Path) -> None:
    (charge,) = steps_of(2.0, 0.5, 5)
    epsilon = tight_epsilon([charge], 1e-3)
    allowance = Allowance(Budget(1.01 * epsilon, 1e-3), "tight")

    def release(run: str, limit: float | None = None) -> None:
        log = Releases(tmp_path / run / "releases", account=SiteAccount(tmp_path, limit, 1e-3))
        log.release("r", lambda draws: {"value": draws.normal((2,))}, [charge], allowance, SystemDraws())

    release("first")
    release("first")  # the stored value again
    with failed(BudgetSpent, "rule epsilon"):
        release("second")
    assert read_lines(tmp_path / "second" / "releases" / CHARGES) == []
    both = tight_epsilon([charge, charge], 1e-3)
    with failed(BudgetSpent, "rule epsilon"):
        release("second", 0.99 * both)
    release("second", 1.01 * both)
    assert len(read_lines(tmp_path / "second" / "releases" / CHARGES)) == 1


def test_releases_of_other_kinds_count_across_runs_by_the_rule_of_the_site_alone(tmp_path: Path) -> None:
    charge = Charge("r", "gaussian", 1.0, 1e-5, "add-remove", 1.0, 4.0)
    (sampled,) = steps_of(2.0, 0.5, 5)  # about another unit

    def release(run: str, limit: float | None) -> None:
        log = Releases(tmp_path / run / "releases", account=SiteAccount(tmp_path, limit))
        log.release("r", lambda draws: {}, [charge], Allowance(Budget(1.0, 1e-3), "sum"), SystemDraws())

    people = Releases(tmp_path / "people" / "releases", account=SiteAccount(tmp_path))
    people.release("r", lambda draws: {}, [sampled], Allowance(Budget(99.0, 1e-3), "tight"), SystemDraws())
    release("first", None)
    release("second", None)
    # By basic composition each unit has half of δ. Three releases with σ 4 equal one with 4/√3.
    total = get_epsilon_gaussian(4 / math.sqrt(3), 0.5e-5) + tight_epsilon([sampled], 0.5e-5)
    with failed(BudgetSpent, "rule epsilon", f"ε {total:.4g} at δ 1e-05"):
        release("third", 0.999 * total)
    release("third", 1.001 * total)


@pytest.mark.parametrize("second", [("add-remove", 1.0, 0.99), ("image", 8.0, 1e-5), ("paper", 8.0, 1e-5)])
def test_delta_and_relation_that_an_operator_chooses_do_not_evade_the_rule_of_the_site(
    second: tuple[Relation, float, float], tmp_path: Path
) -> None:
    first: tuple[Relation, float, float] = ("add-remove", 8.0, 1e-5)
    logs = []
    for relation, epsilon, delta in (first, second):
        sigma = standard_deviation(Budget(epsilon, delta), 1.0)
        charge = Charge("r", "gaussian", epsilon, delta, relation, 1.0, sigma)
        log = Releases(tmp_path / f"{relation}-{delta}" / "releases", account=SiteAccount(tmp_path, 8.0))
        logs.append(partial(log.release, "r", lambda draws: {}, [charge], Allowance(Budget(epsilon, delta), "tight")))
    logs[0](SystemDraws())
    with failed(BudgetSpent, "rule epsilon"):
        logs[1](SystemDraws())


def test_a_run_ends_before_the_round_that_a_site_cannot_pay(sets: Sets, tmp_path: Path, private_run: Path) -> None:
    noised = step_noise(recipe_of(content(sets)))
    assert noised is not None
    limit = 1.01 * tight_epsilon([noised.charge("round 1, weights")], PRIVACY["delta"])

    def with_limit(workers: Sequence[SiteWorker]) -> LocalTransport:
        for worker in workers:
            account = SiteAccount(tmp_path, limit, PRIVACY["delta"])
            worker.releases = Releases(worker.releases.directory, worker.store.owner, account)
        return LocalTransport(workers)

    run_toy(content(sets), tmp_path / "run", wire=with_limit)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["rounds"] == 1
    assert metrics["privacy"]["tight_epsilon"] <= limit
    charges = read_lines(tmp_path / "run" / "sites" / "A" / "releases" / CHARGES)
    assert [charge["release"] for charge in charges] == ["round 1, weights"]


# A run.


def test_a_run_states_its_guarantee_and_stays_within_its_budget(private_run: Path) -> None:
    privacy = json.loads((private_run / "metrics.json").read_text())["privacy"]
    assert 0.99 * 8 < privacy["tight_epsilon"] <= 8
    assert (privacy["relation"], privacy["at_delta"], privacy["noise"]) == (["person"], 1e-3, "derived")
    charges = read_lines(private_run / "sites" / "A" / "releases" / CHARGES)
    assert [(charge["release"], charge["times"]) for charge in charges] == [
        ("round 1, weights", 2),
        ("round 2, weights", 2),
    ]


def test_a_site_sends_weights_and_cost_but_no_count_and_no_loss(private_run: Path) -> None:
    ledger = read_lines(private_run / "ledger.jsonl")
    sent = [(row["field"], row["kind"]) for row in ledger if row["direction"] == "up" and row["call"] == "train"]
    assert sent == [("weights", "dp"), ("cost", "statistic")] * len(SITES) * 2
    assert all(row["loss"] == {} for row in read_lines(private_run / "rounds.jsonl"))


def test_report_lists_uncovered_people(sets: Sets, private_run: Path) -> None:
    recipe = recipe_of(content(sets))
    text = " ".join(promises(read_metrics(private_run / "metrics.json"), tree_of(recipe)))
    assert "all images of one person at one site, added or removed" in text
    assert "Not covered: held-out people" in text


def test_a_private_run_resumes_to_the_same_bytes(sets: Sets, tmp_path: Path, private_run: Path) -> None:
    with pytest.raises(Interrupted):
        run_toy(content(sets), tmp_path / "run", method=stop_after(on("fedavg", "vit"), 1))
    run_toy(content(sets), tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run") == deterministic_files(private_run)


def test_a_repeated_visit_sends_the_stored_weights_again(sets: Sets, tmp_path: Path) -> None:
    """System noise cannot repeat, so equal models show that the second round was not drawn twice."""
    system = content(sets, privacy={})
    with pytest.raises(Interrupted):
        run_toy(system, tmp_path / "run", method=stop_after(on("fedavg", "vit"), 2))
    stored = load_file(tmp_path / "run" / "sites" / "A" / "releases" / "round 2, weights.safetensors")
    (tmp_path / "run" / "checkpoints" / "000002.safetensors").unlink()
    run_toy(system, tmp_path / "run", resume=True)
    again = load_file(tmp_path / "run" / "sites" / "A" / "releases" / "round 2, weights.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in stored.items())
    assert len(read_lines(tmp_path / "run" / "sites" / "A" / "releases" / CHARGES)) == 2


def test_a_repeated_visit_keeps_the_weights_that_it_sent(sets: Sets, tmp_path: Path) -> None:
    own = content(sets, privacy={})
    own["method"] |= {"name": "mrmtl", "pull": 0.5}
    with pytest.raises(Interrupted):
        run_toy(own, tmp_path / "run", method=stop_after(on("mrmtl", "vit"), 2))
    (tmp_path / "run" / "checkpoints" / "000002.safetensors").unlink()
    run_toy(own, tmp_path / "run", resume=True)
    sent = load_file(tmp_path / "run" / "sites" / "A" / "releases" / "round 2, weights.safetensors")
    store = SiteStore(tmp_path / "run" / "sites" / "A")
    store.restore(2)
    kept = under("local/", store.load())
    assert kept
    assert all(torch.equal(value, sent[name]) for name, value in kept.items())


# Refusals.


@pytest.mark.parametrize(
    ("changes", "place", "keyword"),
    [
        ({"training__local": {"epochs": 1}}, "recipe.training.local", "batches"),
        ({"training__sampling": "balanced"}, "recipe.training.sampling", "people"),
        ({"training__optimizer__state": "kept"}, "recipe.training.optimizer.state", "fresh"),
        ({"method__weight": "examples"}, "recipe.method.weight", "uniform"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5}}, "recipe.privacy.epsilon", "budget"),
        ({"evaluation__threshold": "source-train-eer"}, "recipe.evaluation.threshold", "source-eer"),
        ({"evaluation__published": True}, "recipe.evaluation.published", "training.privacy"),
        ({"evaluation__shortcuts": True}, "recipe.evaluation.shortcuts", "training.privacy"),
        ({"federation__secure": True}, "recipe.training.privacy", "federation.secure"),
        ({"federation__dp": {"clip": 1.0, "noise": 0.0}}, "recipe.training.privacy", "federation.dp"),
        ({"training__statistics": "exact"}, "recipe.training.statistics", "noise"),
        ({"training__privacy": {"clip": 1.0}}, "recipe.training.privacy", "epsilon"),
        ({"training__privacy": {"clip": 1.0, "epsilon": 1.0}}, "recipe.training.privacy", "delta"),
        ({"training__privacy": {"clip": 1.0, "noise": 1e-9, "delta": 1e-3}}, "recipe.training.privacy", "1e-09"),
        ({"training__privacy": {"clip": 1.0, "noise": 1e-4, "delta": 1e-3}}, "recipe.training", "0.0001"),
        ({"training__privacy": {"clip": 1.0, "noise": 1e9, "delta": 1e-3}}, "recipe.training.privacy.noise", "1000"),
        ({"training__privacy": {**PRIVACY, "clip": 1e30}}, "recipe.training.privacy.clip", "1000"),
        ({"training__privacy": {**PRIVACY, "delta": 0.9}}, "recipe.training.privacy.delta", "0.1"),
        ({"training__privacy": {**PRIVACY, "unit": "image"}}, "recipe.training.privacy.unit", "person"),
        ({"training__privacy": {**PRIVACY, "rate": 1.5}}, "recipe.training.privacy.rate", "1.5"),
        ({"method__name": "scaffold"}, "recipe.training.privacy", "scaffold"),
        ({"method__name": "moon"}, "recipe.training.privacy", "moon"),
    ],
)
def test_settings_without_protection_are_refused_before_the_run(
    changes: dict[str, Any], place: str, keyword: str, sets: Sets, tmp_path: Path
) -> None:
    recipe = content(sets, **{key: value for key, value in changes.items() if not key.startswith("method")})
    recipe["method"] |= {key.removeprefix("method__"): value for key, value in changes.items() if key.startswith("m")}
    with refused(place, keyword):
        run_toy(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_methods_whose_sites_keep_or_send_other_values_are_left_out() -> None:
    averaging = {"fedpad", "fedprox", "fedadam", "fedyogi", "mrmtl", "fedavg-vit-h", "fedprox-vit-h"}
    expected = averaging | {"pooled", "vit", "vit-h"}
    assert {name for name, method in METHODS.items() if "people" in method.supports} == expected


def train_without_noise(site: Site, loss: Loss) -> None:
    optimizer = site.optimizer(*site.net)
    for batch in site.batches():
        site.learn(optimizer, partial(loss, site), batch)


def train_twice(site: Site, loss: Loss) -> None:
    train_batches(site, loss)
    train_batches(site, loss)


@pytest.mark.parametrize("fit", [train_without_noise, train_twice])
def test_local_work_whose_noise_is_not_that_of_the_account_sends_nothing(
    fit: Callable[[Site, Loss], None], sets: Sets, tmp_path: Path
) -> None:
    averaging, sent = on("fedavg", "vit"), list[str]()
    call = averaging.calls["train"]
    run = local_training(vit.MODEL.loss, *vit.MODEL.parts, fit=fit)
    method = replace(averaging, calls={"train": replace(call, run=run)})
    wire = partial(Wire, record=lambda site, order, message: sent.append(site))
    with refused("recipe.training.privacy", "noise"):
        run_toy(content(sets), tmp_path / "run", method=method, wire=wire)
    assert not sent


def test_recognition_is_refused(sets: Sets, tmp_path: Path) -> None:
    with refused("recipe.training.privacy", "fedavg"):
        run_toy(tree(sets, "fedavg", training__privacy=PRIVACY), tmp_path / "run")


def test_batchnorm_is_refused_unless_frozen_or_replaced(sets: Sets, tmp_path: Path) -> None:
    recipe = tree(sets, "fedpad", training__privacy=PRIVACY, training__rounds=1, evaluation__every=0)
    with refused("recipe.training.privacy", "BatchNorm", "network.norm"):
        run_toy(recipe, tmp_path / "run")
    frozen = tree(sets, "fedpad", training__privacy=PRIVACY, training__statistics="frozen")
    grouped = tree(sets, "fedpad", training__privacy=PRIVACY)
    grouped["method"]["network"] = {"norm": "group"}
    for allowed in (recipe_of(frozen), recipe_of(grouped)):
        check_norms(allowed, METHODS["fedpad"].network(allowed))


def test_refusal_for_a_recognition_model_names_task_and_methods(sets: Sets) -> None:
    with refused("recipe.training.privacy", "attack detection", "mrmtl"):
        check_protection(recipe_of(tree(sets, "fedavg", training__privacy=PRIVACY)), METHODS["fedavg"])
