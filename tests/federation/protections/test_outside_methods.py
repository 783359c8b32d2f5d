"""Methods of other packages: a protection covers all that a site sends and the server uses, or it is refused."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.federation.wires import Wire
from tests.refusals import refused
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.federation.method import EXAMPLES, LOSS, SUMMED, Call, Method, Upload
from fedvisage.federation.protections.combine import norm_of_update
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods import METHODS
from fedvisage.methods.pad import fedpad
from fedvisage.tasks.catalogue import describe

CLIP = 0.1
DP = {"clip": CLIP, "noise": 1.0, "delta": 1e-5, "entropy": "derived"}
ONLY_CLIPPED = {"clip": CLIP, "noise": 0}
SECURE = {"entropy": "derived"}
PROTECTED: list[tuple[str, Any]] = [("dp", DP), ("combine", "median"), ("secure", SECURE)]
WEIGHTS, *STATISTICS = fedpad.METHOD.calls[SUMMED].uploads
CENTRES = Upload("centres", "statistic", shape=(2, 8))
Program = Callable[[Server], Iterator[None]]


def content(sets: Sets, method: Method, **changes: Any) -> dict[str, Any]:
    return tree(sets, method, **{"training__rounds": 1, "evaluation__every": 0, **changes})


def method_of(step: Callable[[Server], object], **changes: Any) -> Method:
    """Return FedAvg with another server program and further changes."""

    def server(s: Server) -> Iterator[None]:
        for _ in s.rounds():
            with s.quorum():
                step(s)
            yield

    return replace(fedpad.METHOD, name="mine", server=server, **changes)


def train_with(run: Callable[[Site, Message], Message], *uploads: Upload) -> Method:
    """Return FedAvg with another local work, or other uploads."""
    return replace(fedpad.METHOD, name="mine", calls={SUMMED: Call(run, uploads or (WEIGHTS, *STATISTICS))})


local_work = fedpad.METHOD.calls[SUMMED].run


def visit_each(s: Server) -> None:
    for name in s.present:
        with s.visit(name) as site:
            site.ask(SUMMED, s.lent())


# Requests of the server.


@pytest.mark.parametrize(("key", "setting"), PROTECTED)
@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.ask(SUMMED, s.lent()),
        visit_each,
        lambda s: [*s.exchange.run(SUMMED, s.lent())],
        lambda s: s.reduce(SUMMED, s.lent(), weight={"A": 1000.0, "B": 1.0, "C": 1.0}),
        lambda s: s.reduce(SUMMED, s.lent(), weight="examples"),
        lambda s: s.reduce(SUMMED, s.lent(), to=("A",)),
    ],
    ids=["ask", "visit", "exchange", "weights", "examples", "to"],
)
def test_uploads_that_do_not_enter_the_protected_mean_are_not_requested(
    key: str, setting: Any, step: Callable[[Server], object], sets: Sets, tmp_path: Path
) -> None:
    method, sent = method_of(step), list[str]()
    wire = partial(Wire, record=lambda site, order, message: sent.append(site))
    with refused(f"recipe.federation.{key}", "mine", SUMMED):
        run_toy(content(sets, method, **{f"federation__{key}": setting}), tmp_path / "run", method=method, wire=wire)
    assert not sent


def test_without_protections_a_program_may_request_single_uploads(sets: Sets, tmp_path: Path) -> None:
    def step(s: Server) -> None:
        s.ask(SUMMED, s.lent())

    method = method_of(step)
    run_toy(content(sets, method), tmp_path / "run", method=method)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(("key", "setting", "shown"), [("dp", DP, 0), ("combine", "median", 0), ("wire", "fp32", 3)])
def test_losses_of_single_sites_do_not_reach_a_program_past_a_protection(
    key: str, setting: Any, shown: int, sets: Sets, tmp_path: Path
) -> None:
    counts: list[int] = []

    def step(s: Server) -> None:
        reduced = s.reduce(SUMMED, s.lent())
        counts.append(len(reduced.losses))
        s.load(reduced.value)

    method = method_of(step)
    run_toy(content(sets, method, **{f"federation__{key}": setting}), tmp_path / "run", method=method)
    assert counts == [shown]


def test_a_secure_sum_has_the_weights_of_the_recipe(sets: Sets, tmp_path: Path) -> None:
    method = method_of(lambda s: s.load(s.reduce(SUMMED, s.lent()).value))
    changes = {"federation__secure": SECURE, "method__weight": "examples"}
    with refused("recipe.federation.secure", "weights"):
        run_toy(content(sets, method, **changes), tmp_path / "run", method=method)


# Declarations of a method.


def beside(call: str, *uploads: Upload) -> Mapping[str, Call]:
    """Return the calls of FedAvg with further uploads of a call."""
    kept = (WEIGHTS, *STATISTICS) if call == SUMMED else ()
    return {**fedpad.METHOD.calls, call: Call(local_work, (*kept, *uploads))}


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        *[(f"federation.{key}", setting) for key, setting in PROTECTED],
        ("federation.poisoned", {"sites": ["B"], "how": "sign-flip"}),
        ("training.privacy", {"clip": 1.0, "people": 2, "rate": 0.5, "images": 2, "epsilon": 8, "delta": 1e-3}),
    ],
)
@pytest.mark.parametrize(
    "calls",
    [
        beside("prototypes", CENTRES),
        beside("prototypes", EXAMPLES),
        beside(SUMMED, CENTRES),
        beside(SUMMED, Upload("length", "gradient")),
        beside(SUMMED, Upload("control", "gradient", parts=("model",), prefix="control/")),
        beside(SUMMED, Upload("copy", "statistic", parts=("model",), prefix="copy/")),
    ],
    ids=["call", "count", "statistic", "gradient", "prefix", "parts"],
)
def test_uploads_that_no_protection_covers_are_refused(
    key: str, setting: Any, calls: Mapping[str, Call], sets: Sets
) -> None:
    method = replace(fedpad.METHOD, name="mine", calls=calls)
    changes = {key.replace(".", "__"): setting}
    (name,) = [
        upload.name for call in calls.values() for upload in call.uploads if upload not in (WEIGHTS, *STATISTICS)
    ]
    with refused(f"recipe.{key}", name, "mine"):
        check_protection(recipe_of(content(sets, method, **changes), method), method)


def test_privacy_of_people_covers_no_count_beside_the_weights(sets: Sets) -> None:
    privacy = {"clip": 1.0, "people": 2, "rate": 0.5, "images": 2, "epsilon": 8, "delta": 1e-3}
    method = train_with(local_work, WEIGHTS, EXAMPLES, LOSS)
    with refused("recipe.training.privacy", "examples", "mine"):
        check_protection(recipe_of(content(sets, method, training__privacy=privacy), method), method)


def test_every_averaging_method_of_the_package_is_covered() -> None:
    averaging = [method for method in METHODS.values() if "one_mean" in method.supports and not method.pooled]
    assert len(averaging) > 15
    for method in averaging:
        seen = describe(method)["sees_in_secure_sums"]
        assert seen.startswith("weights, loss of all sites as a sum; histogram"), method.name


def test_description_lists_the_fields_of_secure_sums() -> None:
    assert describe(fedpad.METHOD)["sees_in_secure_sums"] == (
        "weights, loss of all sites as a sum; histogram, scatter, by_type, people singly"
    )
    assert describe(replace(fedpad.METHOD, calls=beside("prototypes", CENTRES)))["sees_in_secure_sums"] is None
    assert describe(train_with(local_work, WEIGHTS))["sees_in_secure_sums"].startswith("weights of all sites as a sum;")


@pytest.mark.parametrize(
    ("uploads", "keywords"),
    [
        ((replace(WEIGHTS, kind="weigths"),), ("weigths", "weights")),  # type: ignore[arg-type]
        ((WEIGHTS, Upload("count", "dp")), ("count", "COST")),
    ],
)
def test_kinds_are_known_and_releases_state_their_cost(uploads: tuple[Upload, ...], keywords: tuple[str, ...]) -> None:
    with refused("method 'mine'", *keywords):
        train_with(local_work, *uploads)


def test_two_releasing_calls_have_no_joint_account(sets: Sets) -> None:
    privacyface = METHODS["privacyface"]
    calls = {**privacyface.calls, "again": replace(privacyface.calls["cluster"])}
    method = replace(privacyface, name="mine", calls=calls)
    recipe = recipe_of(tree(sets, method, federation__dp=DP), method)
    with refused("recipe.federation.dp", "mine"):
        check_protection(recipe, method)


# Uploads of a site.


def update_of(method: Method, sets: Sets, out: Path, **federation: Any) -> float:
    """Return the length of the mean update of a round."""
    lent: Message = {}
    wire = partial(Wire, record=lambda site, order, message: order.call == SUMMED and lent.update(order.message))
    run_toy(
        content(sets, method, federation=federation, training__optimizer={"lr": 1.0}), out, method=method, wire=wire
    )
    model = load_file(out / "model.safetensors")
    return norm_of_update(model, lent)


def load_own_start(site: Site, message: Message) -> Message:
    """Start from weights of the site's own."""
    own = {name: value + 1 if value.is_floating_point() else value for name, value in message.items()}
    return local_work(site, own)


def change_order(site: Site, message: Message) -> Message:
    """Train in place of the order's own tensors."""
    reply = local_work(site, message)
    for name, value in message.items():
        value.copy_(reply[name])
    return reply


@pytest.mark.parametrize(
    "method",
    [
        train_with(local_work, replace(WEIGHTS, kind="gradient"), *STATISTICS),
        train_with(load_own_start),
        train_with(change_order),
    ],
    ids=["kind", "start", "order"],
)
def test_the_update_of_a_secure_sum_is_clipped_whatever_the_method_does(
    method: Method, sets: Sets, tmp_path: Path
) -> None:
    assert update_of(method, sets, tmp_path / "run", dp=ONLY_CLIPPED, secure=SECURE) <= CLIP


def test_an_order_without_the_weights_has_no_update_to_clip(sets: Sets, tmp_path: Path) -> None:
    def train(site: Site, message: Message) -> Message:
        return local_work(site, {name: value.nan_to_num(0.1) for name, value in site.tensors("model").items()})

    calls = {SUMMED: Call(train, (WEIGHTS, *STATISTICS))}
    method = method_of(lambda s: s.load(s.reduce(SUMMED).value), calls=calls)
    with refused("recipe.federation.dp", "mine", "lent"):
        run_toy(content(sets, method, federation={"dp": DP, "secure": SECURE}), tmp_path / "run", method=method)
