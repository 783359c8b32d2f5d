"""The cache of digests: reuse for the same message, and a new digest after a change."""

import hashlib
import weakref

import numpy as np
import pytest
import torch

from fedvisage.federation.wire.message import Digests, digest_of


def test_digest_is_recomputed_after_an_in_place_change() -> None:
    digests, message = Digests(), {"one": torch.arange(3.0), "two": torch.ones(2)}
    for _ in range(2):
        assert digests.of(message) == digest_of(message)
        assert digests.of(dict(message)) == digest_of(message), "the same tensors in another dictionary"
    message["two"].add_(1)
    assert digests.of(message) == digest_of(message)
    assert digests.of({"one": message["one"]}) == digest_of({"one": message["one"]})
    with torch.inference_mode():
        inferred = {"one": torch.ones(2)}
    assert digests.of(inferred) == digest_of(inferred)


def test_the_same_tensors_are_read_once() -> None:
    """A digest that is remembered stays, whatever becomes of the bytes behind torch's back."""
    values = torch.zeros(2)
    shared, digests = values.numpy(), Digests()
    before = digests.of({"one": values})
    shared += 1  # which torch does not notice
    assert digests.of({"one": values}) == before != digest_of({"one": values})


@pytest.mark.parametrize(
    "strided",
    [
        torch.arange(4.0)[1::4],
        torch.arange(6.0)[1::2],
        torch.tensor(2.5).expand(3),
        torch.arange(6, dtype=torch.bfloat16)[::3],
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    ],
)
def test_the_digest_does_not_depend_on_strides(strided: torch.Tensor) -> None:
    assert strided.stride() != torch.empty(strided.shape).stride()
    values = torch.tensor(strided.tolist(), dtype=strided.dtype)
    assert digest_of({"n": strided}) == digest_of({"n": values})


def test_digest_covers_names_types_shapes_and_values() -> None:
    message = {
        "b": torch.arange(6.0).reshape(2, 3).T,
        "a": torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
        "d": torch.tensor(True),
        "c": torch.empty(0, 2, dtype=torch.int64),
    }
    total = hashlib.sha256(b"a|torch.bfloat16|(2,)|" + bytes.fromhex("803f20c0"))
    total.update(b"b|torch.float32|(3, 2)|" + np.array([0, 3, 1, 4, 2, 5], "<f4").tobytes())
    total.update(b"c|torch.int64|(0, 2)|" + b"d|torch.bool|()|" + b"\1")
    assert digest_of(message) == total.hexdigest()


def test_digest_cache_keeps_no_message_in_memory() -> None:
    digests, message = Digests(), {"one": torch.zeros(2)}
    digests.of(message)
    value = weakref.ref(message.pop("one"))
    assert value() is None


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.bool],
)
def test_digest_is_the_hash_of_type_shape_and_bytes(dtype: torch.dtype) -> None:
    values = torch.tensor([[0.5, 1, 2], [3, 4, 5]]).to(dtype)
    content = f"n|{dtype}|(2, 3)|".encode() + bytes(values.view(torch.uint8).flatten().tolist())
    assert digest_of({"n": values}) == hashlib.sha256(content).hexdigest()
