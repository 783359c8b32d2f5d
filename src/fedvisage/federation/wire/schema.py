"""Schemas: the declared fields of a call for a given network, and the check of messages against them.

The same check runs twice. At the site it controls output: a method cannot emit an undeclared field. At the server it
controls input: the error for a field that is missing, extra, of another type or shape, not finite or extremely large
names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedvisage.federation.privacy.accountant import COLUMNS
from fedvisage.federation.wire.message import LastMessage, Message, is_plain
from fedvisage.federation.wire.precision import LARGEST, SCALE, Form, fields, wide_type
from fedvisage.federation.wire.refused import RefusedMessage as RefusedMessage
from fedvisage.recipe import Recipe

Kind = Literal["weights", "statistic", "activation", "gradient", "dp", "masked", "key", "share"]
"""Kind of an uploaded field, for the ledger and its readers."""


@dataclass(frozen=True)
class Upload:
    """One declared field of a site's reply.

    With ``parts`` the field is the complete state of these parts (weights and buffers), and its tensors are named
    ``part.tensor``. Otherwise it is one tensor with the field's name, whose shape is fixed or follows from the recipe;
    -1 is a variable dimension, limited by ``most`` elements in total. With ``form`` the recipe selects its number
    format (``wire``).
    """

    name: str
    """The field's name in the ledger; without ``parts`` also the tensor's name."""
    kind: Kind
    """The field's kind in the ledger."""
    parts: tuple[str, ...] = ()
    """The parts whose state the field contains."""
    prefix: str = ""
    """Prefix of the parts' tensor names, if the values are not the parts' state."""
    trained: bool = False
    """The field contains only those tensors of the parts that a gradient trains."""
    shape: tuple[int, ...] | Callable[[Recipe], tuple[int, ...]] = ()
    """The shape of a single tensor; -1 for a variable dimension."""
    dtype: str = "float32"
    """The type of a single tensor."""
    most: int = 1 << 24
    """The largest number of elements of a tensor with a variable dimension."""
    guarantee: str = ""
    """The ledger's description of the field."""
    form: Callable[[Recipe], Form] | None = None
    """Returns the number format that the recipe selects."""
    noised: Callable[[Recipe], bool] | None = None
    """Returns whether the recipe releases the field under differential privacy: with kind ``dp`` and a field
    ``cost``."""
    left_out: Callable[[Recipe], bool] | None = None
    """Returns whether the recipe omits the field."""


SUMMED = "train"
"""The call of averaging methods whose uploads form one mean."""

EXAMPLES = Upload("examples", "statistic", dtype="int64", guarantee="number of training images")
COST = Upload(
    "cost",
    "statistic",
    shape=lambda recipe: (-1, COLUMNS if recipe.training.privacy is None else COLUMNS + 1),
    dtype="float64",
    most=64 * COLUMNS,
    guarantee="privacy cost of this release and in total",
)
LOSS = Upload("loss", "statistic", dtype="float64", guarantee="mean training loss of the turn")


LARGEST_MAGNITUDE = 1e6
"""No weight, statistic or gradient of a valid model comes near this magnitude; larger ones would dominate a mean."""


MOST_EXAMPLES = 100_000_000
"""No site has more images; a larger weight would suppress the other sites in a mean."""

VARIANCE = "running_var"
"""BatchNorm's name of its running variance: a network cannot use a negative one."""

EXACT = 2**53
"""Larger integers are not exact in the float64 of a mean. The counts of a tensor add up to no more, so that int64 holds
their sum over as many as 1,023 sites."""


@dataclass(frozen=True)
class ExpectedTensor:
    """One tensor that a reply must contain."""

    field: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    most: int


@dataclass(frozen=True)
class Schema:
    """All tensors of one call's reply, by name, with their declared uploads."""

    tensors: Mapping[str, ExpectedTensor]
    uploads: tuple[Upload, ...]
    narrow: bool = False
    """True if the weights of orders and replies travel as bf16."""
    exact: bool = False
    """True if the call concerns a finished model."""
    checked: LastMessage = field(default_factory=LastMessage, compare=False, repr=False)
    """The last reply that passed the check; in a simulation, the server receives a reply that the site has checked."""

    @property
    def releases(self) -> bool:
        """Return whether the replies contain a release under differential privacy."""
        return any(upload.kind == "dp" for upload in self.uploads)

    def group(self, message: Message) -> dict[str, Message]:
        """Return the message's tensors grouped by the upload that declares them."""
        groups: dict[str, Message] = {upload.name: {} for upload in self.uploads}
        for name, tensor in message.items():
            groups[self.tensors[name].field][name] = tensor
        return groups


@dataclass(frozen=True)
class MessageLimits:
    """Size limits of one message: number of tensors, bytes in total, bytes of the largest tensor."""

    tensors: int = 0
    size: int = 0
    largest: int = 0


def limits_of(tensors: Iterable[ExpectedTensor]) -> MessageLimits:
    """Return the size of a message with all these tensors at their largest size."""
    sizes = [
        (expected.most if -1 in expected.shape else torch.Size(expected.shape).numel())
        * wide_type(expected.dtype).itemsize
        for expected in tensors
    ]
    return MessageLimits(len(sizes), sum(sizes), max(sizes, default=0))


def schema_of(declared: tuple[Upload, ...], recipe: Recipe, net: nn.ModuleDict, *, exact: bool = False) -> Schema:
    """Return the tensors that a call with these uploads may send."""
    tensors: dict[str, ExpectedTensor] = {}
    narrow = recipe.federation.wire == "bf16" and not exact
    uploads = tuple(upload for upload in declared if upload.left_out is None or not upload.left_out(recipe))
    noised = [upload for upload in uploads if upload.noised is not None and upload.noised(recipe)]
    if noised:  # a release with noise adds its cost
        uploads = (*(replace(upload, kind="dp") if upload in noised else upload for upload in uploads), COST)
    for upload in uploads:
        for part in upload.parts:
            state = dict(net[part].named_parameters()) if upload.trained else net[part].state_dict()
            for name, value in state.items():
                dtype = torch.bfloat16 if narrow and value.dtype == torch.float32 else value.dtype
                tensors[f"{upload.prefix}{part}.{name}"] = _expected_tensor(upload, tuple(value.shape), dtype)
        if not upload.parts:
            shape = upload.shape(recipe) if callable(upload.shape) else upload.shape
            plain = {upload.name: (shape, getattr(torch, upload.dtype))}
            encoded = fields(upload.name, shape, upload.form(recipe)) if upload.form else plain
            tensors |= {name: _expected_tensor(upload, *form) for name, form in encoded.items()}
    return Schema(tensors, uploads, narrow, exact)


def _expected_tensor(upload: Upload, shape: tuple[int, ...], dtype: torch.dtype) -> ExpectedTensor:
    return ExpectedTensor(upload.name, upload.kind, shape, dtype, upload.most)


def check(message: Message, schema: Schema) -> None:
    """Raise an error for a reply that differs from its declaration in any way."""
    if schema.checked.is_same(message):
        return
    for name in sorted(set(message) - set(schema.tensors)):
        raise RefusedMessage(name, "is not declared")
    for name, expected in schema.tensors.items():
        if name not in message:
            raise RefusedMessage(name, "is missing")
        _check_tensor(name, message[name], expected)
    for name in (name for name, expected in schema.tensors.items() if expected.dtype == torch.int8):
        # Codes whose values would not be valid for the same field in fp32.
        codes, scale = message[name], message.get(f"{name}{SCALE}")
        if scale is None:
            raise RefusedMessage(f"{name}{SCALE}", "is missing")
        if scale.shape[:-1] != codes.shape[:-1]:
            shapes = f"has shape {tuple(scale.shape)}, the codes have {tuple(codes.shape)}"
            raise RefusedMessage(f"{name}{SCALE}", shapes)
        if int(codes.min()) < -LARGEST:
            raise RefusedMessage(name, f"has a code below {-LARGEST}")
        if float(scale.min()) < 0:
            raise RefusedMessage(f"{name}{SCALE}", "is below zero")
        _check_values(f"{name}{SCALE}", scale.double() * LARGEST)
    if "examples" in message and not 1 <= int(message["examples"]) <= MOST_EXAMPLES:
        raise RefusedMessage("examples", f"must be from 1 to {MOST_EXAMPLES}, got {int(message['examples'])}")
    schema.checked.remember(message)


def _check_tensor(name: str, tensor: Tensor, expected: ExpectedTensor) -> None:
    if not is_plain(tensor):
        raise RefusedMessage(name, "is not a plain tensor")
    if tensor.dtype != expected.dtype:
        raise RefusedMessage(name, f"has type {tensor.dtype}, declared {expected.dtype}")
    shape = tuple(tensor.shape)
    fits = shape == expected.shape or (
        len(shape) == len(expected.shape)
        and all(got == want or (want == -1 and got > 0) for got, want in zip(shape, expected.shape, strict=True))
    )
    if not fits:
        raise RefusedMessage(name, f"has shape {shape}, declared {expected.shape}")
    if -1 in expected.shape and tensor.numel() > expected.most:
        raise RefusedMessage(name, f"has {tensor.numel()} elements, at most {expected.most} are allowed")
    if tensor.is_floating_point():
        _check_values(name, tensor)
    elif tensor.dtype not in (torch.bool, torch.int8) and tensor.numel() and expected.kind != "masked":
        least, most = torch.aminmax(tensor)
        if int(least) < 0:
            raise RefusedMessage(name, "is a negative count")
        if int(most) > EXACT:
            raise RefusedMessage(name, f"is a count above {EXACT}")
        if float(tensor.sum(dtype=torch.float64)) > EXACT:  # in int64 the sum could overflow
            raise RefusedMessage(name, f"has counts that add up to more than {EXACT}")


def _check_values(name: str, tensor: Tensor) -> None:
    if not tensor.numel():
        return
    low, high = torch.aminmax(tensor)
    largest = max(abs(float(low)), abs(float(high)))
    if not largest < float("inf"):
        raise RefusedMessage(name, "is not finite")
    if largest > LARGEST_MAGNITUDE:
        raise RefusedMessage(name, f"contains {largest:.3g}, above the limit of {LARGEST_MAGNITUDE:.0g}")
    if name.endswith(VARIANCE) and float(low) < 0:
        raise RefusedMessage(name, "is a negative variance")
