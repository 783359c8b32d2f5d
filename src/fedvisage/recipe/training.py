"""How the federation trains: how much, with which optimizer, on which batches, from which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

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


class Augment(Section):
    """Random changes of training images: probabilities and ranges; everything off by default."""

    flip: float = Field(0.0, ge=0, le=1)
    shift: float = Field(0.0, ge=0, le=0.3)
    brightness: float = Field(0.0, ge=0, le=1)
    contrast: float = Field(0.0, ge=0, le=1)
    saturation: float = Field(0.0, ge=0, le=1)
    hue: float = Field(0.0, ge=0, le=0.5)


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


class Start(Section):
    """Weights to start from: of all parts of the network or of those named; ``strict`` refuses what does not fit."""

    unset: ClassVar[frozenset[str]] = frozenset({"parts"})
    file: str = Field(min_length=1)
    parts: tuple[str, ...] | None = Field(None, min_length=1)
    strict: bool = True


class Training(Section):
    """How the federation trains."""

    unset: ClassVar[frozenset[str]] = frozenset({"server_optimizer", "pretrain", "l2sp", "statistics"})

    rounds: int = Field(ge=1)
    local: Local = Local(epochs=3)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    augment: Augment = Augment()
    start: str | Start | None = None
    early_stop: EarlyStop | None = None
    pretrain: Pretrain | None = None
    server_optimizer: ServerOptimizer | None = None
    l2sp: float | None = Field(None, gt=0)
    """How strongly sites are held near the weights of ``start``: L2-SP."""
    statistics: Literal["frozen"] | None = None
    """Whether BatchNorm goes by the statistics that it started with instead of by its batch."""

    @model_validator(mode="after")
    def _a_pull_has_a_start(self) -> Training:
        if self.l2sp is not None and self.start is None:
            raise ValueError("l2sp holds sites near the weights that start names; name a file there")
        return self

    @property
    def starts_from(self) -> Start | None:
        """The weights to start from; a file alone must fit whole."""
        return Start(file=self.start) if isinstance(self.start, str) else self.start

    @field_validator("batch", mode="before")
    @classmethod
    def _number_is_default(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, int) else value
