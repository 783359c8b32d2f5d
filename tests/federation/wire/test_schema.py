"""The schema refuses every upload that differs from its declaration, with field and reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.damaged_uploads import NET, UPLOADS, honest
from tests.refusals import failed
from tests.toy import SIZE, recipe_of, tree

from fedvisage.federation.method import Call, Upload
from fedvisage.federation.wire.message import MalformedMessage, decode, encode
from fedvisage.federation.wire.schema import RefusedMessage, Schema, check, schema_of
from fedvisage.methods import METHODS
from fedvisage.metrics.threshold import BINS
from fedvisage.recipe import Recipe
from fedvisage.tasks.pad import heldout


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(tree({name: Path(f"nowhere/{name}") for name in "ABCU"}))


@pytest.fixture(scope="module")
def schema(recipe: Recipe) -> Schema:
    return schema_of(UPLOADS, recipe, NET)


def test_honest_uploads_pass_also_as_bytes(schema: Schema) -> None:
    draws = np.random.default_rng(1)
    for _ in range(200):
        message = honest(draws)
        check(message, schema)
        check(decode(encode(message)), schema)


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: None,
        lambda tensor: 7,
        lambda tensor: tensor.tolist(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.to_sparse(),
        lambda tensor: tensor.to("meta"),
        lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: tensor.clone().requires_grad_(),
        torch._neg_view,
    ],
)
def test_only_plain_tensors_are_accepted(make: Callable[[torch.Tensor], Any], schema: Schema) -> None:
    message = honest(np.random.default_rng(6))
    name = next(name for name, value in message.items() if value.dtype == torch.float32 and value.dim())
    with failed(RefusedMessage, "model.0.weight", "plain tensor") as caught:
        check(message | {name: make(message[name])}, schema)
    assert caught.value.field == name


def test_an_open_dimension_is_limited_by_the_number_of_elements(schema: Schema) -> None:
    message = honest(np.random.default_rng(3))
    check(message | {"tokens": torch.zeros(10, 4)}, schema)
    with failed(RefusedMessage, "tokens", "44", "40"):
        check(message | {"tokens": torch.zeros(11, 4)}, schema)
    with failed(RefusedMessage, "tokens", "(4, 10)", "(-1, 4)"):
        check(message | {"tokens": torch.zeros(4, 10)}, schema)


def test_counts_whose_sum_is_not_exact_are_refused(recipe: Recipe) -> None:
    """In int64, 2,048 bins of 2^53 add up to 0."""
    schema = schema_of((heldout.UPLOADS[heldout.SCORES],), recipe, NET)
    counts = torch.zeros(2, BINS, dtype=torch.int64)
    counts[0, 0] = counts[1, -1] = 2**52
    check({"histogram": counts.clone()}, schema)
    for row, bins, count in [(1, 1, 2), (1, 2048, 2**53), (0, 2048, 2**53)]:
        wrong = counts.clone()
        wrong[row, 1 : 1 + bins] = count
        with failed(RefusedMessage, "histogram", "add up", str(2**53)):
            check({"histogram": wrong}, schema)


def test_truncated_bytes_are_no_message() -> None:
    data = encode(honest(np.random.default_rng(4)))
    for length in range(len(data)):
        with pytest.raises(MalformedMessage):
            decode(data[:length])


def test_random_bytes_are_refused_without_trusting_their_sizes() -> None:
    draws = np.random.default_rng(5)
    for _ in range(500):
        with pytest.raises(MalformedMessage):
            decode(draws.bytes(int(draws.integers(0, 200))))
    with pytest.raises(MalformedMessage):
        decode((2**62).to_bytes(8, "little") + b"{}")


def test_shapes_of_fields_follow_from_the_recipe(recipe: Recipe) -> None:
    call = Call(lambda site, message: {}, (Upload("tokens", "activation", shape=lambda r: (-1, r.input.size)),))
    assert schema_of(call.uploads, recipe, NET).tensors["tokens"].shape == (-1, SIZE)


def test_every_method_declares_each_tensor_once() -> None:
    for method in METHODS.values():
        for call in method.calls.values():
            names = [f"{upload.prefix}{name}" for upload in call.uploads for name in (upload.parts or (upload.name,))]
            assert len(names) == len(set(names))


def test_a_reply_that_changed_after_its_check_is_checked_again(schema: Schema) -> None:
    message = honest(np.random.default_rng(7))
    check(message, schema)
    check(dict(message), schema)
    message["model.0.weight"][0, 0] = float("nan")
    with failed(RefusedMessage, "model.0.weight", "not finite"):
        check(message, schema)
    message["model.0.weight"][0, 0] = 0
    check(message, schema)
    del message["loss"]
    with failed(RefusedMessage, "loss", "is missing"):
        check(message, schema)
