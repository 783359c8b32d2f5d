"""Who takes part, how long sites have, and how uploads travel and meet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedvisage.recipe.protection import Combine, Dp, Poisoned, Secure
from fedvisage.recipe.section import Section


class Federation(Section):
    """Who takes part in a round, who drops out, how long sites have, how many must answer, how uploads meet."""

    participation: float = Field(1.0, gt=0, le=1)
    """Share of sites that a round asks."""
    offline: float = Field(0.0, ge=0, le=1)
    """Simulated drop-outs: the probability that a site is away for a round."""
    offline_policy: Literal["any-site", "one-site"] = "any-site"
    """Each site on its own, or ``one-site`` a round."""
    quorum: int = Field(1, ge=1)
    """Sites that must answer."""
    give_up_after: int = Field(10, ge=1)
    """Rounds in a row without a quorum that end the run. A run of which no round had a quorum fails, however short it
    is."""
    joins: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Sites that take part from a later round on."""
    deadline: float = Field(600.0, gt=0)
    """Over a network: seconds that a site has for one order; ``--on local`` waits for every site."""
    sit_out: int = Field(2, ge=0)
    """Over a network: rounds that a site sits out after it missed one or could not be reached."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Weights travel as ``fp32`` or ``bf16``, both ways: half the bytes, rounded at random, and float32 again before
    they are combined or trained. Held-out scores are those of the exact model. Not with ``secure`` or ``dp``."""
    combine: Combine = Combine()
    """Robust aggregation, the averaging methods' rule: its name or a section. All but the mean count sites alike."""
    secure: Secure | None = None
    """Averaging methods: secure aggregation, ``true`` or a section; the server sees the sum of what sites send only."""
    dp: Dp | None = None
    """Differential privacy of averaging methods, and of privacyface, with one account for both; sites are protected by
    noise."""
    poisoned: Poisoned | None = None
    """Simulations: hostile sites."""

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
