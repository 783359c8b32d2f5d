"""The declared fields of a call, worked out for a network: what a site may send, the server accepts, nothing else.

The same check runs twice. At the site it is the exit: a method cannot emit what it did not declare. At the server it is
the entrance: a field that is missing, extra, of another type or shape, not finite or absurdly large is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedvisage.federation.privacy.accountant import COLUMNS
from fedvisage.federation.wire.message import Message, is_plain
from fedvisage.federation.wire.precision import LARGEST, SCALE, Form, fields, wide
from fedvisage.recipe import Recipe

# One declared field of what a site uploads, and the fields that many methods share.


Kind = Literal["weights", "statistic", "activation", "gradient", "dp", "masked", "key", "share"]
"""What an uploaded field is, for the ledger and for whoever reads it."""


@dataclass(frozen=True)
class Upload:
    """One declared field of a site's reply.

    With ``parts`` the field is the whole state of these parts (weights and buffers) and its tensors are named
    ``part.tensor``. Otherwise it is one tensor named like the field, whose shape is given, or follows from the recipe;
    -1 stands for a dimension that varies, bounded by ``most`` elements in all. With ``form`` the recipe says in which
    numbers it travels (``wire``).
    """

    name: str
    """The field's name, in the ledger; without ``parts`` the tensor's name as well."""
    kind: Kind
    """What it is, for the ledger."""
    parts: tuple[str, ...] = ()
    """The parts whose state it is."""
    prefix: str = ""
    """What stands before the names of the parts' tensors, where it is not the parts' state that they hold."""
    trained: bool = False
    """Of the parts, only the tensors that a gradient trains."""
    shape: tuple[int, ...] | Callable[[Recipe], tuple[int, ...]] = ()
    """The shape of a single tensor; -1 for a dimension that varies."""
    dtype: str = "float32"
    """The type of a single tensor."""
    most: int = 1 << 24
    """The most elements of a tensor whose shape varies."""
    guarantee: str = ""
    """What the ledger says of it in words."""
    form: Callable[[Recipe], Form] | None = None
    """In which numbers the recipe has it travel."""
    noised: Callable[[Recipe], bool] | None = None
    """Whether the recipe has it released under differential privacy: of kind ``dp``, with its ``cost`` beside it."""
    left_out: Callable[[Recipe], bool] | None = None
    """Whether the recipe has it not sent at all."""


SUMMED = "train"
"""The call of averaging methods whose uploads meet in one mean."""

EXAMPLES = Upload("examples", "statistic", dtype="int64", guarantee="number of training images")
COST = Upload(
    "cost",
    "statistic",
    shape=(-1, COLUMNS),
    dtype="float64",
    most=64 * COLUMNS,
    guarantee="what the release beside it cost, and all releases of this site so far",
)
LOSS = Upload("loss", "statistic", dtype="float64", guarantee="mean training loss of the turn")


ABSURD = 1e6
"""No weight, statistic or gradient of a sound model comes near this magnitude; one that does would swamp a mean."""


MOST_EXAMPLES = 100_000_000
"""No site has more images; a weight beyond would leave nothing of the other sites in a mean."""

VARIANCE = "running_var"
"""How BatchNorm calls what it divides by the root of: below zero, a network computes nothing."""

EXACT = 2**53
"""Whole numbers beyond are not exact in the float64 of a mean."""


class Refused(Exception):
    """A reply that does not fit its declaration, with the field and the reason."""

    def __init__(self, field: str, reason: str) -> None:
        """Remember both, for the report."""
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        """Say field and reason."""
        return f"{self.field}: {self.reason}"


@dataclass(frozen=True)
class Expected:
    """One tensor that a reply must hold."""

    field: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    most: int


@dataclass(frozen=True)
class Schema:
    """All tensors of one call's reply, by name, and the uploads that they belong to."""

    tensors: Mapping[str, Expected]
    uploads: tuple[Upload, ...]
    narrow: bool = False
    """Whether the weights of its orders and replies travel as bf16."""
    exact: bool = False
    """Whether it is about a model that a round has made already."""

    @property
    def releases(self) -> bool:
        """Whether its replies tell something under differential privacy."""
        return any(upload.kind == "dp" for upload in self.uploads)

    def group(self, message: Message) -> dict[str, Message]:
        """Return the message's tensors under the upload that declared them."""
        groups: dict[str, Message] = {upload.name: {} for upload in self.uploads}
        for name, tensor in message.items():
            groups[self.tensors[name].field][name] = tensor
        return groups


@dataclass(frozen=True)
class Extent:
    """How much one message may hold: tensors, bytes of all of them, bytes of the largest."""

    tensors: int = 0
    size: int = 0
    largest: int = 0


def extent_of(tensors: Iterable[Expected]) -> Extent:
    """Return how much a message may hold that has all these tensors, each as large as it may be."""
    sizes = [
        (one.most if -1 in one.shape else torch.Size(one.shape).numel()) * wide(one.dtype).itemsize for one in tensors
    ]
    return Extent(len(sizes), sum(sizes), max(sizes, default=0))


def schema_of(declared: tuple[Upload, ...], recipe: Recipe, net: nn.ModuleDict, *, exact: bool = False) -> Schema:
    """Work out the tensors that a call with these uploads may send."""
    tensors: dict[str, Expected] = {}
    uploads, narrow = _uploads(declared, recipe), recipe.federation.wire == "bf16" and not exact
    for upload in uploads:
        for part in upload.parts:
            state = dict(net[part].named_parameters()) if upload.trained else net[part].state_dict()
            for name, value in state.items():
                dtype = torch.bfloat16 if narrow and value.dtype == torch.float32 else value.dtype
                tensors[f"{upload.prefix}{part}.{name}"] = _expected(upload, tuple(value.shape), dtype)
        if not upload.parts:
            shape = upload.shape(recipe) if callable(upload.shape) else upload.shape
            plain = {upload.name: (shape, getattr(torch, upload.dtype))}
            encoded = fields(upload.name, shape, upload.form(recipe)) if upload.form else plain
            tensors |= {name: _expected(upload, *form) for name, form in encoded.items()}
    return Schema(tensors, uploads, narrow, exact)


def _uploads(declared: tuple[Upload, ...], recipe: Recipe) -> tuple[Upload, ...]:
    """Return what a call declares under a recipe: what is released with noise has its cost beside it."""
    sent = tuple(upload for upload in declared if upload.left_out is None or not upload.left_out(recipe))
    noised = [upload for upload in sent if upload.noised is not None and upload.noised(recipe)]
    if not noised:
        return sent
    return (*(replace(upload, kind="dp") if upload in noised else upload for upload in sent), COST)


def _expected(upload: Upload, shape: tuple[int, ...], dtype: torch.dtype) -> Expected:
    return Expected(upload.name, upload.kind, shape, dtype, upload.most)


def check(message: Message, schema: Schema) -> None:
    """Refuse a reply that differs from its declaration in any way."""
    for name in sorted(set(message) - set(schema.tensors)):
        raise Refused(name, "is not declared")
    for name, expected in schema.tensors.items():
        if name not in message:
            raise Refused(name, "is missing")
        _check_tensor(name, message[name], expected)
    for name in (name for name, expected in schema.tensors.items() if expected.dtype == torch.int8):
        _check_encoding(name, message)
    if "examples" in message and not 1 <= int(message["examples"]) <= MOST_EXAMPLES:
        raise Refused("examples", f"must be from 1 to {MOST_EXAMPLES}, got {int(message['examples'])}")


def _check_tensor(name: str, tensor: Tensor, expected: Expected) -> None:
    if not is_plain(tensor):
        raise Refused(name, "is no plain tensor")
    if tensor.dtype != expected.dtype:
        raise Refused(name, f"has type {tensor.dtype}, declared {expected.dtype}")
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected.shape) and all(
        got == want or (want == -1 and got > 0) for got, want in zip(shape, expected.shape, strict=True)
    )
    if not fits:
        raise Refused(name, f"has shape {shape}, declared {expected.shape}")
    if -1 in expected.shape and tensor.numel() > expected.most:
        raise Refused(name, f"has {tensor.numel()} elements, at most {expected.most} are allowed")
    if tensor.is_floating_point():
        _check_values(name, tensor)
    elif tensor.dtype not in (torch.bool, torch.int8) and tensor.numel() and expected.kind != "masked":
        _check_counts(name, tensor)


def _check_values(name: str, tensor: Tensor) -> None:
    if not tensor.numel():
        return
    low, high = torch.aminmax(tensor)
    largest = max(abs(float(low)), abs(float(high)))
    if not largest < float("inf"):
        raise Refused(name, "is not finite")
    if largest > ABSURD:
        raise Refused(name, f"reaches {largest:.3g}, beyond {ABSURD:.0g}")
    if name.endswith(VARIANCE) and float(low) < 0:
        raise Refused(name, "is a variance below zero")


def _check_encoding(name: str, message: Message) -> None:
    """Refuse codes whose values would not be what the same field may hold in fp32."""
    codes, scale = message[name], message.get(f"{name}{SCALE}")
    if scale is None:
        raise Refused(f"{name}{SCALE}", "is missing")
    if scale.shape[:-1] != codes.shape[:-1]:
        raise Refused(f"{name}{SCALE}", f"has shape {tuple(scale.shape)}, the codes have {tuple(codes.shape)}")
    if int(codes.min()) < -LARGEST:
        raise Refused(name, f"has a code below {-LARGEST}")
    if float(scale.min()) < 0:
        raise Refused(f"{name}{SCALE}", "is below zero")
    _check_values(f"{name}{SCALE}", scale.double() * LARGEST)


def _check_counts(name: str, tensor: Tensor) -> None:
    if int(tensor.min()) < 0:
        raise Refused(name, "is a count below zero")
    if int(tensor.max()) > EXACT:
        raise Refused(name, f"is a count beyond {EXACT}")
