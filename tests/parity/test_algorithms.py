"""Each algorithm through a whole run, against its paper's equations in a plain loop, in float64.

The model is made for this: the mean colour of an image, BatchNorm, a hidden layer, one logit. The sites have different
numbers of images and train by epochs, so that they take different numbers of steps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.methods.interrupting import Interrupted, stop_after
from tests.parity.test_afl import by_bisection
from tests.toy import SITES, Sets, make_set, run_toy, tree
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.base.streams import numpy_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Member, Prediction
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site import Batch, Site
from fedvisage.methods import ALGORITHMS
from fedvisage.methods.models.model import Model
from fedvisage.recipe import MethodOptions

pytestmark = pytest.mark.long

ROUNDS, BATCH, EPOCHS, RATE = 3, 8, 2, 0.2
PEOPLE = {"A": 6, "B": 9, "C": 15}
State = dict[str, Tensor]
STATISTICS = ("mean", "var")


class Small(nn.Module):
    """BatchNorm of three numbers, four hidden units, one logit; the first weights are written down here."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Linear(4, 1)
        rng = np.random.default_rng(0)
        for name, value in self.named_parameters():
            drawn = torch.from_numpy(rng.normal(0, 0.3, tuple(value.shape))).float()
            value.data = drawn + 1 if name == "norm.weight" else drawn

    def hidden(self, images: Tensor) -> Tensor:
        return torch.tanh(self.first(self.norm(images.mean((2, 3)))))


class Plain(MethodOptions):
    """Options without keys."""


def small(net: nn.ModuleDict) -> Small:
    actual = net["model"]
    assert isinstance(actual, Small)
    return actual


def supervise(site: Site, batch: Batch, features: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(small(site.net).last(features).squeeze(1), batch.labels)


def predict(member: Member) -> Tensor:
    logits: Tensor = small(member.net).last(small(member.net).hidden(member.images))
    return logits.squeeze(1)


MODEL = Model(
    name="small",
    title="small",
    task="pad",
    options=Plain,
    network=lambda _: nn.ModuleDict({"model": Small()}),
    parts=("model",),
    represent=lambda net, images: small(net).hidden(images),
    supervise=supervise,
    prediction=Prediction(predict, features=lambda member: small(member.net).hidden(member.images)),
)


def first_state() -> State:
    return {name: value.double() for name, value in Small().state_dict().items()}


def trained_names(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name in state if "running" not in name and "tracked" not in name]


# The plain loop.


@dataclass
class Data:
    """A site's training images as the model sees them, and in which order it sees them."""

    name: str
    inputs: Tensor
    labels: Tensor

    def batches(self, number: int) -> list[tuple[Tensor, Tensor]]:
        batches = []
        for epoch in range((number - 1) * EPOCHS, number * EPOCHS):
            shuffled = numpy_rng(0, self.name, "order", epoch).permutation(len(self.labels))
            batches += [shuffled[start : start + BATCH] for start in range(0, len(shuffled), BATCH)]
        return [(self.inputs[batch], self.labels[batch]) for batch in batches if len(batch) > 1]


def open_data(path: Path, name: str) -> Data:
    actual = PreparedSet.open(path)
    chosen = actual.rows.split == "train"
    images = np.asarray(actual.images)[chosen].astype(np.float64) / 255
    return Data(name, torch.from_numpy(images.mean((1, 2))), torch.from_numpy(actual.rows.label[chosen]).double())


def hidden(state: Mapping[str, Tensor], inputs: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    scaled = (inputs - mean) / torch.sqrt(var + 1e-5) * state["norm.weight"] + state["norm.bias"]
    return torch.tanh(scaled @ state["first.weight"].T + state["first.bias"])


def entropy(state: Mapping[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
    logits = (features @ state["last.weight"].T + state["last.bias"]).squeeze(1)
    return (torch.log1p(torch.exp(-logits.abs())) + logits.clamp_min(0) - logits * labels).mean()


Term = Callable[[State, Tensor, Tensor], Tensor]
"""The term that an algorithm adds to a batch's loss, from the weights, the inputs and the features."""


@dataclass
class Turn:
    state: State
    steps: int
    loss: float


def local(
    data: Data,
    number: int,
    start: State,
    rate: float,
    *,
    momentum: float = 0.0,
    term: Term | None = None,
    shift: Mapping[str, Tensor] | None = None,
) -> Turn:
    """One turn of a site: plain steps, or heavy-ball ones, down its loss and an algorithm's term."""
    state, pace, losses = dict(start), dict.fromkeys(trained_names(start), torch.zeros(())), []
    for inputs, labels in data.batches(number):
        weights = {name: state[name].clone().requires_grad_() for name in trained_names(state)}
        mean, var = inputs.mean(0), inputs.var(0, correction=0)
        features = hidden(weights, inputs, mean, var)
        loss = entropy(weights, features, labels) + (term(weights, inputs, features) if term else 0)
        slopes = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        for name, slope in slopes.items():
            pace[name] = momentum * pace[name] + slope + (shift[name] if shift else 0)
            state[name] = state[name] - rate * pace[name]
        state["norm.running_mean"] = 0.9 * state["norm.running_mean"] + 0.1 * mean
        state["norm.running_var"] = 0.9 * state["norm.running_var"] + 0.1 * inputs.var(0, correction=1)
        state["norm.num_batches_tracked"] = state["norm.num_batches_tracked"] + 1
        losses.append(loss.item())
    return Turn(state, len(losses), float(np.mean(losses)))


def mean_of(states: list[State], shares: list[float]) -> State:
    total = sum(shares)
    actual = {
        name: torch.stack([share / total * state[name] for share, state in zip(shares, states, strict=True)]).sum(0)
        for name in states[0]
    }
    return actual | {"norm.num_batches_tracked": actual["norm.num_batches_tracked"].round()}


@dataclass
class Setting:
    """Inputs shared by the run and the reference loop."""

    data: dict[str, Data]
    asked: list[list[str]] = field(default_factory=lambda: [list(SITES)] * ROUNDS)
    rates: list[float] = field(default_factory=lambda: [RATE] * ROUNDS)
    momentum: float = 0.0
    weight: str = "uniform"

    def share(self, name: str) -> float:
        return float(len(self.data[name].labels)) if self.weight == "examples" else 1.0


def fedavg(given: Setting, term: Callable[[State], Term] | None = None) -> State:
    state = first_state()
    for number, (asked, rate) in enumerate(zip(given.asked, given.rates, strict=True), start=1):
        turns = [
            local(given.data[name], number, state, rate, momentum=given.momentum, term=term and term(state))
            for name in asked
        ]
        state = mean_of([turn.state for turn in turns], [given.share(name) for name in asked])
    return state


def fedprox(given: Setting, mu: float) -> State:
    """Algorithm 2: F_k(w) + µ/2 ‖w − wᵗ‖²."""

    def held(lent: State) -> Term:
        return lambda weights, *_: 0.5 * mu * sum(((weights[name] - lent[name]) ** 2).sum() for name in weights)

    return fedavg(given, held)


def moon(given: Setting, mu: float, temperature: float) -> State:
    """Eq. 3 and 4, with the compared models in evaluation mode."""
    state, previous = first_state(), dict[str, State]()

    def seen(by: State, inputs: Tensor) -> Tensor:
        return hidden(by, inputs, by["norm.running_mean"], by["norm.running_var"])

    def against(lent: State, last: State) -> Term:
        def term(weights: State, inputs: Tensor, features: Tensor) -> Tensor:
            good, bad = (
                torch.exp(torch.cosine_similarity(features, seen(by, inputs)) / temperature) for by in (lent, last)
            )
            return -mu * torch.log(good / (good + bad)).mean()

        return term

    for number, (asked, rate) in enumerate(zip(given.asked, given.rates, strict=True), start=1):
        for name in asked:
            turn = local(given.data[name], number, state, rate, term=against(state, previous.get(name, state)))
            previous[name] = turn.state
        state = mean_of([previous[name] for name in asked], [given.share(name) for name in asked])
    return state


def afl(given: Setting, step: float) -> State:
    """λ weighs the mean of weights, then climbs along the losses."""
    state, mixture = first_state(), np.full(len(SITES), 1 / len(SITES))
    for number, rate in enumerate(given.rates, start=1):
        turns = [local(given.data[name], number, state, rate) for name in SITES]
        state = mean_of([turn.state for turn in turns], list(mixture))
        mixture = by_bisection(mixture + step * np.array([turn.loss for turn in turns]), 1)
    return state


def ga(given: Setting, step: float) -> State:
    """A site's gap is what it loses by averaging; the weights move by it in the next round."""
    state, weights, own = first_state(), np.full(len(SITES), 1 / len(SITES)), np.zeros(len(SITES))

    def losses(states: list[State]) -> np.ndarray:
        values = []
        for name, one in zip(SITES, states, strict=True):
            inputs, labels = given.data[name].inputs, given.data[name].labels
            seen = hidden(one, inputs, one["norm.running_mean"], one["norm.running_var"])
            values.append(entropy(one, seen, labels).item())
        return np.array(values)

    for number, rate in enumerate(given.rates, start=1):
        gaps = losses([state] * len(SITES)) - own if number > 1 else own
        turns = [local(given.data[name], number, state, rate) for name in SITES]
        own = losses([turn.state for turn in turns])
        deviations = gaps - gaps.mean()
        if number > 1:
            pace = step / len(SITES) * (1 - (number - 1) / ROUNDS)
            weights = np.clip(weights + pace * deviations / np.abs(deviations).max(), 0, 1)
        state = mean_of([turn.state for turn in turns], list(weights / weights.sum()))
        weights = weights / weights.sum()
    return state


def fedopt(given: Setting, kind: str, lr: float, momentum: float = 0.0) -> State:
    """Algorithm 2 of Reddi et al., a coordinate at a time; statistics are averaged."""
    state, tau, first, second = first_state(), 1e-3, dict[str, np.ndarray](), dict[str, np.ndarray]()
    for number, rate in enumerate(given.rates, start=1):
        turns = [local(given.data[name], number, state, rate) for name in SITES]
        mean = mean_of([turn.state for turn in turns], [given.share(name) for name in SITES])
        for name in trained_names(state):
            delta = (mean[name] - state[name]).numpy()
            m, v = first.get(name, np.zeros_like(delta)), second.get(name, np.full_like(delta, tau * tau))
            if kind == "sgd":
                first[name] = momentum * m + delta
                moved = lr * first[name]
            else:
                first[name] = 0.9 * m + 0.1 * delta
                adam = 0.99 * v + 0.01 * delta**2
                second[name] = adam if kind == "adam" else v - 0.01 * delta**2 * np.sign(v - delta**2)
                moved = lr * first[name] / (np.sqrt(second[name]) + tau)
            mean[name] = state[name] + torch.from_numpy(moved)
        state = mean
    return state


def scaffold(given: Setting) -> State:
    """Algorithm 1 with option II, global rate 1."""
    state = first_state()
    common = {name: torch.zeros_like(state[name]) for name in trained_names(state)}
    own = {site: dict(common) for site in SITES}
    for number, (asked, rate) in enumerate(zip(given.asked, given.rates, strict=True), start=1):
        states, moves = [], []
        for site in asked:
            shift = {name: common[name] - own[site][name] for name in common}
            turn = local(given.data[site], number, state, rate, shift=shift)
            renewed = {
                name: own[site][name] - common[name] + (state[name] - turn.state[name]) / (turn.steps * rate)
                for name in common
            }
            moves.append({name: renewed[name] - own[site][name] for name in common})
            states.append(turn.state)
            own[site] = renewed
        shares = [given.share(site) for site in asked]
        state = mean_of(states, shares)
        for name in common:
            moved = sum(share * move[name] for share, move in zip(shares, moves, strict=True)) / sum(shares)
            common[name] = common[name] + len(asked) / len(SITES) * moved
    return state


def fednova(given: Setting) -> State:
    """Eq. 6 and 7, ‖a‖₁ summed from how often each gradient is in a sum of heavy-ball steps."""
    state = first_state()
    for number, (asked, rate) in enumerate(zip(given.asked, given.rates, strict=True), start=1):
        turns = [local(given.data[name], number, state, rate, momentum=given.momentum) for name in asked]
        lengths = [sum(given.momentum**k for j in range(turn.steps) for k in range(turn.steps - j)) for turn in turns]
        shares = np.array([given.share(name) for name in asked])
        shares /= shares.sum()
        effective = float(shares @ lengths)
        after = mean_of([turn.state for turn in turns], list(shares))
        for name in trained_names(state):
            directions = [
                (turn.state[name] - state[name]) / length for turn, length in zip(turns, lengths, strict=True)
            ]
            moved = sum(share * one for share, one in zip(shares, directions, strict=True))
            after[name] = state[name] + effective * moved
        state = after
    return state


def fedbn(given: Setting) -> State:
    """Sites keep their BatchNorm; the target gets the mean of the sites' layers."""
    state = first_state()
    layers = {site: {name: value for name, value in state.items() if name.startswith("norm.")} for site in SITES}
    for number, rate in enumerate(given.rates, start=1):
        turns = {site: local(given.data[site], number, {**state, **layers[site]}, rate).state for site in SITES}
        layers = {site: {name: turns[site][name] for name in layers[site]} for site in SITES}
        state = mean_of(list(turns.values()), [given.share(site) for site in SITES])
    return state


# The runs.


def make_unequal_sets(root: Path) -> Mapping[str, Path]:
    """Write sets of sites with different numbers of images, and a target's."""
    sites = {name: make_set(root / name, name, seed, subjects=PEOPLE[name]) for seed, name in enumerate(SITES)}
    return sites | {"U": make_set(root / "U", "U", 9)}


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return make_unequal_sets(tmp_path_factory.mktemp("unequal"))


@pytest.fixture(scope="module")
def data(unequal: Mapping[str, Path]) -> dict[str, Data]:
    return {name: open_data(unequal[name], name) for name in SITES}


def recipe(sets: Sets, algorithm: str, **changes: Any) -> dict[str, Any]:
    content = tree(
        sets,
        input__colour="rgb",
        training__local={"epochs": EPOCHS},
        training__optimizer={"name": "sgd", "lr": RATE},
        training__augment={},
        evaluation__every=0,
        runtime__threads=1,
        **changes,
    )
    del content["method"]["network"]
    content["method"]["name"] = algorithm
    return content


def run_to_state(content: Mapping[str, Any], out: Path) -> State:
    """Run an algorithm on the model above, and return what came of it under the model's own names."""
    name = content["method"]["name"]
    run_toy(content, out, method=ALGORITHMS[name](MODEL))
    actual = load_file(out / "model.safetensors")
    return {key.removeprefix("model.").replace("norms.0.", "norm."): value.double() for key, value in actual.items()}


def asked(out: Path) -> list[list[str]]:
    return [row["asked"] for row in read_lines(out / "rounds.jsonl")]


def apart(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def check(actual: State, expected: State, plain: State | None = None) -> None:
    """Compare with float32 accuracy; the algorithm must differ from the plain one by far more."""
    assert apart(actual, expected) < 1e-5
    assert plain is None or apart(expected, plain) > 1e-3


@pytest.mark.parametrize("weight", ["uniform", "examples"])
def test_fedavg_averages_weights_and_statistics(
    weight: str, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    actual = run_to_state(recipe(unequal, "fedavg", method__weight=weight), tmp_path / "run")
    check(actual, fedavg(Setting(data, weight=weight)))


@pytest.mark.parametrize(
    ("algorithm", "options", "expected"),
    [
        ("fedprox", {"mu": 0.7}, partial(fedprox, mu=0.7)),
        ("moon", {"mu": 5.0, "temperature": 0.5}, partial(moon, mu=5.0, temperature=0.5)),
        ("afl", {"step": 2.0}, partial(afl, step=2.0)),
        ("ga", {"step": 2.0}, partial(ga, step=2.0)),
        ("fedbn", {}, fedbn),
    ],
    ids=["fedprox", "moon", "afl", "ga", "fedbn"],
)
def test_algorithm_trains_by_its_equations(
    algorithm: str,
    options: dict[str, float],
    expected: Callable[[Setting], State],
    unequal: Mapping[str, Path],
    data: dict[str, Data],
    tmp_path: Path,
) -> None:
    changes = {f"method__{key}": value for key, value in options.items()}
    actual = run_to_state(recipe(unequal, algorithm, **changes), tmp_path / "run")
    check(actual, expected(Setting(data)), fedavg(Setting(data)))


@pytest.mark.parametrize("kind", ["adam", "yogi"])
@pytest.mark.parametrize("lr", [None, 0.05])
def test_the_adaptive_steps_are_algorithm_2(
    kind: str, lr: float | None, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    content = recipe(unequal, f"fed{kind}")
    if lr is not None:
        content["training"]["server_optimizer"] = {"name": kind, "lr": lr}
    check(run_to_state(content, tmp_path / "run"), fedopt(Setting(data), kind, lr or 0.01), fedavg(Setting(data)))


@pytest.mark.parametrize(("kind", "lr", "momentum"), [("sgd", 0.5, 0.9), ("sgd", 1.5, 0.0), ("yogi", 0.02, 0.0)])
def test_fedavg_takes_any_step_of_the_server(
    kind: str, lr: float, momentum: float, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    step = {"name": kind, "lr": lr, "momentum": momentum}
    actual = run_to_state(recipe(unequal, "fedavg", training__server_optimizer=step), tmp_path / "run")
    check(actual, fedopt(Setting(data), kind, lr, momentum), fedavg(Setting(data)))


@pytest.mark.parametrize("weight", ["uniform", "examples"])
@pytest.mark.parametrize("few", [False, True])
def test_scaffold_corrects_by_control_variates(
    few: bool, weight: str, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"federation__participation": 0.6} if few else {}
    schedule = {"name": "step", "every": 1, "factor": 0.5}
    content = recipe(unequal, "scaffold", method__weight=weight, training__schedule=schedule, **changes)
    actual = run_to_state(content, tmp_path / "run")
    given = Setting(data, asked(tmp_path / "run"), [RATE, RATE / 2, RATE / 4], weight=weight)
    assert (sorted(map(len, given.asked)) == [3, 3, 3]) is not few
    check(actual, scaffold(given), fedavg(given))


@pytest.mark.parametrize("weight", ["uniform", "examples"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fednova_averages_directions(
    momentum: float, weight: str, unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    content = recipe(unequal, "fednova", method__weight=weight, training__optimizer__momentum=momentum)
    given = Setting(data, momentum=momentum, weight=weight)
    check(run_to_state(content, tmp_path / "run"), fednova(given), fedavg(given))


def test_partial_correction_scales_the_shift_and_keeps_the_variates(
    unequal: Mapping[str, Path], data: dict[str, Data], tmp_path: Path
) -> None:
    """With half of it, c_i is still what a site's plain gradients were on average."""
    run_to_state(recipe(unequal, "scaffold", method__correction=0.5, training__rounds=1), tmp_path / "one")
    run_to_state(recipe(unequal, "scaffold", method__correction=0.5, training__rounds=2), tmp_path / "two")
    first, second = (kept_state(tmp_path / name / "sites" / "B") for name in ("one", "two"))
    common = mean_of_variates(tmp_path / "one")
    start = {key: value.double() for key, value in load_file(tmp_path / "one" / "model.safetensors").items()}
    lent = {key.removeprefix("model."): value for key, value in start.items()}
    shift = {name: 0.5 * (common[name] - first[name]) for name in first}
    turn = local(data["B"], 2, lent, RATE, shift=shift)
    for name in first:
        gradients = (lent[name] - turn.state[name]) / (turn.steps * RATE) - shift[name]
        assert torch.allclose(second[name], gradients, atol=1e-5), name


def kept_state(site: Path) -> State:
    actual = load_file(max(site.glob("generation-*.safetensors")))
    return {name.removeprefix("control/model."): value.double() for name, value in actual.items() if "control/" in name}


def mean_of_variates(out: Path) -> State:
    own = [kept_state(out / "sites" / name) for name in SITES]
    return {name: torch.stack([one[name] for one in own]).mean(0) for name in own[0]}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("fedavg", {"training__server_optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}}),
        ("fedprox", {"training__server_optimizer": {"name": "yogi", "lr": 0.02}}),
        ("fedadam", {}),
        ("scaffold", {"federation__participation": 0.6}),
        ("afl", {}),
        ("feddyn", {"federation__participation": 0.6}),
        ("ditto", {}),
        ("fedrep", {}),
        ("fedbabu", {}),
        ("fedala", {}),
        ("mrmtl", {}),
        ("ga", {"federation__participation": 0.6}),
    ],
)
def test_state_of_server_and_sites_survives_a_kill_after_any_round(
    algorithm: str, changes: dict[str, Any], unequal: Mapping[str, Path], tmp_path: Path
) -> None:
    content, method = recipe(unequal, algorithm, **changes), ALGORITHMS[algorithm](MODEL)
    run_toy(content, tmp_path / "whole", method=method)
    for after in range(1, ROUNDS + 1):
        with pytest.raises(Interrupted):
            run_toy(content, tmp_path / "parts", method=stop_after(method, after), resume=True)
    run_toy(content, tmp_path / "parts", method=method, resume=True)
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
