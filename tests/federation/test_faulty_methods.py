"""Mistakes in a method's declaration, replies and server program end a run with one line that names the method."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.refusals import failed, refused
from tests.toy import Sets, run_toy, tree
from torch import nn

from fedvisage.base.errors import RunFailed
from fedvisage.federation.method import Call, Home, Method, Upload
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE
from fedvisage.methods.pad import fedpad
from fedvisage.tasks.catalogue import describe
from fedvisage.tasks.saved_model import load

TRAIN = fedpad.METHOD.calls["train"]


def variant(**changes: Any) -> Method:
    """Return FedPAD with these changes, under another name."""
    return replace(fedpad.METHOD, **{"name": "mine", **changes})


def run_briefly(method: Method, sets: Sets, out: Path, **changes: Any) -> None:
    """Run a method on the small sets for two rounds of one batch, without held-out scores between them."""
    brief = {"training__rounds": 2, "training__local": {"batches": 1}, "evaluation__every": 0}
    run_toy(tree(sets, method, **{**brief, **changes}), out, method=method)


def in_each_round(step: Callable[[Server], None]) -> Callable[[Server], Iterator[None]]:
    """Return a server program that takes one step per round."""

    def server(s: Server) -> Iterator[None]:
        for _ in s.rounds():
            step(s)
            yield

    return server


# Declarations.


@pytest.mark.parametrize("name", ["", "my method/1", "x" * 65])
def test_method_name_of_other_characters_is_refused(name: str) -> None:
    with refused(f"method {name!r}", "name", "letters"):
        variant(name=name)


def test_server_program_that_is_no_generator_function_is_refused() -> None:
    def server(s: Server) -> Any:
        s.load(s.reduce("train", s.lent()).value)

    with refused("method 'mine'", "server", "yield"):
        variant(server=server)


@pytest.mark.parametrize(
    ("upload", "keyword"),
    [
        (Upload("weights", "weights", parts=("modle",)), "modle"),
        (Upload("weights", "weigths", parts=("model",)), "weigths"),  # type: ignore[arg-type]
        (Upload("loss", "statistic", shape=(3,)), "loss"),
    ],
)
def test_upload_that_no_run_could_send_is_refused(upload: Upload, keyword: str) -> None:
    with refused("method 'mine'", "'train'", keyword):
        variant(calls={"train": Call(TRAIN.run, (upload,))})


def test_upload_of_a_part_that_never_leaves_the_server_is_refused() -> None:
    with refused("method 'mine'", "'train'", "model"):
        variant(home={"model": Home.SERVER})


@pytest.mark.parametrize("home", [{"model": Home.LENT}, {"model": Home.LENT, "extra": Home.SITE, "third": Home.SITE}])
def test_network_with_other_parts_than_declared_is_refused(home: dict[str, Home], sets: Sets, tmp_path: Path) -> None:
    def network(recipe: Any) -> nn.ModuleDict:
        return nn.ModuleDict({**fedpad.METHOD.network(recipe), "extra": nn.Linear(2, 2)})

    with refused("method 'mine'", "network", "home", "extra"):
        run_briefly(variant(network=network, home=home), sets, tmp_path / "run")


# Replies.


def return_nothing(site: Site, message: Message) -> Any:
    return None


def send_a_number(site: Site, message: Message) -> Any:
    return {**TRAIN.run(site, message), "loss": 0.5}


@pytest.mark.parametrize(("turn", "keyword"), [(return_nothing, "NoneType"), (send_a_number, "loss")])
def test_reply_without_tensors_is_refused_with_its_call(turn: Any, keyword: str, sets: Sets, tmp_path: Path) -> None:
    with refused("method 'mine'", "'train'", keyword):
        run_briefly(variant(calls={"train": replace(TRAIN, run=turn)}), sets, tmp_path / "run")


# Server programs.


@pytest.mark.parametrize(
    ("step", "keyword"),
    [
        (lambda s: s.load({}), "model"),
        (lambda s: s.load({f"modle.{name}": value for name, value in s.net["model"].state_dict().items()}), "model"),
        (lambda s: s.load(s.reduce("train", s.lent())), "Reduced"),
        (lambda s: s.load(s.reduce("train", s.lent(), weight="example").value), "'example'"),
        (lambda s: s.load(s.reduce("train", s.lent(), to=["A", "Z"]).value), "Z"),
        (lambda s: s.ask("train", each={"Z": s.lent()}), "Z"),
        (lambda s: s.ask("trian", s.lent()), "'trian'"),
    ],
)
def test_server_program_that_would_train_nothing_or_less_is_refused(
    step: Any, keyword: str, sets: Sets, tmp_path: Path
) -> None:
    with refused("method 'mine'", keyword):
        run_briefly(variant(server=in_each_round(step)), sets, tmp_path / "run")


def yield_after_the_loop(s: Server) -> Iterator[None]:
    for _ in s.rounds():
        s.load(s.reduce("train", s.lent()).value)
    yield


def return_in_a_round(s: Server) -> Iterator[None]:
    for _ in s.rounds():
        s.load(s.reduce("train", s.lent()).value)
        if s.round == 2:
            return
        yield


def end_after_a_round(s: Server) -> Iterator[None]:
    for _ in s.rounds():
        s.load(s.reduce("train", s.lent()).value)
        yield
        return


@pytest.mark.parametrize("server", [yield_after_the_loop, return_in_a_round, end_after_a_round])
def test_server_program_must_yield_in_every_round(server: Any, sets: Sets, tmp_path: Path) -> None:
    with refused("method 'mine'", "yield", "end_before_this_round"):
        run_briefly(variant(server=server), sets, tmp_path / "run")


def test_server_program_may_end_early_with_a_reason(sets: Sets, tmp_path: Path) -> None:
    def server(s: Server) -> Iterator[None]:
        for _ in s.rounds():
            if s.round == 2:
                s.end_before_this_round("a reason")
                return
            s.load(s.reduce("train", s.lent()).value)
            yield

    run_briefly(variant(server=server), sets, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize("order", ["ask", "reduce"])
def test_orders_that_all_sites_refuse_end_the_run_with_the_reason(order: str, sets: Sets, tmp_path: Path) -> None:
    def step(s: Server) -> None:
        getattr(s, order)("train", s.lent() | {"extra": torch.zeros(1)})

    with failed(RunFailed, "0 of 3 sites", "A: order: extra: is not declared"):
        run_briefly(variant(server=in_each_round(step)), sets, tmp_path / "run")


def test_statistics_too_far_apart_to_send_do_not_end_a_trained_run(sets: Sets, tmp_path: Path) -> None:
    """Noise of this size makes a network whose scatter of held-out batches is above the limit of every field."""
    noise = {"dp": {"clip": 1.0, "noise": 1.0, "delta": 1e-5}}
    content = tree(sets, training__rounds=2, evaluation__every=0, federation=noise)
    run_toy(content, tmp_path / "run")
    assert set(load(tmp_path / "run").scatter.values()) == {LARGEST_MAGNITUDE}


def test_uploads_of_one_name_in_two_calls_are_both_described() -> None:
    second = Upload("weights", "statistic", shape=(2,), guarantee="two numbers")
    method = variant(calls={"train": TRAIN, "more": Call(TRAIN.run, (second, *TRAIN.uploads[1:]))})
    fields = [(row["field"], row["kind"]) for row in describe(method)["leaves_a_site"]]
    assert fields[:4] == [
        ("weights", "weights"), ("examples", "statistic"), ("loss", "statistic"), ("weights", "statistic")
    ]  # fmt: skip
    assert len(fields) == len(set(fields)), "equal uploads of two calls are described once"
