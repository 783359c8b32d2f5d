"""How the federation trains: how much, with which optimizer, on which batches, from which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.section import Section

# Which random changes training images go through: how often each, and how much.


class Change(Section):
    """A random change: how often, and from which to which amount, drawn evenly for each image."""

    probability: float = Field(0.5, ge=0, le=1)
    """How often an image is changed."""
    least: float
    """The least amount; each change has its usual one."""
    most: float
    """The most."""

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
    """Probability of a mirrored image."""
    shift: float = Field(0.0, ge=0, le=0.3)
    """Share of the side by which it moves."""
    brightness: float = Field(0.0, ge=0, le=1)
    """Range of its change."""
    contrast: float = Field(0.0, ge=0, le=1)
    """Range of its change."""
    saturation: float = Field(0.0, ge=0, le=1)
    """Range of its change."""
    hue: float = Field(0.0, ge=0, le=0.5)
    """Range of its change."""
    margin: Change | None = None
    """A margin cut off all around, then enlarged: a share of the side."""
    resample: Change | None = None
    """Made smaller by this factor, and enlarged again."""
    blur: Change | None = None
    """A Gaussian: its standard deviation in pixels."""
    gamma: Change | None = None
    """The power of the levels."""
    temperature: Change | None = None
    """The light, in kelvin; 6500 changes nothing."""
    noise: Change | None = None
    """Its standard deviation, levels being 0 to 1."""
    jpeg: Change | None = None
    """Its quality."""
    cutout: Change | None = None
    """A grey square within the face: its side, as a share."""
    cutmix: Change | None = None
    """A square of an attack put into a bona fide face, an attack from then on: its side, as a share."""

    @field_validator(*CHANGES, mode="before")
    @classmethod
    def _usual_range(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill in the usual range; a number alone is a probability."""
        usual = dict(zip(("least", "most"), CHANGES[str(info.field_name)][2:], strict=True))
        given = {"probability": value} if isinstance(value, int | float) and not isinstance(value, bool) else value
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


ADAPTIVE_RATE = 1e-2
"""The server's default rate with Adam and Yogi, one of those that Reddi et al. (2021) try."""


class Local(Section):
    """How much a site trains between two aggregations: whole epochs or a number of batches."""

    epochs: int | None = Field(None, ge=1)
    """Whole passes over a site's images; 3 if neither is given."""
    batches: int | None = Field(None, ge=1)
    """Or a number of batches."""

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
    """Which one."""
    lr: float = Field(1e-2, gt=0)
    """Its rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Decay of weights."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """For sgd; adam has its own."""
    clip_norm: float | None = Field(None, gt=0)
    """The norm to which a step's gradient is cut."""
    state: Literal["fresh", "kept"] = "fresh"
    """``fresh`` after each aggregation, or ``kept``."""
    fused: bool | None = None
    """Step in one pass over memory: SGD gives the same bytes, Adam other last bits."""

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise ValueError("momentum is for sgd; adam has its own")
        return self


class Schedule(Section):
    """The learning rate's factor as a function of the round."""

    name: Literal["constant", "cosine", "step"] = "constant"
    """Its form."""
    warmup: int = Field(0, ge=0)
    """Rounds in which the rate rises to its value."""
    floor: float = Field(0.0, ge=0, le=1)
    """cosine and step: the least factor."""
    every: int = Field(10, ge=1)
    """step: rounds between two steps."""
    factor: float = Field(0.1, gt=0, le=1)
    """step: what the rate is multiplied by."""


class Batch(Section):
    """Images a batch; single sites can have their own number."""

    default: int = Field(64, ge=2)
    """Images a batch."""
    per_site: dict[str, Annotated[int, Field(ge=2)]] = {}
    """The same for single sites, by name."""

    def of(self, site: str) -> int:
        """Return the batch size of this site."""
        return self.per_site.get(site, self.default)


class EarlyStop(Section):
    """Stop when the sites' held-out EER has not improved for so many evaluated rounds."""

    patience: int = Field(ge=1)
    """Evaluated rounds without a better held-out EER."""


class Pretrain(Section):
    """Recognition: how the first model is trained on ``data.public``, by CosFace at the server."""

    unset: ClassVar[frozenset[str]] = frozenset({"stop"})
    epochs: int = Field(ge=1)
    """Passes over the public set."""
    stop: int | None = Field(None, ge=1)
    """After so many of them it is left as it is then: the model of mid-course, whose rate had not yet come down."""
    optimizer: Optimizer = Optimizer(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, state="kept")
    """Its optimizer."""
    schedule: Schedule = Schedule(name="cosine")
    """Its schedule, over epochs."""
    batch: int = Field(64, ge=2)
    """Images a batch."""
    scale: float = Field(30.0, gt=0)
    """CosFace's s."""
    margin: float = Field(0.4, ge=0, lt=1)
    """CosFace's m."""
    sampled_classes: int | None = Field(None, ge=2)
    """The softmax of a batch is over its own classes and others that are drawn, so many in all."""

    @model_validator(mode="after")
    def _stops_on_the_way(self) -> Pretrain:
        if self.stop is not None and self.stop > self.epochs:
            raise ValueError(f"stop lies on the way: it is {self.stop} and there are {self.epochs} epochs")
        return self


class ServerOptimizer(Section):
    """How the server steps towards the mean of what sites send; SGD at rate 1 without momentum is that mean.

    ``beta1``, ``beta2`` and ``tau`` are Adam's and Yogi's, ``momentum`` is SGD's. Unless said, ``lr`` is 1 for SGD, and
    0.01 for the others, whose steps are about as long as their rate.
    """

    name: Literal["sgd", "adam", "yogi"] = "sgd"
    """Which one."""
    lr: float = Field(1.0, gt=0)
    """Its rate."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """For sgd."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """For adam and yogi."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """For adam and yogi."""
    tau: float = Field(1e-3, gt=0)
    """For adam and yogi: what keeps steps small where moments are."""

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
    """A safetensors file."""
    parts: tuple[str, ...] | None = Field(None, min_length=1)
    """The network's parts that take something of it; unset, all."""
    strict: bool = True
    """Refuse what does not fit; with ``false`` what fits is taken, and what does not is named."""


class Training(Section):
    """How the federation trains."""

    unset: ClassVar[frozenset[str]] = frozenset({"micro_batch", "server_optimizer", "pretrain", "l2sp", "statistics"})

    rounds: int = Field(ge=1)
    """Aggregations."""
    local: Local = Local(epochs=3)
    """Work between two aggregations."""
    optimizer: Optimizer = Optimizer()
    """The sites' optimizer."""
    schedule: Schedule = Schedule()
    """The rate's factor by round."""
    batch: Batch = Batch()
    """Images a batch: a number, or a section."""
    micro_batch: int | None = Field(None, ge=2)
    """Images that pass through the network at once, at most: a larger batch goes in parts whose gradients add up to its
    own, for batches that memory has no room for. BatchNorm sees each part by itself; unset, the whole batch."""
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """``balanced`` fills half of each batch with bona fide images."""
    augment: Augment = Augment()
    """Random changes of training images."""
    start: str | Start | None = None
    """Weights to start from: a safetensors file that must fit part by part, or a section. Other formats are converted
    first."""
    early_stop: EarlyStop | None = None
    """Stop when held-out figures get no better."""
    pretrain: Pretrain | None = None
    """Recognition: CosFace on ``data.public`` before the first round; the result is kept in the cache."""
    server_optimizer: ServerOptimizer | None = None
    """Methods that take one mean a round over: the server steps towards it instead. In fedadam and fedyogi it is adam
    or yogi with ``lr`` 0.01."""
    l2sp: float | None = Field(None, gt=0)
    """How strongly sites are held near the weights that ``start`` gave (L2-SP): that much / 2 times the squared
    distance. They go down each round beside the model's."""
    statistics: Literal["averaged", "exact", "frozen"] | None = None
    """BatchNorm's: ``averaged``, unless said: the mean of the sites' running ones. ``exact``: after training, those of
    all training images together, which sites are asked for layer by layer. ``frozen``: those that it started with."""

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
