"""How the finished model is judged, and how a user adapts it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section


class Adapt(Section):
    """How the user adapts the finished model to its own unlabelled images: see ``tasks/pad/adapt``."""

    loop: Literal["settled", "two-pass", "online", "episodic"] = "settled"
    """``settled``: step on all images, fix BatchNorm's statistics, decide; ``two-pass``: batch statistics throughout;
    ``online``: decide and step in one pass; ``episodic``: each video anew."""
    gate: bool = True
    """Keep the source model's decisions where adapting is unsafe; ``paper``, ``online`` and ``episodic`` are without.
    """
    over: Literal["batchnorm", "layernorm"] = "batchnorm"
    """Whose scale and shift learn: ``layernorm`` is for transformers."""
    lr: float = Field(5e-3, gt=0)
    """Adam's rate (the paper's)."""
    batch: int = Field(64, ge=2)
    """Images a batch."""
    stream: Literal["shuffled", "stored", "sorted-by-label"] = "shuffled"
    """Order of the user's images in ``two-pass`` and ``online``: ``sorted-by-label`` brings all attacks first, a hard
    case."""

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

    unset: ClassVar[frozenset[str]] = frozenset({"gallery"})

    far: tuple[Rate, ...] = ()
    """Rates of the generic TAR@FAR; by default the papers', as far as pairs suffice. One below a single pair is
    refused."""
    fpir: tuple[Rate, ...] = ()
    """Rates of the generic TPIR@FPIR, likewise."""
    personal_far: tuple[Rate, ...] = ()
    """Rates of the sites' own TAR@FAR."""
    personal_fpir: tuple[Rate, ...] = ()
    """Rates of the sites' own TPIR@FPIR."""
    impostors: Literal["public", "pooled"] = "public"
    """Whose images the sites' own models must reject: held-out public ones; or, in simulations only, other sites'."""
    counting: Literal["published", "nist"] = "published"
    """TPIR as released code counts it, or as ``nist`` does."""
    gallery: Literal["unit-length", "raw"] | None = None
    """A site enrols each person's mean feature at unit length, unless said, or ``raw``, as FedFR's released code."""
    flip: bool = False
    """Add the feature of the mirrored image to each feature."""
    fmr: Rate = 1e-3
    """The false match rate at which two faces are called one person."""
    folds_of: int = Field(6000, ge=20)
    """At most so many fixed pairs for the ten folds, half of them of one person."""
    pairs: str | None = None
    """A list of pairs of the user's images, in the format of LFW's ``pairs.txt``: accuracy on its folds and TAR@FAR;
    pairs of images that are not there are left out and counted."""


class Evaluation(Section):
    """How the finished model is judged; nothing here may depend on the user's labels unless its name says so."""

    unset: ClassVar[frozenset[str]] = frozenset({"recognition", "published", "snapshots"})

    threshold: Literal[
        "source-eer",
        "source-train-eer",
        "source-bpcer-1pct",
        "source-bpcer-5pct",
        "source-bpcer-10pct",
        "fixed",
        "target-eer",
    ] = "source-eer"
    """From the sites' held-out scores, each site counting alike (``source-…``); from the scores of training, pooled
    over sites, as papers whose sites hold nothing out have it (``source-train-eer``, with ``every: 0``); logit 0
    (``fixed``); an oracle (``target-eer``)."""
    level: Literal["frame", "video"] = "frame"
    """What the headline figures count."""
    every: int = Field(0, ge=0)
    """Held-out scoring every n rounds."""
    keep: Literal["last", "best"] = "last"
    """Keep the ``last`` model, or the ``best`` by the sites' held-out EER."""
    batch: int = Field(64, ge=1)
    """Images scored at a time."""
    resamples: int = Field(1000, ge=0)
    """Bootstrap draws for intervals; 0 leaves them out."""
    features: int = Field(0, ge=0)
    """Images a set for the t-SNE figure; simulations only."""
    snapshots: int | None = Field(None, ge=1)
    """Every n rounds the model is kept in the run's ``snapshots``, and judged at the user once the run is finished:
    figures by round, which only a simulation can have, and by which nothing is chosen. ``training.start`` takes the
    files."""
    published: bool | None = None
    """Attack detection: add the figures as papers work them out; nothing else changes."""
    adapt: Adapt | None = None
    """Test-time adaptation at the user: ``gated``, ``paper``, ``online``, ``episodic``, or a section."""
    recognition: Recognition | None = None
    """Recognition: at which rates it is judged."""

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
