"""Messages in fewer bits: their rounding errors, and malformed codes that the schema refuses."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from tests.refusals import failed
from tests.toy import recipe_of, tree
from torch import nn

from fedvisage.federation.method import Upload
from fedvisage.federation.wire.message import Message, size_of
from fedvisage.federation.wire.precision import Form, fields, pack, unpack
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE, RefusedMessage, Schema, check, schema_of

FORMS: tuple[Form, ...] = ("fp32", "bf16", "int8")
SHAPE = (6, 9, 96)


def values(seed: int = 0) -> torch.Tensor:
    """Return tokens whose sizes differ by orders of magnitude from vector to vector; one is zero."""
    drawn = np.random.default_rng(seed).normal(size=SHAPE) * np.logspace(-6, 3, 9)[None, :, None]
    drawn[0, 0] = 0
    return torch.from_numpy(drawn.astype(np.float32))


def schema(form: Form) -> Schema:
    recipe = recipe_of(tree({name: f"nowhere/{name}" for name in "ABCU"}))  # type: ignore[misc]
    upload = Upload("tokens", "activation", shape=(-1, 9, 96), form=lambda _: form)
    return schema_of((upload,), recipe, nn.ModuleDict())


@pytest.mark.parametrize("form", FORMS)
def test_decoded_values_are_within_the_rounding_bound(form: Form) -> None:
    sent = values()
    error = (unpack("x", pack("x", sent, form)) - sent).abs()
    largest = sent.abs().amax(dim=-1, keepdim=True)
    bound = {"fp32": 0 * sent, "bf16": sent.abs() / 256, "int8": largest / 254}[form]
    assert (error <= bound * 1.0001).all()


def test_random_rounding_is_right_on_average_and_the_nearest_is_not() -> None:
    """Two hundred draws of a hundredth of the largest number, which is between code 1 and 2."""
    sent = torch.tensor([[1.0, 0.0118, -0.0118, 0.0]]).repeat(20_000, 1)
    drawn = unpack("x", pack("x", sent, "int8", torch.Generator().manual_seed(0))).mean(dim=0)
    nearest = unpack("x", pack("x", sent, "int8")).mean(dim=0)
    step = 1 / 127
    assert drawn.numpy() == pytest.approx(sent[0].numpy(), abs=4 * step / 2 / 20_000**0.5)
    assert abs(float(nearest[1]) - 0.0118) > 0.4 * step
    assert float(drawn[0]) == pytest.approx(1.0, abs=1e-6)


def test_bytes_equal_the_declaration_and_int8_is_nearly_four_times_smaller() -> None:
    sizes = {form: size_of(pack("x", values(), form).values()) for form in FORMS}
    assert sizes == {"fp32": 4 * 6 * 9 * 96, "bf16": 2 * 6 * 9 * 96, "int8": 6 * 9 * 96 + 4 * 6 * 9}
    assert sizes["fp32"] / sizes["bf16"] == 2
    assert sizes["fp32"] / sizes["int8"] >= 3.8


@pytest.mark.parametrize("form", FORMS)
def test_packed_fields_equal_the_declaration(form: Form) -> None:
    message = pack("tokens", values(), form)
    check(message, schema(form))
    declared = fields("tokens", SHAPE, form)
    assert {name: (tuple(value.shape), value.dtype) for name, value in message.items()} == declared


@pytest.mark.parametrize(("sent", "declared"), list(permutations(FORMS, 2)))
def test_another_form_than_the_declared_one_is_refused(sent: Form, declared: Form) -> None:
    with pytest.raises(RefusedMessage):
        check(pack("tokens", values(), sent), schema(declared))


def spoil(name: str, value: float) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        message[name].reshape(-1)[3] = value

    return change


def drop_row(message: Message) -> None:
    message["tokens.scale"] = message["tokens.scale"][:1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spoil("tokens", -128), "^tokens: .*-127"),
        (spoil("tokens.scale", -1e-3), "^tokens\\.scale: .*below"),
        (spoil("tokens.scale", float("nan")), "^tokens\\.scale: .*finite"),
        (spoil("tokens.scale", 1.01 * LARGEST_MAGNITUDE / 127), "^tokens\\.scale: .*1e\\+06"),
        (drop_row, "^tokens\\.scale: .*shape"),
        (lambda message: message.pop("tokens.scale"), "^tokens\\.scale: .*missing"),
    ],
)
def test_codes_of_invalid_values_are_refused(change: Callable[[Message], object], reason: str) -> None:
    message = pack("tokens", values(), "int8")
    change(message)
    with pytest.raises(RefusedMessage, match=reason):
        check(message, schema("int8"))


@pytest.mark.parametrize(("form", "field"), [("bf16", "tokens"), ("fp32", "tokens"), ("int8", "tokens.scale")])
def test_numbers_that_are_not_finite_are_refused_in_every_form(form: Form, field: str) -> None:
    sent = values()
    sent[1, 2, 3] = float("inf")
    with failed(RefusedMessage, field, "finite"):
        check(pack("tokens", sent, form), schema(form))


def test_scale_must_be_a_plain_tensor() -> None:
    message = pack("tokens", values(), "int8")
    message["tokens.scale"] = message["tokens.scale"].to_sparse()
    with failed(RefusedMessage, "tokens.scale", "plain tensor"):
        check(message, schema("int8"))
