"""The file that describes a federation: who serves, who trains, who operates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from fedvisage.errors import UserError
from fedvisage.nvflare.kits import STREAMS, STREAMS_EACH
from fedvisage.recipe import SITE_NAME, Section, read_section, read_tree

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
ORGANISATION = r"^[A-Za-z0-9_]{1,63}$"


class ServerEntry(Section):
    """Where the server listens; sites and the operator connect to it, nobody connects to a site."""

    host: str
    port: int = Field(8002, ge=1, le=65535)
    organisation: str = Field("server", pattern=ORGANISATION)
    streams: int = Field(STREAMS, ge=10, le=100_000)
    """Streams that the server carries at once: one for each site and operator, and one more for each site of a run."""
    streams_each: int = Field(STREAMS_EACH, ge=2, le=1000)
    """Streams of one certificate; the oldest is closed for one more."""

    @field_validator("host")
    @classmethod
    def _host_is_a_name(cls, value: str) -> str:
        if not HOST.fullmatch(value):
            raise ValueError(f"{value!r} is no host name; write it as sites will look it up, such as fed.example.org")
        return value


class SiteEntry(Section):
    """A data owner."""

    organisation: str = Field(pattern=ORGANISATION)


class OperatorEntry(Section):
    """Who may submit runs; the address is the operator's name in certificates."""

    email: str = Field(pattern=r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}$")
    organisation: str = Field("server", pattern=ORGANISATION)


class FederationFile(Section):
    """All that ``fedvisage provision`` needs to know."""

    name: str = Field("fedvisage", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    server: ServerEntry
    sites: dict[str, SiteEntry] = Field(min_length=1)
    operator: tuple[OperatorEntry, ...] = Field(min_length=1)
    """One, or several with equal rights."""

    @field_validator("operator", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, Mapping | OperatorEntry) else value

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else value

    @field_validator("sites")
    @classmethod
    def _names_are_plain(cls, value: dict[str, SiteEntry]) -> dict[str, SiteEntry]:
        for name in value:
            if not SITE_NAME.fullmatch(name) or name.lower() in ("server", "operator"):
                raise ValueError(f"site name {name!r}: use letters, digits, '-' and '_', at most 64; not 'server'")
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> FederationFile:
        names = [self.server.host, *self.sites, *(one.email for one in self.operator)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is named twice; server, sites and operators need names of their own")
        return self


def read_federation(path: Path) -> FederationFile:
    """Read and check the description of a federation."""
    tree = read_tree(path)
    try:
        return read_section(FederationFile, tree, f"{path}: ")
    except UserError as error:
        if not isinstance(tree.get("operator"), Mapping):
            raise
        raise UserError(error.place.replace("operator.0.", "operator."), error.message) from error
