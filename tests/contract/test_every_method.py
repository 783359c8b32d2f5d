"""The contract of every method; a new method is tested as soon as it is in the catalogue."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.contract.examples import EXAMPLES, two_exchanges
from tests.methods.interrupting import Interrupted, stop_after
from tests.toy import ROUNDS, Sets, deterministic_files, recipe_of, run_toy, site_sets, tree, weights
from torch import Tensor, nn

from fedvisage.base.streams import numpy_rng, seed_global_rng
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Message, Order, Reply, digest_of, encode
from fedvisage.methods import METHODS
from fedvisage.methods.models import resnet18
from fedvisage.metrics.recorded import read_metrics
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import prepare
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import task_of

ALL = {**METHODS, **EXAMPLES}


@dataclass(frozen=True)
class Recorded:
    """A run, every message that left a site in it, and the calls that changed the message of their order."""

    out: Path
    sent: list[tuple[str, Message]]
    changing: list[str]


class WatchingTransport(LocalTransport):
    """A transport that records replies, and the calls that change the message of their order."""

    def __init__(self, site_workers: Sequence[SiteWorker], run: Recorded) -> None:
        super().__init__(site_workers)
        self._sent, self._changing = run.sent, run.changing

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        before = {name: digest_of(order.message) for name, order in orders.items()}
        for reply in super().call(orders):
            if reply.message is not None:
                self._sent.append((reply.site, reply.message))
            yield reply
        self._changing.extend(order.call for name, order in orders.items() if digest_of(order.message) != before[name])


ALIKE = (
    *("fedprox-vit-h", "moon-vit-h", "fedavg-vit-h", "fedyogi", "distillation", "pooled"),
    *("privacyface-global", "privacyface-naive", "privacyface-without-noise", "privacyface-fedface"),
    "privacyface-local",
)
"""Methods that share all code with another one of the list but a loss, a rule of Adam's, a mechanism that has tests of
its own, or whose data is merged or whose sites stay alone."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if name in ALIKE else []


IN_EVERY_TIER = ("fedpad", "fedsis", "privacyface")
"""Averaging of an attack detector, split learning, and recognition with two exchanges per round."""
of_few_methods = pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[] if name in IN_EVERY_TIER else [pytest.mark.long, *marks_of(name)]) for name in ALL],
    indirect=True,
    scope="module",
)
"""The mark of long tests, which `make test` runs for some methods only."""


@pytest.fixture(scope="module", params=[pytest.param(name, marks=marks_of(name)) for name in ALL])
def method(request: pytest.FixtureRequest) -> Method:
    return ALL[request.param]


@pytest.fixture(scope="module")
def recorded(method: Method, sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """One run of the method, with a recorder on the wire; the tests below compare other runs with it."""
    run = Recorded(tmp_path_factory.mktemp(method.name) / "run", [], [])
    run_toy(contract(sets, method), run.out, method=method, wire=partial(WatchingTransport, run=run))
    return run


def contract(sets: Sets, method: Method, **changes: Any) -> dict[str, Any]:
    """Return a recipe in which every site has something private to keep."""
    return tree(sets, method, **{"training__optimizer__state": "kept", **changes})


def test_a_small_run_ends_in_finite_weights_and_figures(method: Method, recorded: Recorded) -> None:
    assert all(torch.isfinite(value).all() for value in load_file(recorded.out / "model.safetensors").values())
    metrics = read_metrics(recorded.out / "metrics.json")
    if method.task == "recognition":
        rates = [*metrics.part("generic").rates("tar").values(), metrics.number("personal.tar@1e-1")]
        assert rates
        assert all(rate is not None and 0 <= rate <= 1 for rate in rates)
        assert metrics["threshold"] is None, "so few pairs show no false match rate of one in a thousand"
    else:
        assert all(math.isfinite(metrics[key]) for key in ("hter", "eer", "auc", "acer", "bpcer", "threshold"))
    assert metrics["method"] == method.name
    assert metrics["rounds"] == ROUNDS


def test_no_call_changes_the_message_of_its_order(recorded: Recorded) -> None:
    """Workers of an engine share one stored message."""
    assert recorded.sent
    assert recorded.changing == []


FIXED = {"fedbabu": ("model.fc.weight", "model.fc.bias")}
"""Delivered tensors that a method never trains."""


def test_training_moves_every_delivered_part(method: Method, recorded: Recorded, sets: Sets) -> None:
    recipe = recipe_of(contract(sets, method), method)
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        first = method.network(recipe)
    actual = load_file(recorded.out / "model.safetensors")
    for part in method.finished:
        for name, before in first[part].named_parameters():
            after = next(value for key, value in actual.items() if key.endswith(f"{part}.{name}"))
            fixed = f"{part}.{name}" in FIXED.get(method.name, ())
            assert torch.equal(before, after) is fixed, f"{part}.{name}"


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes(method: Method, recorded: Recorded, sets: Sets, tmp_path: Path) -> None:
    run_toy(contract(sets, method), tmp_path / "again", method=method)
    assert deterministic_files(tmp_path / "again") == deterministic_files(recorded.out)


@of_few_methods
def test_another_seed_gives_another_model_and_keeps_the_global_random_state(
    method: Method, recorded: Recorded, sets: Sets, tmp_path: Path
) -> None:
    before, before_numpy = torch.get_rng_state(), np.random.get_state(legacy=False)
    run_toy(contract(sets, method, runtime__seed=1), tmp_path / "other", method=method)
    assert weights(tmp_path / "other") != weights(recorded.out)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_equal(np.random.get_state(legacy=False), before_numpy)


@of_few_methods
def test_the_order_of_sites_in_the_recipe_does_not_matter(
    method: Method, recorded: Recorded, sets: Sets, tmp_path: Path
) -> None:
    backwards = {name: str(path) for name, path in reversed(site_sets(sets, method).items())}
    run_toy(contract(sets, method, data__sites=backwards), tmp_path / "backwards", method=method)
    files = ("model.safetensors", "ledger.jsonl", "scores.csv")
    assert deterministic_files(tmp_path / "backwards", names=files) == deterministic_files(recorded.out, names=files)


@of_few_methods
def test_a_run_stopped_after_every_round_and_resumed_equals_an_uninterrupted_one(
    method: Method, recorded: Recorded, sets: Sets, tmp_path: Path
) -> None:
    content = contract(sets, method)
    for stop in range(1, ROUNDS + 1):
        with pytest.raises(Interrupted):
            run_toy(content, tmp_path / "parts", resume=True, method=stop_after(method, stop))
    run_toy(content, tmp_path / "parts", resume=True, method=method)
    assert deterministic_files(tmp_path / "parts") == deterministic_files(recorded.out)


def test_only_declared_fields_cross_the_wire(method: Method, recorded: Recorded, sets: Sets) -> None:
    allowed = declared_fields(method, recipe_of(contract(sets, method), method))
    assert {name for _, message in recorded.sent for name in message} == allowed


def test_no_canary_crosses_the_wire(method: Method, recorded: Recorded, sets: Sets) -> None:
    canaries = [canary for path in site_sets(sets, method).values() for canary in canaries_of(path)]
    for site, message in recorded.sent:
        data = encode(message)
        assert not any(canary in data for canary in canaries), f"site {site} sent private content"


def test_the_ledger_accounts_for_every_byte_that_left_a_site(method: Method, recorded: Recorded) -> None:
    lines = read_lines(recorded.out / "ledger.jsonl")
    up = [line for line in lines if line["direction"] == "up"]
    kinds = {upload.name: upload.kind for call in calls_of(method) for upload in call.uploads}
    assert {line["field"]: line["kind"] for line in up} == kinds
    sizes = [value.nbytes for _, message in recorded.sent for value in message.values()]
    assert sum(line["bytes"] for line in up) == sum(sizes)
    assert json.loads((recorded.out / "metrics.json").read_text())["bytes_up"] == sum(sizes)


def calls_of(method: Method) -> list[Call]:
    """Return the declared calls of the method and of its task."""
    uploads = task_of(method).uploads(method)
    return [*method.calls.values(), *(Call(lambda site, message: {}, group) for group in uploads.values())]


def declared_fields(method: Method, recipe: Recipe) -> set[str]:
    """Return the names of all tensors that the declarations allow."""
    network, actual = method.network(recipe), set()
    for upload in (upload for call in calls_of(method) for upload in call.uploads):
        actual |= set(declared_of(upload, network)) or {upload.name}
    return actual


def declared_of(upload: Upload, network: nn.ModuleDict) -> Iterator[str]:
    """Return the names of the tensors of an upload's parts."""
    for part in upload.parts:
        names = (name for name, _ in network[part].named_parameters()) if upload.trained else network[part].state_dict()
        yield from (f"{upload.prefix}{part}.{name}" for name in names)


def canaries_of(path: Path) -> list[bytes]:
    """Return byte strings that identify an image: its names, its pixels, and its network input."""
    actual = PreparedSet.open(path)
    texts = [text.encode() for row in ("item", "subject", "video") for text in set(getattr(actual.rows, row).tolist())]
    images = torch.from_numpy(np.array(actual.images)).permute(0, 3, 1, 2)
    seen = prepare(images, "rgb+hsv", torch.device("cpu"))
    rows = [np.asarray(actual.images)[:, 0].reshape(len(actual), -1), images[:, 0, 0].numpy(), seen[:, 0, 0].numpy()]
    return [b"secret-", *texts, *(line.tobytes() for kind in rows for line in kind)]


def test_canaries_detect_a_batch_of_images(sets: Sets) -> None:
    view = View.of(PreparedSet.open(sets["A"]), "train")
    stored = view.batch(np.arange(4)).images
    seen = prepare(stored, "rgb+hsv", torch.device("cpu"))
    for leak in ({"activation": stored}, {"activation": seen}, {"secret-subject-A0": torch.zeros(1)}):
        data = encode({name: value.contiguous() for name, value in leak.items()})
        assert any(canary in data for canary in canaries_of(sets["A"]))


ALONE = {"training__optimizer__state": "kept", "training__local": {"epochs": 2}, "training__augment": {}}


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedpad", "single", "fused", "afl", "pooled"])
def test_one_site_trains_as_if_alone(name: str, sets: Sets, tmp_path: Path) -> None:
    """The methods that minimise FedPAD's Eq. 1 alone, over all lent parts."""
    content = tree(sets, name, data__sites={"A": str(sets["A"])}, **ALONE)
    run_toy(content, tmp_path / "run")
    expected = trained_alone(recipe_of(content), sets["A"], "all" if METHODS[name].pooled else "A")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    for key, value in actual.items():
        assert torch.equal(value, expected[key.split("/")[-1].removeprefix("model.")]), key


def trained_alone(recipe: Recipe, path: Path, name: str) -> Mapping[str, Tensor]:
    """Train one model on one set with a plain loop that knows nothing of a federation."""
    actual = PreparedSet.open(path)
    chosen = actual.rows.split == "train"
    images = torch.from_numpy(np.array(actual.images)[chosen]).permute(0, 3, 1, 2)
    labels = torch.from_numpy(actual.rows.label[chosen]).float()
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        model = resnet18.network(recipe)["model"].train()
    resolve_compute("cpu", "fp32").place(model)
    adam = torch.optim.Adam(model.parameters(), lr=recipe.training.optimizer.lr)
    for epoch in range(recipe.training.rounds * 2):
        shuffled = numpy_rng(recipe.runtime.seed, name, "order", epoch).permutation(len(labels))
        for start in range(0, len(labels), recipe.training.batch.default):
            batch = shuffled[start : start + recipe.training.batch.default]
            inputs = prepare(images[batch], "rgb+hsv", torch.device("cpu"))
            adam.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), labels[batch])
            loss.backward()
            adam.step()
    return model.state_dict()


STEP_ELSEWHERE = ("fedadam", "fedyogi", "fednova", "scaffold", "feddyn", "feddf")
"""Methods whose server does not adopt the upload of a single site exactly."""

ONE_CALL = [
    method
    for method in ALL.values()
    if set(method.calls) == {"train"} and method.task == "pad" and method.name not in STEP_ELSEWHERE
]
"""Methods with one call to each site per round, whose server takes the mean."""


@pytest.mark.long
@pytest.mark.parametrize("method", ONE_CALL, ids=lambda method: method.name)
def test_single_site_run_equals_its_own_call(method: Method, sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, method, data__sites={"A": str(sets["A"])}, **ALONE)
    run_toy(content, tmp_path / "run", method=method)
    expected = called_alone(method, recipe_of(content, method), sets["A"], "all" if method.pooled else "A")
    actual = load_file(tmp_path / "run" / "model.safetensors")
    for key, value in actual.items():
        assert torch.equal(value, expected[key.split("/")[-1]]), key


def called_alone(method: Method, recipe: Recipe, path: Path, name: str) -> Mapping[str, Tensor]:
    """Let one site call its own training round after round on a network of its own, with no server and no wire."""
    with seed_global_rng(recipe.runtime.seed, "initial weights"):
        net = method.network(recipe).train()
    compute, view, kept = resolve_compute("cpu", "fp32"), View.of(PreparedSet.open(path), "train"), dict[str, Tensor]()
    compute.place(net)
    for number in range(1, recipe.training.rounds + 1):
        site = Site(name, recipe, number, view, net, compute, kept=kept, scratch={})
        with seed_global_rng(recipe.runtime.seed, name, number, "train", 1, "library draws"):
            method.calls["train"].run(site, site.tensors(*method.parts_at(Home.LENT)))
        kept = site.private_state()
    return net.state_dict()


@pytest.mark.long
def test_two_exchanges_without_a_pull_are_fedpad(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, two_exchanges.METHOD, method__pull=0.0)
    run_toy(content, tmp_path / "null", method=two_exchanges.METHOD)
    run_toy(tree(sets, "fedpad"), tmp_path / "fedpad")
    assert weights(tmp_path / "null") == weights(tmp_path / "fedpad")
