"""How the federation trains: how much, with which optimizer, on which batches, from which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.section import Section

ADAPTIVE_RATE = 1e-2
"""The server's default rate with Adam and Yogi, one of those that Reddi et al. (2021) try."""


class Local(Section):
    """How much a site trains between two aggregations: whole epochs or a number of batches."""

    epochs: int | None = Field(None, ge=1)
    batches: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_of_them(self) -> Local:
        if (self.epochs is None) == (self.batches is None):
            raise ValueError("give either epochs or batches")
        return self


class Optimizer(Section):
    """The sites' optimizer; ``state: fresh`` starts it anew after each aggregation, ``kept`` carries it on.

    ``fused`` takes a step in one pass over memory. SGD's bytes are the same; Adam's last bits are others.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"fused"})
    name: Literal["adam", "sgd"] = "adam"
    lr: float = Field(1e-2, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    clip_norm: float | None = Field(None, gt=0)
    state: Literal["fresh", "kept"] = "fresh"
    fused: bool | None = None

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise ValueError("momentum is for sgd; adam has its own")
        return self


class Schedule(Section):
    """The learning rate's factor as a function of the round."""

    name: Literal["constant", "cosine", "step"] = "constant"
    warmup: int = Field(0, ge=0)
    floor: float = Field(0.0, ge=0, le=1)
    every: int = Field(10, ge=1)
    factor: float = Field(0.1, gt=0, le=1)


class Batch(Section):
    """Images a batch; single sites can have their own number."""

    default: int = Field(64, ge=2)
    per_site: dict[str, Annotated[int, Field(ge=2)]] = {}

    def of(self, site: str) -> int:
        """Return the batch size of this site."""
        return self.per_site.get(site, self.default)


class Change(Section):
    """A random change: how often, and from which to which amount, drawn evenly for each image."""

    probability: float = Field(0.5, ge=0, le=1)
    least: float
    most: float

    @model_validator(mode="after")
    def _in_order(self) -> Change:
        if self.least > self.most:
            raise ValueError(f"least is above most: {self.least:g} and {self.most:g}")
        return self


CHANGES: Mapping[str, tuple[float, float, float, float]] = {
    "margin": (0, 0.3, 0.0, 0.12),
    "resample": (0.2, 1, 0.5, 1.0),
    "blur": (0, 5, 0.2, 1.5),
    "gamma": (0.3, 3, 0.7, 1.4),
    "temperature": (2500, 15000, 4000, 10000),
    "noise": (0, 0.3, 0.0, 0.04),
    "jpeg": (5, 100, 40, 95),
    "cutout": (0.02, 0.6, 0.1, 0.3),
    "cutmix": (0.05, 0.6, 0.15, 0.4),
}
"""The least and the most that make sense of each change, and the range that a recipe has unless it says another."""


class Augment(Section):
    """Random changes of training images: probabilities and ranges; everything off by default.

    Changes of capture (``margin`` to ``jpeg``, then ``cutout`` and ``cutmix``) are done in the order of ``CHANGES``.
    """

    unset: ClassVar[frozenset[str]] = frozenset(CHANGES)
    flip: float = Field(0.0, ge=0, le=1)
    shift: float = Field(0.0, ge=0, le=0.3)
    brightness: float = Field(0.0, ge=0, le=1)
    contrast: float = Field(0.0, ge=0, le=1)
    saturation: float = Field(0.0, ge=0, le=1)
    hue: float = Field(0.0, ge=0, le=0.5)
    margin: Change | None = None
    resample: Change | None = None
    blur: Change | None = None
    gamma: Change | None = None
    temperature: Change | None = None
    noise: Change | None = None
    jpeg: Change | None = None
    cutout: Change | None = None
    cutmix: Change | None = None

    @field_validator(*CHANGES, mode="before")
    @classmethod
    def _usual_range(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill in the usual range; a number alone is a probability."""
        usual = dict(zip(("least", "most"), CHANGES[str(info.field_name)][2:], strict=True))
        given = {"probability": value} if isinstance(value, int | float) else value
        return {**usual, **given} if isinstance(given, Mapping) else given

    @field_validator(*CHANGES)
    @classmethod
    def _amounts_make_sense(cls, value: Change | None, info: ValidationInfo) -> Change | None:
        low, high = CHANGES[str(info.field_name)][:2]
        if value is not None and not low <= value.least <= value.most <= high:
            raise ValueError(f"must lie between {low:g} and {high:g}, got {value.least:g} to {value.most:g}")
        return value

    @property
    def changes(self) -> dict[str, Change]:
        """The changes of capture that are on, in the order in which they are done."""
        return {name: change for name in CHANGES if (change := getattr(self, name)) and change.probability}


class EarlyStop(Section):
    """Stop when the sites' held-out EER has not improved for so many evaluated rounds."""

    patience: int = Field(ge=1)


class Pretrain(Section):
    """Recognition: how the first model is trained on ``data.public``, by CosFace at the server."""

    epochs: int = Field(ge=1)
    optimizer: Optimizer = Optimizer(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, state="kept")
    schedule: Schedule = Schedule(name="cosine")
    batch: int = Field(64, ge=2)
    scale: float = Field(30.0, gt=0)
    margin: float = Field(0.4, ge=0, lt=1)
    sampled_classes: int | None = Field(None, ge=2)


class ServerOptimizer(Section):
    """How the server steps towards the mean of what sites send; SGD at rate 1 without momentum is that mean.

    ``beta1``, ``beta2`` and ``tau`` are Adam's and Yogi's, ``momentum`` is SGD's. Unless said, ``lr`` is 1 for SGD, and
    0.01 for the others, whose steps are about as long as their rate.
    """

    name: Literal["sgd", "adam", "yogi"] = "sgd"
    lr: float = Field(1.0, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _rate_fits_the_step(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("name") in ("adam", "yogi"):
            return {"lr": ADAPTIVE_RATE, **value}
        return value

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> ServerOptimizer:
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"momentum is for sgd; {self.name} has beta1")
        if self.name == "sgd" and {"beta1", "beta2", "tau"} & self.model_fields_set:
            raise ValueError("beta1, beta2 and tau are for adam and yogi; sgd does not go by them")
        return self


class Training(Section):
    """How the federation trains."""

    unset: ClassVar[frozenset[str]] = frozenset({"server_optimizer", "pretrain"})

    rounds: int = Field(ge=1)
    local: Local = Local(epochs=3)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    augment: Augment = Augment()
    start: str | None = None
    early_stop: EarlyStop | None = None
    pretrain: Pretrain | None = None
    server_optimizer: ServerOptimizer | None = None

    @field_validator("batch", mode="before")
    @classmethod
    def _number_is_default(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, int) else value
