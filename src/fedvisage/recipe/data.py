"""Whose data, and what the network looks at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedvisage.recipe.section import Section

# Where a recipe may name a file of weights, and which it names.


PLACES = (("training", "start"), ("training", "start", "file"), ("method", "network", "weights"))


def named_weights(tree: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the files of weights that a recipe of plain values names, by place."""
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


def many_sites(entries: Mapping[Any, Any]) -> dict[str, Any]:
    """Write out a key such as ``client[1-40]``: a site for each number, which stands for each ``*`` in its entry."""
    sites: dict[str, Any] = {}
    for key, entry in entries.items():
        for name, own in _written_out(str(key), entry):
            if name in sites:
                raise ValueError(f"site {name} stands twice, once as a part of {key}; keep one")
            sites[name] = own
    return sites


def _written_out(key: str, entry: Any) -> Iterator[tuple[str, Any]]:
    match = MANY_SITES.fullmatch(key)
    if match is None:
        yield key, entry
        return
    for number in range(int(match[2]), int(match[3]) + 1):
        own = entry.replace("*", str(number)) if isinstance(entry, str) else entry
        yield f"{match[1]}{number:0{len(match[3])}d}", own


def many_names(names: list[Any]) -> list[str]:
    """Write out names such as ``client[1-40]``."""
    return [written for name in names for written in many_sites({name: None})]


class Data(Section):
    """Whose data: each entry is a prepared set's directory or a ``synth:`` line that makes one."""

    unset: ClassVar[frozenset[str]] = frozenset({"public", "public_identities", "benchmarks"})

    sites: dict[str, str] = Field(min_length=1)
    """Site name → prepared set, or a ``synth:`` line such as ``synth: O subjects=20 frames=2 size=96``."""
    user: str | None = None
    """The unseen data on which the model is judged; pictures that a site has too are refused."""
    user_name: str = "user"
    """What tables call it."""
    user_split: Literal["all", "train", "heldout", "test"] = "all"
    """``all`` of it, or one split."""
    public: str | None = None
    """Recognition: an identity set that the server pre-trains on and every site may use; its held-out people are the
    impostors."""
    public_identities: int | None = Field(None, ge=1)
    """Recognition: how many people that set has; filled in."""
    benchmarks: dict[str, str] | None = Field(None, min_length=1)
    """Recognition: further sets by name, ``{lfw: sets/lfw, ijbc: sets/ijbc}``, on which the generic model is judged by
    the lists beside them; nobody of them may be trained on."""

    @property
    def entries(self) -> list[str]:
        """All data entries: the sites', the user's, the public one and the benchmarks'."""
        others = (self.user, self.public, *(self.benchmarks or {}).values())
        return [*self.sites.values(), *(entry for entry in others if entry is not None)]

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return many_sites(value) if isinstance(value, Mapping) else value

    @field_validator("sites", "benchmarks")
    @classmethod
    def _names_are_plain(cls, value: dict[str, str] | None, info: ValidationInfo) -> dict[str, str] | None:
        for name in value or ():
            if not SITE_NAME.fullmatch(name):
                what = str(info.field_name).removesuffix("s")
                raise ValueError(f"{what} name {name!r}: use letters, digits, '-' and '_', at most 64")
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
    """The side of the images that the network looks at; sets must have it."""
    colour: Literal["rgb+hsv", "rgb"] = "rgb+hsv"
    """Which channels the network looks at."""
