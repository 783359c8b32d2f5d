"""The section ``training``: rounds, local work, optimizers, batches, augmentation and initial weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.federation import LARGEST_DELTA, check_amount
from fedvisage.recipe.section import Section


class Change(Section):
    """A random change: its probability, and the range from which each image's amount is drawn uniformly."""

    probability: float = Field(0.5, ge=0, le=1)
    """Probability that an image is changed."""
    least: float
    """The least amount; the default depends on the change."""
    most: float
    """The largest amount; the default depends on the change."""

    @model_validator(mode="after")
    def _in_order(self) -> Change:
        if self.least > self.most:
            raise ValueError(f"least is above most: {self.least:g} and {self.most:g}")
        return self


CHANGES: Mapping[str, tuple[float, float, float, float]] = {
    "margin": (0, 0.3, 0.0, 0.12),
    "turn": (-45, 45, -12, 12),
    "resample": (0.2, 1, 0.5, 1.0),
    "blur": (0, 5, 0.2, 1.5),
    "sharpen": (0, 3, 0.2, 1.5),
    "gamma": (0.3, 3, 0.7, 1.4),
    "temperature": (2500, 15000, 4000, 10000),
    "gains": (0, 0.6, 0.0, 0.25),
    "noise": (0, 0.3, 0.0, 0.04),
    "jpeg": (5, 100, 40, 95),
    "cutout": (0.02, 0.6, 0.1, 0.3),
    "cutmix": (0.05, 0.6, 0.15, 0.4),
}
"""The smallest and largest valid amount of each change, and its default range."""

STRONG: Mapping[str, Any] = {
    "flip": 0.5,
    "shift": 0.06,
    "contrast": 0.4,
    "saturation": 0.6,
    "margin": 0.5,
    "turn": 0.5,
    "resample": {"probability": 0.5, "least": 0.35},
    "blur": 0.4,
    "sharpen": 0.4,
    "gamma": {"probability": 0.8, "least": 0.6, "most": 1.6},
    "gains": 0.8,
    "noise": 0.5,
    "jpeg": {"probability": 0.5, "least": 30},
}
"""The changes of ``strong``: those that depend on camera, light and channel, drawn alike for both classes."""


class Augment(Section):
    """Random changes of training images: probabilities and ranges; everything is off by default.

    Changes of capture (``margin`` to ``jpeg``, then ``cutout`` and ``cutmix``) are applied in the order of ``CHANGES``.
    """

    unset: ClassVar[frozenset[str]] = frozenset({*CHANGES, "strong"})
    strong: bool | None = None
    """``true`` turns on the changes of camera, light and channel at once, for detectors that must not learn a camera;
    other keys change single ones, and 0 turns one off. Both classes are changed alike."""
    flip: float = Field(0.0, ge=0, le=1)
    """Probability of mirroring an image."""
    shift: float = Field(0.0, ge=0, le=0.3)
    """Largest shift, as a share of the side."""
    brightness: float = Field(0.0, ge=0, le=1)
    """Range of the change in brightness."""
    contrast: float = Field(0.0, ge=0, le=1)
    """Range of the change in contrast."""
    saturation: float = Field(0.0, ge=0, le=1)
    """Range of the change in saturation."""
    hue: float = Field(0.0, ge=0, le=0.5)
    """Range of the change in hue."""
    margin: Change | None = None
    """Cut off a margin on all sides and enlarge the rest: the margin as a share of the side."""
    turn: Change | None = None
    """Rotate: the angle in degrees, anticlockwise."""
    resample: Change | None = None
    """Reduce by this factor and enlarge again."""
    blur: Change | None = None
    """Gaussian blur: its standard deviation in pixels."""
    sharpen: Change | None = None
    """Sharpen by an unsharp mask: the weight of the detail that is added."""
    gamma: Change | None = None
    """Gamma correction: the exponent of the levels."""
    temperature: Change | None = None
    """Colour temperature of the light in kelvin; 6500 changes nothing."""
    gains: Change | None = None
    """Multiply each colour channel by its own factor: the largest deviation from 1."""
    noise: Change | None = None
    """Noise: its standard deviation, with levels from 0 to 1."""
    jpeg: Change | None = None
    """JPEG compression: its quality."""
    cutout: Change | None = None
    """A grey square within the face: its side as a share."""
    cutmix: Change | None = None
    """A square of an attack pasted into a bona fide face, which then counts as an attack: its side as a share."""

    @model_validator(mode="before")
    @classmethod
    def _strong_changes(cls, value: Any) -> Any:
        """Fill in the changes of ``strong`` that the recipe does not set itself; none counts as not set."""
        if not isinstance(value, Mapping) or value.get("strong") is not True:
            return value
        return {**STRONG, **{key: setting for key, setting in value.items() if setting is not None}}

    @field_validator(*CHANGES, mode="before")
    @classmethod
    def _usual_range(cls, value: Any, info: ValidationInfo) -> Any:
        """Fill in the default range; a number alone is a probability."""
        default_range = dict(zip(("least", "most"), CHANGES[str(info.field_name)][2:], strict=True))
        settings = {"probability": value} if isinstance(value, int | float) and not isinstance(value, bool) else value
        return {**default_range, **settings} if isinstance(settings, Mapping) else settings

    @field_validator(*CHANGES)
    @classmethod
    def _amounts_make_sense(cls, value: Change | None, info: ValidationInfo) -> Change | None:
        low, high = CHANGES[str(info.field_name)][:2]
        if value is not None and not low <= value.least <= value.most <= high:
            raise ValueError(f"must lie between {low:g} and {high:g}, got {value.least:g} to {value.most:g}")
        return value

    @property
    def changes(self) -> dict[str, Change]:
        """Return the active changes of capture, in the order in which they are applied."""
        return {name: change for name in CHANGES if (change := getattr(self, name)) and change.probability}


ADAPTIVE_RATE = 1e-2
"""The server's default rate with Adam and Yogi, one of those in Reddi et al. (2021)."""


class Local(Section):
    """Local work between two aggregations: a number of epochs or of batches."""

    epochs: int | None = Field(None, ge=1)
    """Epochs over a site's images; 3 if neither key is set."""
    batches: int | None = Field(None, ge=1)
    """Number of batches, instead of epochs."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Local:
        if (self.epochs is None) == (self.batches is None):
            raise ValueError("give either epochs or batches")
        return self


class Optimizer(Section):
    """The sites' optimizer."""

    unset: ClassVar[frozenset[str]] = frozenset({"fused"})
    name: Literal["adam", "sgd"] = "adam"
    """Name of the optimizer."""
    lr: float = Field(1e-2, gt=0)
    """Learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """sgd only; adam has its own."""
    clip_norm: float | None = Field(None, gt=0)
    """The norm to which a step's gradient is clipped."""
    state: Literal["fresh", "kept"] = "fresh"
    """The optimizer state is ``fresh`` after each aggregation, or ``kept``."""
    fused: bool | None = None
    """Step in one pass over memory: SGD gives the same bytes, Adam differs in the last bits."""

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise ValueError("momentum is an option of sgd; adam has its own")
        return self


class Schedule(Section):
    """The learning rate's factor as a function of the round."""

    name: Literal["constant", "cosine", "step"] = "constant"
    """Form of the schedule."""
    warmup: int = Field(0, ge=0)
    """Rounds in which the rate rises to its full value."""
    floor: float = Field(0.0, ge=0, le=1)
    """cosine and step: the smallest factor."""
    every: int = Field(10, ge=1)
    """step: number of rounds between two steps."""
    factor: float = Field(0.1, gt=0, le=1)
    """step: the factor of each step."""


class Batch(Section):
    """Images per batch; single sites can have their own number."""

    default: int = Field(64, ge=2)
    """Images per batch."""
    per_site: dict[str, Annotated[int, Field(ge=2)]] = {}
    """Images per batch for single sites, by name."""

    def of(self, site: str) -> int:
        """Return the batch size of this site."""
        return self.per_site.get(site, self.default)


class EarlyStop(Section):
    """Stop when the sites' held-out EER has not improved for ``patience`` evaluated rounds."""

    patience: int = Field(ge=1)
    """Evaluated rounds without a better held-out EER."""


class Pretrain(Section):
    """Recognition: training of the first model on ``data.public``, with CosFace at the server."""

    unset: ClassVar[frozenset[str]] = frozenset({"stop"})
    epochs: int = Field(ge=1)
    """Epochs over the public set."""
    stop: int | None = Field(None, ge=1)
    """Stop after this many epochs, before the rate has come down, and use the model as it is then."""
    optimizer: Optimizer = Optimizer(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, state="kept")
    """Optimizer of the pre-training."""
    schedule: Schedule = Schedule(name="cosine")
    """Schedule over epochs."""
    batch: int = Field(64, ge=2)
    """Images per batch."""
    scale: float = Field(30.0, gt=0)
    """CosFace's s."""
    margin: float = Field(0.4, ge=0, lt=1)
    """CosFace's m."""
    sampled_classes: int | None = Field(None, ge=2)
    """Number of classes in a batch's softmax: the batch's own classes and others that are drawn."""

    @model_validator(mode="after")
    def _stops_on_the_way(self) -> Pretrain:
        if self.stop is not None and self.stop > self.epochs:
            raise ValueError(
                f"stop must not exceed the number of epochs: stop is {self.stop}, but there are {self.epochs} epochs"
            )
        return self


class ServerOptimizer(Section):
    """The server's step towards the mean of the sites' uploads; SGD at rate 1 without momentum gives that mean.

    By default ``lr`` is 1 for SGD, and 0.01 for Adam and Yogi, whose steps are about as long as their rate.
    """

    name: Literal["sgd", "adam", "yogi"] = "sgd"
    """Name of the optimizer."""
    lr: float = Field(1.0, gt=0)
    """Learning rate."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """sgd only."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """adam and yogi only."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """adam and yogi only."""
    tau: float = Field(1e-3, gt=0)
    """adam and yogi: keeps steps small where moments are small."""

    @model_validator(mode="before")
    @classmethod
    def _rate_fits_the_step(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("name") in ("adam", "yogi"):
            return {"lr": ADAPTIVE_RATE, **value}
        return value

    @model_validator(mode="after")
    def _refuse_ignored_options(self) -> ServerOptimizer:
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"momentum is an option of sgd; {self.name} has beta1")
        if self.name == "sgd" and {"beta1", "beta2", "tau"} & self.model_fields_set:
            raise ValueError("beta1, beta2 and tau are options of adam and yogi; they do not apply to sgd")
        return self


class Start(Section):
    """Initial weights of all or of named parts of the network; with ``strict``, weights that do not fit are errors."""

    unset: ClassVar[frozenset[str]] = frozenset({"parts"})
    file: str = Field(min_length=1)
    """Path of a safetensors file."""
    parts: tuple[str, ...] | None = Field(None, min_length=1)
    """Parts of the network that take weights from the file; unset, all parts."""
    strict: bool = True
    """Raise an error for weights that do not fit; with ``false``, take the fitting ones and list the others."""


MOST_NOISED_STEPS = 100_000
"""Most steps with noise per site; the account of ten times as many takes minutes, at the sites, too."""


class PersonPrivacy(Section):
    """DP-SGD per person: each step draws people at random, clips the gradient of each, and adds noise to their sum.

    For averaging methods of attack detection. ``local`` needs ``batches``, the number of steps per round; ``batch``
    does not apply.
    """

    unset: ClassVar[frozenset[str]] = frozenset({"noise", "epsilon"})
    unit: Literal["person"] = "person"
    """The guarantee covers all training images of one person at one site."""
    clip: float = Field(gt=0, le=1000)
    """The L2 norm to which the gradient of a person's mean loss is clipped."""
    epsilon: float | None = Field(None, gt=0, le=1000)
    """The ε that all rounds together may cost a person; this or ``noise``."""
    noise: float | None = Field(None, ge=0, le=1000)
    """Standard deviation of the noise on a step's sum in units of ``clip`` (0: no noise and no guarantee); this or
    ``epsilon``."""
    delta: float | None = Field(None, gt=0, le=LARGEST_DELTA)
    """The δ at which ε holds; far below one divided by the number of people."""
    rate: float = Field(0.1, gt=0, le=1)
    """Probability with which a step draws each person."""
    people: int = Field(10, ge=1)
    """Divisor of a step's sum: about ``rate`` times the usual number of people of a site. The true number would reveal
    whether a person takes part."""
    images: int = Field(16, ge=1)
    """Largest number of a person's images in a step; each step draws them anew."""

    @model_validator(mode="after")
    def _one_way_to_say_how_much(self) -> PersonPrivacy:
        check_amount(self.noise, self.epsilon, self.delta)
        return self


class Training(Section):
    """Training of the federation."""

    unset: ClassVar[frozenset[str]] = frozenset(
        {"micro_batch", "server_optimizer", "pretrain", "l2sp", "statistics", "keep", "privacy"}
    )

    rounds: int = Field(ge=1, le=100_000)
    """Number of aggregations."""
    local: Local = Local(epochs=3)
    """Local work between two aggregations."""
    optimizer: Optimizer = Optimizer()
    """The sites' optimizer."""
    schedule: Schedule = Schedule()
    """Factor of the learning rate by round."""
    batch: Batch = Batch()
    """Images per batch: a number, or a section."""
    micro_batch: int | None = Field(None, ge=2)
    """Largest number of images in one pass through the network: a larger batch is split, and the gradients of its parts
    add up to its own. For batches that do not fit in memory. BatchNorm uses each part's own statistics; unset, the
    whole batch."""
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """``balanced`` fills half of each batch with bona fide images."""
    augment: Augment = Augment()
    """Random changes of training images."""
    start: str | Start | None = None
    """Initial weights: a safetensors file that must fit part by part, or a section. Convert other formats first."""
    early_stop: EarlyStop | None = None
    """Stop when the held-out figures no longer improve."""
    pretrain: Pretrain | None = None
    """Recognition: CosFace on ``data.public`` before the first round; the cache keeps the result."""
    server_optimizer: ServerOptimizer | None = None
    """Methods that replace the model by one mean per round: the server steps towards this mean instead. In fedadam and
    fedyogi the default is adam or yogi with ``lr`` 0.01."""
    l2sp: float | None = Field(None, gt=0)
    """Strength of the pull towards the weights of ``start`` (L2-SP): the penalty is half of it times the squared
    distance. The server sends these weights every round, together with the model."""
    statistics: Literal["averaged", "exact", "frozen"] | None = None
    """BatchNorm's statistics. ``averaged`` (default): the mean of the sites' running statistics. ``exact``: after
    training, those of all training images together, which the sites send layer by layer. ``frozen``: the initial
    ones."""

    keep: Literal["start", "result", "average"] | None = None
    """The sites evaluate the weights of ``start`` as well, on their held-out people, and this decides which model
    remains. ``start``, ``result``, or ``average``: both networks, with averaged scores (recognition: features), which
    doubles the cost of a decision."""

    privacy: PersonPrivacy | None = None
    """Differential privacy of people: DP-SGD at the sites. Its noise has the source ``privacy.noise``."""

    @model_validator(mode="after")
    def _start_fits_its_uses(self) -> Training:
        start = self.starts_from
        if self.keep is not None and (start is None or start.parts is not None or not start.strict):
            raise ValueError(f"keep: {self.keep} compares with a complete start; set start to a file")
        if self.keep is not None and self.statistics == "exact":
            raise ValueError(f"keep: {self.keep} excludes statistics: exact, which change the start; leave one out")
        if self.l2sp is not None and self.start is None:
            raise ValueError("l2sp keeps sites close to the weights in start; set start to a file")
        return self

    @model_validator(mode="after")
    def _an_account_takes_seconds(self) -> Training:
        steps = self.rounds * (self.local.batches or 0)
        if self.privacy is not None and self.privacy.noise != 0 and steps > MOST_NOISED_STEPS:
            raise ValueError(f"privacy accounts for at most {MOST_NOISED_STEPS:,} steps (rounds × local.batches)")
        noise = None if self.privacy is None else self.privacy.noise
        if noise and steps > 1e6 * noise**2:  # an ε above half a million, which a site's reply cannot hold
            remedy = f"give 0, or {1.1e-3 * math.sqrt(steps):.2g} or more"
            raise ValueError(f"privacy.noise is {noise:g} and protects nobody in {steps:,} steps; {remedy}")
        return self

    @property
    def starts_from(self) -> Start | None:
        """Return the initial weights; a file without a section must fit completely."""
        return Start(file=self.start) if isinstance(self.start, str) else self.start

    @field_validator("batch", mode="before")
    @classmethod
    def _number_is_default(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, int) else value
