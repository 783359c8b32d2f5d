"""Noise on a sum of clipped updates: its size, its record, and its absence when switched off."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from safetensors.torch import load_file
from tests.refusals import failed, refused
from tests.toy import NewRun, Sets, deterministic_files, recipe_of, run_toy, tree, weights
from torch import nn

from fedvisage.base.errors import RunFailed
from fedvisage.federation.method import Call, Upload
from fedvisage.federation.privacy.mechanisms import DerivedDraws
from fedvisage.federation.protections.combine import combination_of, norm_of_update
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.protections.dp import noisy_mean, plan_of
from fedvisage.federation.protections.steps import clip_after_rounding, clip_at_server, clip_at_site
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.federation.wire.message import Message
from fedvisage.methods import METHODS
from fedvisage.recipe import Federation

DP = {"clip": 0.5, "noise": 0.1, "delta": 1e-3, "entropy": "derived"}


def private_recipe(sets: Sets, **changes: Any) -> dict[str, Any]:
    return tree(sets, **{"federation__dp": DP, "training__rounds": 2, "evaluation__every": 0, **changes})


@pytest.fixture(scope="module")
def baseline(sets: Sets, new_run: NewRun) -> Path:
    return new_run(private_recipe(sets))


def test_without_noise_and_with_a_large_bound_the_run_is_fedavg(sets: Sets, tmp_path: Path) -> None:
    run_toy(private_recipe(sets, federation__dp={"clip": 1e5, "noise": 0.0}), tmp_path / "null")
    run_toy(private_recipe(sets, federation={}), tmp_path / "fedavg")
    assert weights(tmp_path / "null") == weights(tmp_path / "fedavg")
    assert "privacy" not in json.loads((tmp_path / "null" / "metrics.json").read_text())


@pytest.mark.parametrize("bound", [1e-9, 1e-3, 0.05, 1.0, 30.0])
def test_an_update_is_within_the_bound_also_after_rounding(bound: float) -> None:
    draws = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(5000, generator=draws) * 3, "n": torch.tensor(4)}
    upload = {"w": base["w"] + torch.randn(5000, generator=draws) * 0.1, "n": torch.tensor(9)}
    actual = clip_after_rounding(upload, base, bound)
    norm = norm_of_update(actual, base)
    assert norm <= bound
    assert actual["w"].dtype == torch.float32
    assert bound < 0.01 or norm >= 0.99 * min(bound, norm_of_update(upload, base))


def test_a_site_moves_a_sum_by_no_more_than_the_clip() -> None:
    draws, base = np.random.default_rng(0), {"w": torch.zeros(200), "n": torch.tensor(0)}
    federation = Federation.model_validate({"dp": {"clip": 0.7, "noise": 0.0}})
    uploads = [{"w": torch.from_numpy(draws.normal(size=200).astype(np.float32)), "n": torch.tensor(1)} for _ in "ABCD"]

    def sum_of(last: Message) -> torch.Tensor:
        combined = combination_of(federation, lambda: base)
        for upload in [*uploads[:3], last]:
            combined.add(clip_at_server(upload, lambda: base, federation), 1.0)
        return combined.exact()["w"] * 4

    moved = float((sum_of(uploads[3]) - sum_of(base)).norm())
    assert moved == pytest.approx(0.7, rel=1e-12)


def test_update_in_a_secure_sum_is_within_the_clip_after_its_rounding(sets: Sets) -> None:
    """The clip is so small that rounding to multiples of 2⁻³² matters: it adds √(n / 12) · 2⁻³² on average."""
    clip, lent = 1e-7, {"model.weight": torch.zeros(100, 100)}
    update = torch.randn(100, 100, generator=torch.Generator().manual_seed(0))
    recipe = recipe_of(private_recipe(sets, federation={"dp": {**DP, "clip": clip}, "secure": True}))
    plain = Call(lambda site, message: {"model.weight": update}, (Upload("weights", "weights", parts=("model",)),))
    net = nn.ModuleDict({"model": nn.Linear(100, 100, bias=False)})
    clipped = clip_at_site({"train": plain}, recipe, net)["train"].run(SimpleNamespace(), lent)["model.weight"]  # type: ignore[arg-type]
    unit = 2.0**-32
    in_sum = np.round(clipped.double().numpy() / unit) * unit
    assert abs(np.linalg.norm(in_sum) - np.linalg.norm(clipped.double())) > 1e-3 * clip
    assert 0.6 * clip < np.linalg.norm(in_sum) <= clip


def test_a_variance_stays_above_a_tenth_of_the_lent_one_and_counters_stay_as_lent(sets: Sets) -> None:
    plan = plan_of(recipe_of(private_recipe(sets, federation__dp={**DP, "clip": 10.0, "noise": 10.0})))
    assert plan is not None
    lent = {"running_var": torch.full((1000,), 2.0), "n": torch.tensor(3)}
    mean = {"running_var": torch.full((1000,), 2.0, dtype=torch.float64), "n": torch.tensor(8.0)}
    actual = noisy_mean(mean, lent, 1, plan, DerivedDraws(torch.Generator().manual_seed(2)))
    assert float(actual["running_var"].min()) == pytest.approx(0.2)
    assert int(actual["n"]) == 3


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.5, 1), (2.0, 7), (8.0, 30)])
def test_noise_for_a_budget_agrees_with_another_accountant(epsilon: float, rounds: int, sets: Sets) -> None:
    dp = {"clip": 3.0, "epsilon": epsilon, "delta": 1e-5}
    plan = plan_of(recipe_of(private_recipe(sets, federation__dp=dp, training__rounds=rounds)))
    assert plan is not None
    one = privacy_loss_distribution.from_gaussian_mechanism(plan.multiplier, value_discretization_interval=1e-4)
    assert one.self_compose(rounds).get_epsilon_for_delta(1e-5) == pytest.approx(epsilon, rel=0.01)
    assert plan.figures(rounds)["epsilon"] == pytest.approx(epsilon, rel=1e-4)
    assert plan.figures(0)["epsilon"] == 0


def test_site_pays_only_for_rounds_in_which_it_is_sampled(sets: Sets) -> None:
    changes = {"federation": {"participation": 0.34, "dp": DP}, "training__rounds": 9}
    plan = plan_of(recipe_of(private_recipe(sets, **changes)))
    assert plan is not None
    assert list(plan.paid) == sorted(plan.paid)
    assert 3 <= plan.paid[-1] < 9
    assert plan.figures(9)["releases"] == plan.paid[-1]


def test_metrics_and_ledger_contain_figures_and_guarantee(baseline: Path) -> None:
    privacy = json.loads((baseline / "metrics.json").read_text())["privacy"]
    one = privacy_loss_distribution.from_gaussian_mechanism(DP["noise"], value_discretization_interval=1e-2)
    expected = one.self_compose(2).get_epsilon_for_delta(1e-3)
    assert privacy["epsilon"] == pytest.approx(expected, rel=0.01)
    assert (privacy["delta"], privacy["relation"], privacy["noise"]) == (1e-3, ["site"], "derived")
    ledger = read_lines(baseline / "ledger.jsonl")
    down = {(row["round"], row["call"]): row["guarantee"] for row in ledger if row["direction"] == "down"}
    assert down[1, "train"] == ""
    assert down[2, "train"].startswith("site level, gaussian × 1, σ 0.05, Δ 0.5: ε ")
    assert down[2, "heldout"].startswith("site level, gaussian × 2, σ 0.05, Δ 0.5: ε ")
    assert down[2, "heldout"].endswith("noise from the run's seed, which protects nobody")
    up = {row["guarantee"] for row in ledger if row["kind"] == "weights" and row["direction"] == "up"}
    assert up == {"update clipped to 0.5 at the site, no noise yet"}


@pytest.mark.long
def test_derived_noise_repeats_and_system_noise_does_not(baseline: Path, sets: Sets, tmp_path: Path) -> None:
    run_toy(private_recipe(sets), tmp_path / "again")
    assert deterministic_files(tmp_path / "again") == deterministic_files(baseline)
    run_toy(private_recipe(sets, federation__dp={**DP, "entropy": "system"}), tmp_path / "system")
    assert weights(tmp_path / "system") != weights(baseline)


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 2])
def test_released_value_is_not_drawn_again_after_a_kill(every: int, sets: Sets, tmp_path: Path) -> None:
    """Killed when round 2 is released and perhaps lent, and not yet in a checkpoint."""
    dp = {**DP, "entropy": "system"}
    content = private_recipe(sets, federation__dp=dp, runtime__checkpoint_every=every, evaluation__every=1)

    class Dying(LocalTransport):
        def commit(self, generation: int) -> dict[str, int]:
            actual = super().commit(generation)
            if generation == 2:
                raise KeyboardInterrupt
            return actual

    with pytest.raises(KeyboardInterrupt):
        run_toy(content, tmp_path / "run", wire=Dying)
    released = {path.name: path.read_bytes() for path in (tmp_path / "run" / "released").glob("*.safetensors")}
    assert set(released) == {"round 1.safetensors", "round 2.safetensors"}
    run_toy(content, tmp_path / "run", resume=True)
    for name, before in released.items():
        assert (tmp_path / "run" / "released" / name).read_bytes() == before
    actual, stored = (
        load_file(tmp_path / "run" / name) for name in ("model.safetensors", "released/round 2.safetensors")
    )
    assert all(torch.equal(value, stored[name]) for name, value in actual.items())
    assert len(read_lines(tmp_path / "run" / "released" / "charges.jsonl")) == 2


@pytest.mark.long
def test_missing_released_value_is_not_drawn_again(sets: Sets, tmp_path: Path) -> None:
    content = private_recipe(sets, federation__dp={**DP, "entropy": "system"})
    run_toy(content, tmp_path / "run")
    for path in [*(tmp_path / "run" / "checkpoints").iterdir(), tmp_path / "run" / "metrics.json"]:
        path.unlink()
    (tmp_path / "run" / "released" / "round 1.safetensors").unlink()
    with failed(RunFailed, "round 1.safetensors", "missing"):
        run_toy(content, tmp_path / "run", resume=True)


@pytest.mark.long
def test_values_older_than_any_checkpoint_are_dropped(sets: Sets, tmp_path: Path) -> None:
    run_toy(private_recipe(sets, training__rounds=6, training__local={"batches": 1}), tmp_path / "run")
    kept = {path.stem for path in (tmp_path / "run" / "released").glob("*.safetensors")}
    assert kept == {"round 4", "round 5", "round 6"}
    assert len(read_lines(tmp_path / "run" / "released" / "charges.jsonl")) == 6


@pytest.mark.long
def test_noise_on_a_secure_sum_is_noise_on_a_sum(sets: Sets, tmp_path: Path) -> None:
    federation = {"dp": DP, "secure": {"entropy": "derived"}}
    run_toy(private_recipe(sets, training__rounds=1), tmp_path / "plain")
    run_toy(private_recipe(sets, training__rounds=1, federation=federation), tmp_path / "secret")
    plain, secret = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "secret"))
    assert norm_of_update(secret, plain) <= 0.5 * 2**-12  # both clip to 0.5, to within what rounding leaves


@pytest.mark.parametrize(
    ("dp", "place", "keyword"),
    [
        ({"noise": 1.0, "delta": 1e-5}, "recipe.federation.dp.clip", "missing"),
        ({"clip": 0, "noise": 1.0, "delta": 1e-5}, "recipe.federation.dp.clip", "0"),
        ({"clip": 1.0, "epsilon": 0, "delta": 1e-5}, "recipe.federation.dp.epsilon", "0"),
        ({"clip": 1.0, "epsilon": -1, "delta": 1e-5}, "recipe.federation.dp.epsilon", "-1"),
        ({"clip": 1.0, "epsilon": 1, "delta": 0}, "recipe.federation.dp.delta", "0"),
        ({"clip": 1.0, "epsilon": 1, "delta": 1}, "recipe.federation.dp.delta", "1"),
        ({"clip": 1.0, "epsilon": 1, "delta": 0.9}, "recipe.federation.dp.delta", "0.1"),
        ({"clip": 1.0, "epsilon": 1e-9, "delta": 1e-5}, "recipe.federation.dp.epsilon", "0.001"),
        ({"clip": 1.0, "epsilon": 1}, "recipe.federation.dp", "delta"),
        ({"clip": 1.0, "noise": 1}, "recipe.federation.dp", "delta"),
        ({"clip": 1.0, "delta": 1e-5}, "recipe.federation.dp", "epsilon"),
        ({"clip": 1.0, "delta": 1e-5, "epsilon": 1, "noise": 1}, "recipe.federation.dp", "epsilon"),
        ({"clip": 1.0, "delta": 1e-5, "noise": 1e-12}, "recipe.federation.dp", "1e-12"),
        ({"clip": 1.0, "delta": 1e-5, "noise": -1}, "recipe.federation.dp.noise", "-1"),
    ],
)
def test_noise_without_a_guarantee_is_refused(dp: dict[str, Any], place: str, keyword: str, sets: Sets) -> None:
    with refused(place, keyword):
        recipe_of(tree(sets, federation__dp=dp))


@pytest.mark.parametrize(
    ("method", "changes", "keyword"),
    [
        ("fedpad", {"method__weight": "examples"}, "method.weight"),
        ("fedpad", {"federation": {"dp": DP, "combine": "median"}}, "federation.combine"),
        ("fedpad", {"evaluation": {"every": 1, "keep": "best"}}, "early_stop"),
        ("fedpad", {"evaluation__every": 1, "training__early_stop": {"patience": 2}}, "early_stop"),
        ("fedbn", {}, "norms"),
        ("single", {}, "single"),
        ("fedsis", {}, "fedsis"),
    ],
)
def test_settings_that_break_the_guarantee_are_refused(
    method: str, changes: dict[str, Any], keyword: str, sets: Sets
) -> None:
    recipe = recipe_of(tree(sets, method, **{"federation__dp": DP, **changes}))
    with refused("recipe.federation.dp", keyword):
        check_protection(recipe, METHODS[method])
