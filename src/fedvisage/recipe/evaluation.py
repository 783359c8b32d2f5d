"""The section ``evaluation``: thresholds, figures, recognition rates and adaptation at the target."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section


class Adapt(Section):
    """Adaptation of the finished model to the target's unlabelled images: see ``tasks/pad/adaptation.py``."""

    loop: Literal["settled", "two-pass", "online", "episodic"] = "settled"
    """``settled``: step on all images, fix BatchNorm's statistics, then decide; ``two-pass``: use batch statistics
    throughout; ``online``: decide and step in one pass; ``episodic``: adapt to each video from the source model."""
    gate: bool = True
    """Keep the source model's decisions where the gate's checks fail; of the short forms only ``gated`` does."""
    over: Literal["batchnorm", "layernorm"] = "batchnorm"
    """Layers with a trainable scale and shift: ``layernorm`` is for transformers."""
    lr: float = Field(5e-3, ge=0)
    """Adam's learning rate; the default is the paper's. With 0, only BatchNorm's statistics change."""
    batch: int = Field(64, ge=2)
    """Images per batch."""
    stream: Literal["shuffled", "stored", "sorted-by-label"] = "shuffled"
    """Order of the target's images in ``two-pass`` and ``online``: ``sorted-by-label`` puts all attacks first, a hard
    case."""

    @model_validator(mode="after")
    def _refuse_ignored_options(self) -> Adapt:
        if self.stream != "shuffled" and self.loop in ("settled", "episodic"):
            raise ValueError(f"stream requires the loop two-pass or online; it does not apply to {self.loop}")
        if not self.lr and self.over == "layernorm":
            raise ValueError("lr: 0 changes BatchNorm's statistics alone, and LayerNorm has none; give a rate")
        if self.gate and self.loop == "episodic":
            raise ValueError("the gate never passes a single video; set gate: false with the loop episodic")
        if self.gate and self.loop != "settled" and self.batch < 16:
            raise ValueError(f"the gate never passes a batch smaller than 16, got {self.batch}")
        return self


ADAPTATIONS: dict[str, dict[str, Any]] = {
    "gated": {},
    "statistics": {"gate": False, "lr": 0.0},
    "paper": {"gate": False, "loop": "two-pass"},
    "online": {"gate": False, "loop": "online"},
    "episodic": {"gate": False, "loop": "episodic"},
}
"""The short forms of the section, such as ``adapt: gated``."""

Rate = Annotated[float, Field(gt=0, le=1)]


class Recognition(Section):
    """Evaluation of a recognition model. Empty rates default to those of the papers, as far as the pairs suffice."""

    unset: ClassVar[frozenset[str]] = frozenset({"gallery"})

    far: tuple[Rate, ...] = ()
    """Rates of the generic TAR@FAR; by default those of the papers, as far as the pairs suffice. A rate below a single
    pair is an error."""
    fpir: tuple[Rate, ...] = ()
    """Rates of the generic TPIR@FPIR, with the same defaults."""
    personal_far: tuple[Rate, ...] = ()
    """Rates of the sites' own TAR@FAR."""
    personal_fpir: tuple[Rate, ...] = ()
    """Rates of the sites' own TPIR@FPIR."""
    impostors: Literal["public", "pooled"] = "public"
    """Images that the sites' personal models must reject: held-out public ones, or those of other sites (``pooled``, in
    simulations only)."""
    counting: Literal["published", "nist"] = "published"
    """Count TPIR like the released code, or like NIST (``nist``)."""
    gallery: Literal["unit-length", "raw"] | None = None
    """Enrol each person's mean feature at unit length (default), or ``raw`` like FedFR's released code."""
    flip: bool = False
    """Add the feature of the mirrored image to each feature."""
    fmr: Rate = 1e-3
    """The false match rate that sets the threshold for calling two faces the same person."""
    folds_of: int = Field(6000, ge=20)
    """Largest number of fixed pairs for the ten folds; half of them show one person."""
    pairs: str | None = None
    """A list of pairs of the target's images, in the format of LFW's ``pairs.txt``, for accuracy on its folds and
    TAR@FAR; pairs with missing images are left out and counted."""


class Evaluation(Section):
    """Evaluation of the finished model; only options that say so in their name may depend on the target's labels."""

    unset: ClassVar[frozenset[str]] = frozenset({"recognition", "published", "snapshots", "shortcuts"})

    threshold: Literal[
        "source-eer",
        "source-train-eer",
        "source-bpcer-1pct",
        "source-bpcer-5pct",
        "source-bpcer-10pct",
        "fixed",
        "target-eer",
    ] = "source-eer"
    """Origin of the threshold. ``source-…``: the sites' held-out scores, each site with the same weight.
    ``source-train-eer``: the training scores pooled over sites, as in papers whose sites hold nothing out; needs
    ``every: 0``. ``fixed``: logit 0. ``target-eer``: an oracle."""
    level: Literal["frame", "video"] = "frame"
    """The unit that the headline figures count."""
    every: int = Field(0, ge=0)
    """Score the held-out images every n rounds."""
    keep: Literal["last", "best"] = "last"
    """Keep the ``last`` model, or the ``best`` by the sites' held-out EER (with ``federation.participation: 1``)."""
    batch: int = Field(64, ge=1)
    """Images per scoring batch."""
    resamples: int = Field(1000, ge=0)
    """Bootstrap draws for confidence intervals; 0 leaves the intervals out."""
    features: int = Field(0, ge=0)
    """Images per set for the t-SNE figure; simulations only."""
    snapshots: int | None = Field(None, ge=1)
    """Keep the model in the run's ``snapshots`` every n rounds, and evaluate each on the target when the run is
    finished. These figures by round exist only in simulations, and no choice depends on them. ``training.start``
    accepts the files."""
    published: bool | None = None
    """Attack detection: add the figures as the papers calculate them; nothing else changes."""
    shortcuts: bool | None = None
    """Attack detection: before training, the sites report by secure aggregation at how many of them sharpness, noise or
    another property of images alone separates the classes, as ``data show --shortcuts`` measures it. Needs three sites
    with ten people per class."""
    adapt: Adapt | None = None
    """Adaptation at the target: ``gated``, ``statistics``, ``paper``, ``online``, ``episodic``, or a section."""
    recognition: Recognition | None = None
    """Recognition: the rates and rules of its evaluation."""

    @field_validator("adapt", mode="before")
    @classmethod
    def _name_is_a_short_form(cls, value: Any) -> Any:
        if not isinstance(value, str) or value == "none":
            return None if value == "none" else value
        if value not in ADAPTATIONS:
            raise ValueError(
                f"{value!r} is not an adaptation method; choose none, {', '.join(ADAPTATIONS)}, or give a section"
            )
        return ADAPTATIONS[value]

    @model_validator(mode="after")
    def _training_scores_choose_no_round(self) -> Evaluation:
        if self.threshold == "source-train-eer" and self.every:
            raise ValueError(
                "every evaluates held-out images, but source-train-eer uses training images; leave every at 0"
            )
        return self

    @property
    def people(self) -> Recognition:
        """Return the section ``recognition``, or its defaults if the recipe has none."""
        return self.recognition or Recognition()
