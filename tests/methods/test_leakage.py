"""Noise on the messages of split learning: one image's influence, the cost of all passes, and refused settings."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.wires import Wire
from tests.methods.interrupting import Interrupted, stop_after
from tests.refusals import failed, refused
from tests.toy import SITES, NewRun, Sets, copy_set, deterministic_files, recipe_of, run_toy, tree

from fedvisage.base.errors import RunFailed
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.privacy.mechanisms import Budget
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message, Order
from fedvisage.methods import METHODS
from fedvisage.methods.pad import leakage, split
from fedvisage.report.privacy import page
from fedvisage.report.run_files import read_run

CLIP = {"tokens": 2.0, "gradient": 0.05}
EPSILON, DELTA = 20.0, 1e-3


def content(sets: Sets, **changes: Any) -> dict[str, Any]:
    """Return FedSIS with noise, in which four rounds of two batches are almost three passes over 24 images."""
    settings: dict[str, Any] = {"training__rounds": 4, "training__local": {"batches": 2}, "evaluation__every": 0}
    settings |= {"privacy": {"epsilon": EPSILON, "delta": DELTA, "count": "tight", "noise": "derived"}}
    actual = tree(sets, "fedsis", **settings | changes)
    actual["method"] |= {"leakage": CLIP, "unify_every": 2}
    return actual


@pytest.fixture(scope="module")
def noised_run(sets: Sets, new_run: NewRun) -> Path:
    return new_run(content(sets))


def test_long_rows_are_clipped_and_short_rows_are_unchanged() -> None:
    drawn = np.random.default_rng(0).normal(size=(5, 3, 4)) * np.array([0.01, 0.1, 1, 10, 0])[:, None, None]
    actual = leakage.clip_rows(torch.from_numpy(drawn), 0.7).numpy()
    lengths = np.sqrt((drawn**2).sum((1, 2)))
    expected = np.where(lengths > 0.7, 0.7 / np.maximum(lengths, 1e-30), 1.0)[:, None, None] * drawn
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_row_that_is_not_finite_becomes_zero() -> None:
    """A lent network could be made to overflow on one image: neither a failure nor the noise may tell."""
    rows = torch.tensor([[3.0, 4.0], [float("inf"), 0.0], [float("nan"), 1.0]])
    assert leakage.clip_rows(rows, 1.0).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("passes", [1, 7, 40])
def test_all_passes_together_cost_the_budget_by_an_independent_accountant(passes: int) -> None:
    """Privacy loss distributions, composed numerically, against the closed form that the noise is chosen by."""
    from dp_accounting.pld import privacy_loss_distribution as losses

    clip, budget = leakage.ClipLengths(**CLIP), Budget(4.0, 1e-5)
    guards = [leakage.release_noise_of(clip, kind, budget, passes, "tight") for kind in leakage.KINDS]
    whole = losses.identity(value_discretization_interval=1e-3)
    for guard in guards:
        one = losses.from_gaussian_mechanism(guard.sigma / (2 * CLIP[guard.kind]), value_discretization_interval=1e-3)
        whole = whole.compose(one.self_compose(passes))
    assert whole.get_epsilon_for_delta(1e-5) == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("local", "rounds", "images", "passes"),
    [({"epochs": 1}, 60, 480, 60), ({"epochs": 2}, 5, 20, 10), ({"batches": 2}, 4, 24, 3), ({"batches": 1}, 3, 25, 1)],
)
def test_passes_are_counted_in_rounds_of_epochs_and_of_batches(
    sets: Sets, local: dict[str, int], rounds: int, images: int, passes: int
) -> None:
    """Batches of 8; a last batch of one image is left out."""
    recipe = recipe_of(content(sets, training__local=local, training__rounds=rounds))
    assert leakage.passes_of(recipe, "A", images) == passes


def test_sum_accounting_needs_more_noise() -> None:
    clip, budget = leakage.ClipLengths(**CLIP), Budget(4.0, 1e-5)
    tight, summed = (leakage.release_noise_of(clip, "tokens", budget, 10, count) for count in ("tight", "sum"))
    assert summed.sigma > 1.5 * tight.sigma
    assert summed.price.epsilon == pytest.approx(4.0 / 20, rel=1e-5)


def test_a_run_states_its_guarantee_and_stays_within_its_budget(noised_run: Path) -> None:
    privacy = json.loads((noised_run / "metrics.json").read_text())["privacy"]
    assert 0.99 * EPSILON < privacy["tight_epsilon"] <= EPSILON
    assert privacy["relation"] == ["image"]
    lines = read_lines(noised_run / "ledger.jsonl")
    noised = [line for line in lines if line["kind"] == "dp"]
    assert {line["field"] for line in noised} == {"tokens", "gradient"}
    assert len(noised) == 2 * len(SITES) * 4 * 2
    assert all("one training image of a site" in line["guarantee"] for line in noised)


def test_page_states_coverage_of_images_and_lists_paid_passes_only(noised_run: Path) -> None:
    section = page(read_run(noised_run))
    assert section is not None
    text = " ".join(section["sentences"])
    assert "covers one training image with its label" in text
    assert "Not covered: held-out images" in text
    assert "class centre" not in text
    _, releases = section["tables"]
    assert {row[2] for row in releases.rows} == {"gaussian × 1"}


def test_further_batches_of_a_paid_pass_are_free(noised_run: Path) -> None:
    """24 images are three batches of 8, so eight batches fall into three passes, each of two kinds."""
    charges = read_lines(noised_run / "sites" / "A" / "releases" / "charges.jsonl")
    paid = [charge["release"] for charge in charges if charge["times"]]
    assert paid == [f"pass {number}, {kind}" for number in (1, 2, 3) for kind in leakage.KINDS]
    assert {(charge["epsilon"], charge["delta"]) for charge in charges if not charge["times"]} == {(0.0, 0.0)}
    assert len(charges) == len(paid) + 2 * 8


@pytest.mark.long
def test_site_parts_stay_fixed_and_the_others_learn(sets: Sets, noised_run: Path) -> None:
    actual = load_file(noised_run / "model.safetensors")
    initial = initial_weights(sets, noised_run.parent / "initial")
    assert {key.split(".")[0] for key in actual if not torch.equal(actual[key], initial[key])} == {"blocks", "adapter"}


def initial_weights(sets: Sets, out: Path) -> Mapping[str, torch.Tensor]:
    """Return the model that a run's server has before the first round."""
    initial: dict[str, torch.Tensor] = {}
    whole = METHODS["fedsis"]

    def peek(s: Server) -> Any:
        initial.update(s.tensors(*s.net))
        yield from whole.server(s)

    run_toy(content(sets, training__rounds=1), out, method=replace(whole, server=peek))
    return initial


@pytest.mark.long
def test_another_image_moves_its_own_rows_only_and_never_by_more_than_twice_the_length(
    sets: Sets, tmp_path: Path
) -> None:
    """With the same derived noise the runs differ, in every pass, only in the values that the noise has to hide."""
    images = np.array(PreparedSet.open(sets["A"]).images)
    images[0] //= 3
    others = dict(sets) | {"A": copy_set(sets["A"], tmp_path / "A", images=images)}
    tokens = [tokens_of(content(which), tmp_path / f"{number}") for number, which in enumerate((sets, others))]
    assert len(tokens[0]) == len(tokens[1]) == 8
    differences = [(one - other).flatten(1).norm(dim=1) for one, other in zip(*tokens, strict=True)]
    rows = [int((difference > 1e-4).sum()) for difference in differences]
    assert sum(rows) in (2, 3)  # once in each pass; the third pass is not whole
    assert max(rows) == 1
    assert max(float(difference.max()) for difference in differences) <= 2 * CLIP["tokens"] + 1e-4


def tokens_of(recipe: dict[str, Any], out: Path) -> list[torch.Tensor]:
    """Run a recipe and return all tokens that left site A, as a recorder on the wire has them."""
    tokens: list[torch.Tensor] = []

    def record(site: str, _: Order, message: Message) -> None:
        if site == "A" and "tokens" in message:
            tokens.append(message["tokens"].clone())

    run_toy(recipe, out, wire=partial(Wire, record=record))
    return tokens


def test_a_second_visit_in_a_round_is_refused_and_releases_nothing(sets: Sets, tmp_path: Path) -> None:
    """A server that asks again in a round gets one batch per round, by its own number.

    Nothing is combined here, so the run fails in the end; the values that the site released stay charged.
    """
    whole, calls = METHODS["fedsis"], list[str]()

    def greedy(s: Server) -> Any:
        for _ in s.rounds():
            for _ in range(3):
                with s.visit("A") as site:
                    site.ask("tokens", split.opening_message(s, "A"))
                    calls.append("tokens")
            yield

    with failed(RunFailed, "A", "tokens", "round 2"):
        run_toy(content(sets, training__rounds=2), tmp_path / "run", method=replace(whole, server=greedy))
    released = sorted(path.stem for path in (tmp_path / "run" / "sites" / "A" / "releases").glob("*.safetensors"))
    assert released == ["batch 1, tokens", "batch 3, tokens"]
    assert len(calls) == 2
    charges = read_lines(tmp_path / "run" / "sites" / "A" / "releases" / "charges.jsonl")
    assert [charge["release"] for charge in charges] == ["pass 1, tokens", "batch 1, tokens", "batch 3, tokens"]


@pytest.mark.long
def test_releases_that_cannot_be_repeated_are_dropped(sets: Sets, tmp_path: Path) -> None:
    """With a checkpoint every round, no more than the last three rounds can come again; each has two batches."""
    run_toy(content(sets, training__rounds=6), tmp_path / "run")
    left = {path.stem for path in (tmp_path / "run" / "sites" / "A" / "releases").glob("*.safetensors")}
    assert left == {f"batch {number}, {kind}" for number in range(7, 13) for kind in leakage.KINDS}


def test_training_with_noise_reports_no_loss(noised_run: Path) -> None:
    assert all(row["loss"] == {} for row in read_lines(noised_run / "rounds.jsonl"))


def test_noise_beyond_float_range_is_refused_before_payment(sets: Sets, tmp_path: Path) -> None:
    recipe = content(sets, federation={"give_up_after": 1})
    recipe["method"]["leakage"] = {"tokens": 1e6, "gradient": 0.05}
    with failed(RunFailed, "A", "σ", "tokens"):
        run_toy(recipe, tmp_path / "run")
    assert not list((tmp_path / "run" / "sites").glob("*/releases/*"))


@pytest.mark.long
def test_a_noised_run_resumes_to_the_same_bytes(sets: Sets, tmp_path: Path, noised_run: Path) -> None:
    with pytest.raises(Interrupted):
        run_toy(content(sets), tmp_path / "run", method=stop_after(METHODS["fedsis"], 2))
    run_toy(content(sets), tmp_path / "run", resume=True)
    assert deterministic_files(tmp_path / "run") == deterministic_files(noised_run)


@pytest.mark.parametrize(
    ("change", "place", "keyword"),
    [
        ({"privacy": {}}, "recipe.method.leakage", "privacy.epsilon"),
        ({"training__sampling": "balanced"}, "recipe.training.sampling", "shuffled"),
        ({"method__leakage": None}, "recipe.privacy", "fedsis"),
        ({"evaluation__published": True}, "recipe.evaluation.published", "training scores without noise"),
        ({"evaluation__threshold": "source-train-eer"}, "recipe.evaluation.threshold", "source-eer"),
        ({"evaluation__shortcuts": True}, "recipe.evaluation.shortcuts", "without noise"),
        ({"method__leakage": {"tokens": 0.0, "gradient": 1.0}}, "recipe.method.leakage.tokens", "0.0"),
        ({"method__leakage": {"tokens": 1.0}}, "recipe.method.leakage.gradient", "missing"),
    ],
)
def test_meaningless_settings_are_refused_before_the_run(
    sets: Sets, tmp_path: Path, change: dict[str, Any], place: str, keyword: str
) -> None:
    recipe = content(sets, **{key: value for key, value in change.items() if not key.startswith("method")})
    recipe["method"] |= {key.removeprefix("method__"): value for key, value in change.items() if key.startswith("m")}
    with refused(place, keyword):
        run_toy(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
