"""The sections of a recipe: frozen, validated, with defaults. Unknown keys are errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.protection import Combine, Dp, Poisoned, Secure
from fedvisage.section import Section as Section  # the sections of methods and studies take it from here

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MANY_SITES = re.compile(r"([A-Za-z0-9_-]+)\[(\d{1,5})-(\d{1,5})\]")


class MethodOptions(Section):
    """What a method's own options extend: its name."""

    name: str


def many_sites(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """Write out a key such as ``client[1-40]``: a site for each number, which stands for each ``*`` in its entry."""
    found: dict[str, Any] = {}
    for key, entry in entries.items():
        match = MANY_SITES.fullmatch(str(key))
        if match is None:
            found[str(key)] = entry
            continue
        name, first, last = match[1], int(match[2]), int(match[3])
        for number in range(first, last + 1):
            own = entry.replace("*", str(number)) if isinstance(entry, str) else entry
            found[f"{name}{number:0{len(match[3])}d}"] = own
    return found


def many_names(names: list[Any]) -> list[str]:
    """Write out names such as ``client[1-40]``."""
    return [found for name in names for found in many_sites({name: None})]


class Data(Section):
    """Whose data: each entry is a prepared set's directory or a ``synth:`` line that makes one."""

    sites: dict[str, str] = Field(min_length=1)
    user: str | None = None
    user_name: str = "user"
    user_split: Literal["all", "train", "heldout", "test"] = "all"
    public: str | None = None
    public_identities: int | None = Field(None, ge=1)

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return many_sites(value) if isinstance(value, Mapping) else value

    @field_validator("sites")
    @classmethod
    def _names_are_plain(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not SITE_NAME.fullmatch(name):
                raise ValueError(f"site name {name!r}: use letters, digits, '-' and '_', at most 64")
        return value

    @model_validator(mode="after")
    def _user_is_not_a_site(self) -> Data:
        for name, entry in self.sites.items():
            if self.user is not None and entry == self.user:
                raise ValueError(f"the user's data is also the data of site {name}: a user must be unseen in training")
        if self.user_name in self.sites:
            raise ValueError(
                f"user_name {self.user_name!r} is also the name of a site; tables could not tell them apart"
            )
        return self


class Input(Section):
    """What the network looks at. Sets must have been rendered or cropped at this size: nothing is enlarged."""

    size: int = Field(256, ge=16, le=1024)
    colour: Literal["rgb+hsv", "rgb"] = "rgb+hsv"


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
    """The sites' optimizer; ``state: fresh`` starts it anew after each aggregation, ``kept`` carries it on."""

    name: Literal["adam", "sgd"] = "adam"
    lr: float = Field(1e-2, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    clip_norm: float | None = Field(None, gt=0)
    state: Literal["fresh", "kept"] = "fresh"

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


class Training(Section):
    """How the federation trains."""

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

    @field_validator("batch", mode="before")
    @classmethod
    def _number_is_default(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, int) else value


class Federation(Section):
    """Who takes part in a round, who drops out, how long sites have, how many must answer, how uploads meet."""

    participation: float = Field(1.0, gt=0, le=1)
    offline: float = Field(0.0, ge=0, le=1)
    offline_policy: Literal["any-site", "one-site"] = "any-site"
    quorum: int = Field(1, ge=1)
    give_up_after: int = Field(10, ge=1)
    joins: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Sites that take part from a later round on."""
    deadline: float = Field(600.0, gt=0)
    sit_out: int = Field(2, ge=0)
    wire: Literal["fp32", "bf16"] = "fp32"
    """In which numbers weights travel, both ways."""
    combine: Combine = Combine()
    secure: Secure | None = None
    dp: Dp | None = None
    poisoned: Poisoned | None = None

    @field_validator("combine", mode="before")
    @classmethod
    def _name_is_a_rule(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("secure", mode="before")
    @classmethod
    def _true_is_the_default(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    def asks(self, sites: int) -> int:
        """Return how many of so many sites a round asks."""
        return max(1, round(self.participation * sites))


class Adapt(Section):
    """How the user adapts the finished model to its own unlabelled images; ``adapt/`` says what the words mean."""

    loop: Literal["settled", "two-pass", "online", "episodic"] = "settled"
    gate: bool = True
    over: Literal["batchnorm", "layernorm"] = "batchnorm"
    lr: float = Field(5e-3, gt=0)
    batch: int = Field(64, ge=2)
    stream: Literal["shuffled", "stored", "sorted-by-label"] = "shuffled"

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Adapt:
        if self.stream != "shuffled" and self.loop in ("settled", "episodic"):
            raise ValueError(f"stream is for the loops two-pass and online; {self.loop} does not go by it")
        if self.gate and self.loop == "episodic":
            raise ValueError("the gate lets no single video pass; give gate: false with the loop episodic")
        if self.gate and self.loop != "settled" and self.batch < 16:
            raise ValueError(f"the gate lets no batch below 16 pass, got {self.batch}")
        return self


ADAPTATIONS: dict[str, dict[str, Any]] = {
    "gated": {},
    "paper": {"gate": False, "loop": "two-pass"},
    "online": {"gate": False, "loop": "online"},
    "episodic": {"gate": False, "loop": "episodic"},
}
"""The short forms, ``adapt: gated`` and so on."""


Rate = Annotated[float, Field(gt=0, le=1)]


class Recognition(Section):
    """How a recognition model is judged. Rates left empty are the papers', as far as pairs suffice."""

    far: tuple[Rate, ...] = ()
    fpir: tuple[Rate, ...] = ()
    personal_far: tuple[Rate, ...] = ()
    personal_fpir: tuple[Rate, ...] = ()
    impostors: Literal["public", "pooled"] = "public"
    """Whose images the sites' own models must reject: held-out public ones; or, in simulations only, other sites'."""
    counting: Literal["published", "nist"] = "published"
    flip: bool = False
    """Add the feature of the mirrored image to each feature."""
    fmr: Rate = 1e-3
    """The false match rate at which two faces are called one person."""
    folds_of: int = Field(6000, ge=20)
    """At most so many fixed pairs for the ten folds, half of them of one person."""
    pairs: str | None = None
    """A list of pairs, such as LFW's pairs.txt, by which the generic model is judged as well."""


class Evaluation(Section):
    """How the finished model is judged; nothing here may depend on the user's labels unless its name says so."""

    threshold: Literal[
        "source-eer", "source-bpcer-1pct", "source-bpcer-5pct", "source-bpcer-10pct", "fixed", "target-eer"
    ] = "source-eer"
    level: Literal["frame", "video"] = "frame"
    every: int = Field(0, ge=0)
    keep: Literal["last", "best"] = "last"
    batch: int = Field(64, ge=1)
    resamples: int = Field(1000, ge=0)
    features: int = Field(0, ge=0)
    adapt: Adapt | None = None
    recognition: Recognition | None = None

    @field_validator("adapt", mode="before")
    @classmethod
    def _name_is_a_short_form(cls, value: Any) -> Any:
        if not isinstance(value, str) or value == "none":
            return None if value == "none" else value
        if value not in ADAPTATIONS:
            raise ValueError(f"{value!r} is no adaptation; choose none, {', '.join(ADAPTATIONS)}, or write a section")
        return ADAPTATIONS[value]


class Privacy(Section):
    """What all releases of a site under differential privacy may cost together, and where their noise comes from.

    ``count`` says which figure must stay within ε and δ. ``derived`` noise follows from the seed: for simulations.
    """

    epsilon: float | None = Field(None, gt=0, le=1e6)
    delta: float | None = Field(None, gt=0, lt=1)
    count: Literal["sum", "tight"] = "sum"
    noise: Literal["system", "derived"] = "system"

    @model_validator(mode="after")
    def _both_or_none(self) -> Privacy:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("a budget is epsilon and delta; give both")
        return self


class Runtime(Section):
    """What the numbers depend on besides the recipe proper."""

    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int = Field(2, ge=1, le=256)
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    checkpoint_every: int = Field(1, ge=1)
