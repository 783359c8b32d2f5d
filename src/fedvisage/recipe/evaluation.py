"""How the finished model is judged, and how a user adapts it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section


class Adapt(Section):
    """How the user adapts the finished model to its own unlabelled images: see ``tasks/pad/adapt``."""

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

    unset: ClassVar[frozenset[str]] = frozenset({"recognition", "published"})

    threshold: Literal[
        "source-eer",
        "source-train-eer",
        "source-bpcer-1pct",
        "source-bpcer-5pct",
        "source-bpcer-10pct",
        "fixed",
        "target-eer",
    ] = "source-eer"
    level: Literal["frame", "video"] = "frame"
    every: int = Field(0, ge=0)
    keep: Literal["last", "best"] = "last"
    batch: int = Field(64, ge=1)
    resamples: int = Field(1000, ge=0)
    features: int = Field(0, ge=0)
    published: bool | None = None
    """Attack detection: add the figures as papers worked theirs out (``metrics/published``)."""
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

    @model_validator(mode="after")
    def _training_scores_choose_no_round(self) -> Evaluation:
        if self.threshold == "source-train-eer" and self.every:
            raise ValueError("every scores held-out images, and source-train-eer those of training; leave every at 0")
        return self

    @property
    def people(self) -> Recognition:
        """How a recognition model is judged, with the defaults of a recipe that does not say."""
        return self.recognition or Recognition()
