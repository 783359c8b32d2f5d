"""One declared field of what a site uploads, and the fields that many methods share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedvisage.federation.wire.precision import Form
from fedvisage.privacy.accountant import COLUMNS
from fedvisage.recipe import Recipe

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
