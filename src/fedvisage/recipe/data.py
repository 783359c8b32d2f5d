"""The sections ``data`` and ``input``: data sources, and the size and channels of the network's input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.section import Section

PLACES = (("training", "start"), ("training", "start", "file"), ("method", "network", "weights"))
"""The keys under which a recipe may name a file of weights."""


def named_weights(tree: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the weights files that a recipe, as plain values, names, by the path of their key."""
    files: dict[tuple[str, ...], str] = {}
    for place in PLACES:
        value: Any = tree
        for key in place:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value != "none":
            files[place] = value
    return files


SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MANY_SITES = re.compile(r"([A-Za-z0-9_-]+)\[(\d{1,5})-(\d{1,5})\]")


def expand_sites(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """Expand a key such as ``client[1-40]`` to one site per number; the number replaces each ``*`` in the entry."""
    sites: dict[str, Any] = {}
    for key, entry in entries.items():
        expanded = {str(key): entry}
        if match := MANY_SITES.fullmatch(str(key)):
            expanded = {
                f"{match[1]}{number:0{len(match[3])}d}": entry.replace("*", str(number))
                if isinstance(entry, str)
                else entry
                for number in range(int(match[2]), int(match[3]) + 1)
            }
        if repeated := expanded.keys() & sites.keys():
            raise ValueError(f"site {min(repeated)} appears twice, once as a part of {key}; keep one")
        sites |= expanded
    return sites


def expand_names(names: list[Any]) -> list[str]:
    """Expand names such as ``client[1-40]``."""
    return [written for name in names for written in expand_sites({name: None})]


class Data(Section):
    """The data of a run; each entry is the directory of a prepared set, or a ``synth:`` line that renders one."""

    unset: ClassVar[frozenset[str]] = frozenset({"public", "public_identities", "benchmarks"})

    sites: dict[str, str] = Field(min_length=1)
    """Site name → prepared set, or a ``synth:`` line such as ``synth: O subjects=20 frames=2 size=96``."""
    target: str | None = None
    """The unseen data on which the model is evaluated; an image that a site also has is an error."""
    target_name: str = "target"
    """The target's name in tables."""
    target_split: Literal["all", "train", "heldout", "test"] = "all"
    """Use ``all`` of the target's data, or one split."""
    public: str | None = None
    """Recognition: an identity set on which the server pre-trains and that every site may use; its held-out people are
    the impostors."""
    public_identities: int | None = Field(None, ge=1)
    """Recognition: the number of people in the public set to train on; filled in when the set is opened."""
    benchmarks: dict[str, str] | None = Field(None, min_length=1)
    """Recognition: further sets by name, ``{lfw: sets/lfw, ijbc: sets/ijbc}``, on which the generic model is evaluated
    with the lists next to each set. Training data must not contain any of their people."""

    @property
    def entries(self) -> list[str]:
        """Return all data entries: those of the sites, of the target, of the public set and of the benchmarks."""
        further = (self.target, self.public, *(self.benchmarks or {}).values())
        return [*self.sites.values(), *(entry for entry in further if entry is not None)]

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return expand_sites(value) if isinstance(value, Mapping) else value

    @field_validator("sites", "benchmarks")
    @classmethod
    def _names_are_plain(cls, value: dict[str, str] | None, info: ValidationInfo) -> dict[str, str] | None:
        for name in value or ():
            if not SITE_NAME.fullmatch(name):
                kind = str(info.field_name).removesuffix("s")
                raise ValueError(f"{kind} name {name!r}: use letters, digits, '-' and '_', at most 64")
        return value

    @model_validator(mode="after")
    def _target_is_not_a_site(self) -> Data:
        for name, entry in self.sites.items():
            if self.target is not None and entry == self.target:
                raise ValueError(
                    f"the target's data is also the data of site {name}: a target must be unseen in training"
                )
        if self.target_name in self.sites:
            raise ValueError(
                f"target_name {self.target_name!r} is also the name of a site; tables could not tell them apart"
            )
        return self


class Input(Section):
    """The network's input. Sets must be rendered or cropped at this size, because no image is enlarged."""

    size: int = Field(256, ge=16, le=1024)
    """Side of the input images in pixels; all sets must have it."""
    colour: Literal["rgb+hsv", "rgb"] = "rgb+hsv"
    """The channels of the input images."""
    margin: float | None = Field(None, ge=1, le=5)
    """Attack detection: the margin of the crops to use; all sets must have it. Default: each set's first."""
