"""Who takes part, how long sites have, and how uploads travel and meet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedvisage.recipe.protection import Combine, Dp, Poisoned, Secure
from fedvisage.recipe.section import Section


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
