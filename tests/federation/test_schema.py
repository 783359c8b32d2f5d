"""What does not fit its declaration is refused with the field and the reason, however it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.toy import SIZE, recipe_of, tree
from torch import nn

from fedvisage.federation.message import Malformed, decode, encode
from fedvisage.federation.method import EXAMPLES, LOSS, Call, Message, Upload
from fedvisage.federation.schema import ABSURD, Refused, Schema, check, schema_of
from fedvisage.methods import METHODS
from fedvisage.recipe import Recipe

Wrong = Callable[[Message, str, np.random.Generator], str]
"""Spoils one tensor of a message and returns what the reason must say."""

NET = nn.ModuleDict({"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))})
UPLOADS = (
    Upload("weights", "weights", parts=("model",)),
    Upload("tokens", "activation", shape=(-1, 4), most=40),
    Upload("histogram", "statistic", shape=(2, 5), dtype="int64"),
    EXAMPLES,
    LOSS,
)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(tree({name: Path(f"nowhere/{name}") for name in "ABCU"}))


@pytest.fixture(scope="module")
def schema(recipe: Recipe) -> Schema:
    return schema_of(Call(lambda site, message: {}, UPLOADS), recipe, NET)


def honest(draws: np.random.Generator) -> Message:
    weights = {f"model.{name}": value.clone() for name, value in NET["model"].state_dict().items()}
    return weights | {
        "tokens": torch.from_numpy(draws.normal(size=(int(draws.integers(1, 11)), 4)).astype(np.float32)),
        "histogram": torch.from_numpy(draws.integers(0, 100, (2, 5))),
        "examples": torch.tensor(int(draws.integers(1, 100_000))),
        "loss": torch.tensor(float(draws.random()), dtype=torch.float64),
    }


def planted(value: float, reason: str) -> Wrong:
    def wrong(message: Message, name: str, draws: np.random.Generator) -> str:
        flat = message[name].to(torch.float64).reshape(-1)
        flat[int(draws.integers(len(flat)))] = value
        message[name] = flat.reshape(message[name].shape).to(message[name].dtype)
        return reason

    return wrong


def missing(message: Message, name: str, draws: np.random.Generator) -> str:
    del message[name]
    return "is missing"


def extra(message: Message, name: str, draws: np.random.Generator) -> str:
    message[f"{name}-too"] = message[name]
    return "is not declared"


def other_type(message: Message, name: str, draws: np.random.Generator) -> str:
    types = [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.complex64]
    types.remove(message[name].dtype)
    message[name] = message[name].to(types[int(draws.integers(len(types)))])
    return "has type"


def broadcastable(message: Message, name: str, draws: np.random.Generator) -> str:
    """A shape that arithmetic would accept without a word."""
    value = message[name]
    smaller = value.reshape(-1)[:1] if value.shape != (1,) else value.reshape(())
    message[name] = value[None] if draws.random() < 0.5 else smaller
    return "has shape"


def empty(message: Message, name: str, draws: np.random.Generator) -> str:
    message[name] = message[name].reshape(-1)[:0].reshape(0, *message[name].shape[1:])
    return "has shape"


FLOATS: list[Wrong] = [
    planted(float("nan"), "is not finite"),
    planted(float("inf"), "is not finite"),
    planted(float("-inf"), "is not finite"),
    planted(1e38, "beyond"),
    planted(-1.01 * ABSURD, "beyond"),
]
COUNTS: list[Wrong] = [planted(-1, "below zero"), planted(2.0**60, "beyond")]
ANY: list[Wrong] = [missing, extra, other_type, broadcastable, empty]


def test_ten_thousand_spoilt_uploads_are_refused_with_field_and_reason(schema: Schema) -> None:
    draws = np.random.default_rng(0)
    for _ in range(10_000):
        message = honest(draws)
        name = str(draws.choice(sorted(message)))
        wrongs = ANY + (FLOATS if message[name].is_floating_point() else COUNTS)
        reason = wrongs[int(draws.integers(len(wrongs)))](message, name, draws)
        with pytest.raises(Refused) as caught:
            check(message, schema)
        assert caught.value.field.startswith(name)
        assert reason in caught.value.reason


def test_honest_uploads_pass_also_as_bytes(schema: Schema) -> None:
    draws = np.random.default_rng(1)
    for _ in range(200):
        message = honest(draws)
        check(message, schema)
        check(decode(encode(message)), schema)


@pytest.mark.parametrize("examples", [0, -1, 10**9, 2**62])
def test_a_number_of_examples_that_no_site_has_is_refused(schema: Schema, examples: int) -> None:
    message = honest(np.random.default_rng(2)) | {"examples": torch.tensor(examples)}
    with pytest.raises(Refused, match="examples"):
        check(message, schema)


def test_an_open_dimension_is_limited_by_the_number_of_elements(schema: Schema) -> None:
    message = honest(np.random.default_rng(3))
    check(message | {"tokens": torch.zeros(10, 4)}, schema)
    with pytest.raises(Refused, match="tokens: has 44 elements, at most 40"):
        check(message | {"tokens": torch.zeros(11, 4)}, schema)
    with pytest.raises(Refused, match="tokens: has shape"):
        check(message | {"tokens": torch.zeros(4, 10)}, schema)


def test_truncated_bytes_are_no_message() -> None:
    data = encode(honest(np.random.default_rng(4)))
    for length in range(len(data)):
        with pytest.raises(Malformed):
            decode(data[:length])


def test_random_bytes_are_no_message_and_announced_sizes_are_not_believed() -> None:
    draws = np.random.default_rng(5)
    for _ in range(500):
        with pytest.raises(Malformed):
            decode(draws.bytes(int(draws.integers(0, 200))))
    with pytest.raises(Malformed):
        decode((2**62).to_bytes(8, "little") + b"{}")


def test_shapes_of_fields_follow_from_the_recipe(recipe: Recipe) -> None:
    call = Call(lambda site, message: {}, (Upload("tokens", "activation", shape=lambda r: (-1, r.input.size)),))
    assert schema_of(call, recipe, NET).tensors["tokens"].shape == (-1, SIZE)


def test_every_method_declares_each_tensor_once() -> None:
    for method in METHODS.values():
        for call in method.calls.values():
            names = [name for upload in call.uploads for name in (upload.parts or (upload.name,))]
            assert len(names) == len(set(names))
