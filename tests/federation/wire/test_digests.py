"""A digest that is known is not worked out again, and one that is no longer right is."""

import torch

from fedvisage.federation.wire.message import Digests, digest_of


def test_a_digest_is_worked_out_again_when_a_tensor_was_changed_in_its_place() -> None:
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


def test_the_digest_of_one_number_does_not_depend_on_its_stride() -> None:
    strided = torch.arange(4.0)[1::4]
    assert strided.stride() == (4,)
    assert digest_of({"n": strided}) == digest_of({"n": torch.tensor([1.0])})
