"""Which random changes training images go through: how often each, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.section import Section


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
