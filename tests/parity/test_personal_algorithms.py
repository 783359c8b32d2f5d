"""Ditto, FedRep, FedBABU, FedALA, MR-MTL and FedDyn in whole runs, against their equations in float64 loops.

Model, data and local steps are those of ``test_algorithms``. Models of sites are compared, too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.parity.test_algorithms import (
    BATCH,
    RATE,
    ROUNDS,
    Data,
    Setting,
    Small,
    State,
    Term,
    apart,
    asked,
    check,
    entropy,
    fedavg,
    first_state,
    hidden,
    local,
    make_unequal_sets,
    mean_of,
    open_data,
    recipe,
    run_to_state,
    trained_names,
)
from tests.toy import SITES
from torch import Tensor

from fedvisage.base.streams import numpy_rng

pytestmark = pytest.mark.long

HEAD = ("last.weight", "last.bias")


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return make_unequal_sets(tmp_path_factory.mktemp("unequal"))


@pytest.fixture(scope="module")
def data(unequal: Mapping[str, Path]) -> dict[str, Data]:
    return {name: open_data(unequal[name], name) for name in SITES}


def kept_by(out: Path, site: str, prefix: str) -> State:
    """Return the tensors of a site's private state with a prefix, under the model's own names."""
    state = load_file(max((out / "sites" / site).glob("generation-*.safetensors")))
    prefix = f"{prefix}model."
    return {name.removeprefix(prefix): value.double() for name, value in state.items() if name.startswith(prefix)}


def feddyn(setting: Setting, alpha: float) -> tuple[State, dict[str, State]]:
    """Algorithm 1 with the gradients and h as the paper has them, and the result with the sites' last gradients."""
    state = first_state()
    zeros = {name: torch.zeros_like(state[name]) for name in trained_names(state)}
    h, gradients = dict(zeros), {site: dict(zeros) for site in SITES}

    def regulariser(lent: State, gradient: State) -> Term:
        def term(weights: State, *_: Tensor) -> Tensor:
            linear = sum((gradient[name] * weights[name]).sum() for name in weights)
            square = sum(((weights[name] - lent[name]) ** 2).sum() for name in weights)
            return torch.as_tensor(alpha / 2 * square - linear)

        return term

    for number, names in enumerate(setting.asked, start=1):
        states = {}
        for site in names:
            term = regulariser(state, gradients[site])
            states[site] = local(setting.data[site], number, state, RATE, term=term).state
            gradients[site] = {
                name: gradients[site][name] - alpha * (states[site][name] - state[name]) for name in zeros
            }
        shares = [setting.share(site) for site in names]
        mean = mean_of(list(states.values()), shares)
        # With equal weights this is the sum over the sites of the round, divided by the number of all sites.
        h = {name: h[name] - alpha * len(names) / len(SITES) * (mean[name] - state[name]) for name in zeros}
        state = mean | {name: mean[name] - h[name] / alpha for name in zeros}
    return state, gradients


@pytest.mark.parametrize(("few", "weight"), [(False, "uniform"), (True, "uniform"), (False, "examples")])
def test_feddyn_aligns_sites_by_its_regulariser(
    few: bool, weight: str, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"federation__participation": 0.6} if few else {}
    content = recipe(unequal, "feddyn", method__alpha=0.5, method__weight=weight, **changes)
    actual = run_to_state(content, tmp_path / "run")
    setting = Setting(data, asked(tmp_path / "run"), weight=weight)
    assert (sorted(map(len, setting.asked)) == [3, 3, 3]) is not few
    expected, gradients = feddyn(setting, 0.5)
    check(actual, expected, fedavg(setting))
    for site in {name for names in setting.asked for name in names}:
        drift = kept_by(tmp_path / "run", site, "drift/")
        assert apart(drift, {name: value / -0.5 for name, value in gradients[site].items()}) < 1e-5


def near(lent: State, pull: float) -> Term:
    """Return λ/2 times the squared distance from the lent weights."""
    return lambda weights, *_: 0.5 * pull * sum(((weights[name] - lent[name]) ** 2).sum() for name in weights)


@pytest.mark.parametrize("pull", [0.0, 0.8])
def test_personal_models_of_ditto_stay_near_the_lent_one(
    pull: float, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    """Without a pull, a site's personal model is trained by the site alone."""

    state, personal = first_state(), dict.fromkeys(SITES, first_state())
    for number in range(1, ROUNDS + 1):
        turns = [local(data[site], number, state, RATE).state for site in SITES]
        personal = {
            site: local(data[site], number, personal[site], RATE, term=near(state, pull)).state for site in SITES
        }
        state = mean_of(turns, [1.0] * len(SITES))
    actual = run_to_state(recipe(unequal, "ditto", method__pull=pull), tmp_path / "run")
    check(actual, state)
    for site in SITES:
        check(kept_by(tmp_path / "run", site, "personal/local/"), personal[site], state)


@pytest.mark.parametrize("pull", [0.0, 0.8])
def test_models_of_mrmtl_stay_near_their_mean(
    pull: float, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    """Without a pull, each site trains alone, and the result is the mean of the sites' models."""

    mean, own = first_state(), dict.fromkeys(SITES, first_state())
    for number in range(1, ROUNDS + 1):
        own = {site: local(data[site], number, own[site], RATE, term=near(mean, pull)).state for site in SITES}
        mean = mean_of(list(own.values()), [1.0] * len(SITES))
    actual = run_to_state(recipe(unequal, "mrmtl", method__pull=pull), tmp_path / "run")
    check(actual, mean)
    for site in SITES:
        check(kept_by(tmp_path / "run", site, "local/"), own[site], mean)


class OneBatch(Data):
    """Images that form one batch, after which fixed tensors are put back."""

    def batches(self, number: int) -> list[tuple[Tensor, Tensor]]:
        return [(self.inputs, self.labels)]


def with_fixed(data: Data, number: int, start: State, fixed: bool) -> State:
    """Train a site's head with the body fixed, or the body with the head fixed; statistics of BatchNorm always move."""
    state = dict(start)
    for inputs, labels in data.batches(number):
        moved = local(OneBatch(data.name, inputs, labels), number, state, RATE).state
        kept = [name for name in trained_names(state) if (name in HEAD) is fixed]
        state = moved | {name: state[name] for name in kept}
    return state


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_fedrep_trains_heads_before_bodies(
    passes: int, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    state, heads = first_state(), {site: {name: first_state()[name] for name in HEAD} for site in SITES}
    for number in range(1, ROUNDS + 1):
        turns = {}
        for site in SITES:
            turn = state | heads[site]
            for _ in range(passes):
                turn = with_fixed(data[site], number, turn, fixed=False)
            turns[site] = with_fixed(data[site], number, turn, fixed=True)
            heads[site] = {name: turns[site][name] for name in HEAD}
        state = mean_of(list(turns.values()), [1.0] * len(SITES))
    actual = run_to_state(recipe(unequal, "fedrep", method__head_passes=passes), tmp_path / "run")
    check(actual, state, fedavg(Setting(data)))
    for site in SITES:
        check(kept_by(tmp_path / "run", site, "head/"), heads[site])
    assert (apart(heads["A"], heads["B"]) > 1e-3) is (passes > 0)


def test_fedbabu_trains_bodies_and_then_fine_tunes_all(
    unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    state = first_state()
    for number in range(1, ROUNDS + 1):
        turns = [with_fixed(data[site], number, state, fixed=True) for site in SITES]
        state = mean_of(turns, [1.0] * len(SITES))
    actual = run_to_state(recipe(unequal, "fedbabu"), tmp_path / "run")
    check(actual, state, fedavg(Setting(data)))
    assert all(torch.equal(actual[name], first_state()[name]) for name in HEAD)
    for site in SITES:
        check(kept_by(tmp_path / "run", site, "local/"), local(data[site], ROUNDS, state, RATE).state, state)


def fedala(setting: Setting, rate: float, share: float, threshold: float) -> tuple[State, dict[str, State], list[int]]:
    """Algorithm 1 for the last two tensors: the result, the sites' weights W, and the passes of the first learning."""
    state, local_models, mixing = first_state(), dict[str, State](), dict[str, State]()
    passes = []
    for number in range(1, ROUNDS + 1):
        turns = {}
        for site in SITES:
            start = dict(state)
            if site in local_models:
                drawn = numpy_rng(0, site, number, "mixing")
                count = len(setting.data[site].labels)
                chosen = np.sort(drawn.choice(count, size=int(share * count), replace=False))
                sample = Data(site, setting.data[site].inputs[chosen], setting.data[site].labels[chosen])
                w = mixing.get(site, {name: torch.ones_like(state[name]) for name in HEAD})
                old, losses = local_models[site], list[float]()
                while not losses or (site not in mixing and not has_settled(losses, threshold)):
                    w, loss = learn_mixing(sample, number, state, old, w, rate)
                    losses.append(loss)
                passes += [len(losses)] * (site not in mixing)
                mixing[site] = w
                start |= {name: old[name] + (state[name] - old[name]) * w[name] for name in HEAD}
            turns[site] = local(setting.data[site], number, start, RATE).state
        local_models = turns
        state = mean_of(list(turns.values()), [setting.share(site) for site in SITES])
    return state, mixing, passes


def has_settled(losses: list[float], threshold: float) -> bool:
    return len(losses) == 100 or (len(losses) > 10 and bool(np.std(losses[-10:]) < threshold))


def learn_mixing(sample: Data, number: int, lent: State, old: State, w: State, rate: float) -> tuple[State, float]:
    """Take one pass over the sample: a projected step in W after each batch."""
    shuffled = numpy_rng(0, sample.name, "order", "mixing", number, 0).permutation(len(sample.labels))
    losses = []
    for first in range(0, len(shuffled), BATCH):
        batch = shuffled[first : first + BATCH]
        if len(batch) == 1:
            continue
        inputs, labels = sample.inputs[batch], sample.labels[batch]
        top = {name: (old[name] + (lent[name] - old[name]) * w[name]).requires_grad_() for name in HEAD}
        features = hidden(lent, inputs, inputs.mean(0), inputs.var(0, correction=0))
        loss = entropy(top, features, labels)
        slopes = torch.autograd.grad(loss, list(top.values()))
        for name, slope in zip(HEAD, slopes, strict=True):
            w = w | {name: (w[name] - rate * slope * (lent[name] - old[name])).clamp(0, 1)}
        losses.append(loss.item())
    return w, float(np.mean(losses))


@pytest.mark.parametrize(("rate", "threshold"), [(100.0, 0.1), (5.0, 1e-6)])
def test_fedala_learns_how_much_of_the_lent_model_to_take(
    rate: float, threshold: float, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    options = {"rate": rate, "share": 0.7, "threshold": threshold}
    changes = {f"method__{key}": value for key, value in options.items()}
    actual = run_to_state(recipe(unequal, "fedala", **changes), tmp_path / "run")
    expected, mixing, passes = fedala(Setting(data), **options)
    check(actual, expected, fedavg(Setting(data)))
    assert all(number == 11 for number in passes) is (threshold == 0.1)
    for site in SITES:
        assert apart(kept_by(tmp_path / "run", site, "mixing/"), mixing[site]) < 1e-4
    assert any((value < 1).any() for weights in mixing.values() for value in weights.values())


def test_l2sp_pulls_common_and_personal_models_to_the_start(unequal: Mapping[str, Path], tmp_path: Path) -> None:
    """A site alone trains the mean itself, so that without the other pull its personal model is the common one."""
    strength, given = 0.6, dict(Small().state_dict())
    for name in ("last.weight", "norm.bias"):
        given[name] = given[name] + 0.5
    save_file({f"model.{name}": value for name, value in given.items()}, tmp_path / "start.safetensors")
    changes = {"training__start": str(tmp_path / "start.safetensors"), "training__l2sp": strength}
    start, data = {name: value.double() for name, value in given.items()}, open_data(unequal["B"], "B")
    expected, free = start, start
    for number in range(1, ROUNDS + 1):
        expected = local(data, number, expected, RATE, term=near(start, strength)).state
        free = local(data, number, free, RATE).state
    for name, prefix in (("fedavg", ""), ("ditto", "personal/local/"), ("mrmtl", "local/")):
        content = recipe(unequal, name, data__sites={"B": str(unequal["B"])}, **changes)
        if prefix:
            content["method"]["pull"] = 0.0
        check(run_to_state(content, tmp_path / name), expected, free)
        if prefix:
            check(kept_by(tmp_path / name, "B", prefix), expected, free)
