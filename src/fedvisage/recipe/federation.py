"""Who takes part, how long sites have, and how uploads travel and meet."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section

# The sections under ``federation`` on how uploads meet: robust rules, secure aggregation, noise, and poison.


Entropy = Literal["system", "derived"]
"""Where secrets and noise come from: the operating system, or the run's seed, which is for simulations only."""

LEAST_SHARE = 2 / 3
"""Share of the asked sites that a secure sum needs at least, whatever a recipe says: its writer may be the attacker."""

FORMER_SHARE = 0.6
"""The default of earlier versions, which stands in every recipe that they wrote out."""

Rule = Literal["mean", "norm-clip", "trimmed-mean", "median", "krum"]


class Combine(Section):
    """The rule that makes one of the sites' uploads; ``federation/robust/`` says what the words mean.

    ``hostile`` is how many sites may be hostile (trimmed-mean, krum), ``select`` how many uploads Krum averages, and
    ``bound`` the norm to which an update is clipped; without it that is the median of the round's norms.
    """

    rule: Rule = "mean"
    """How uploads become one."""
    hostile: int = Field(1, ge=1)
    """trimmed-mean, krum: how many sites may be hostile; needs ``2·hostile + 1`` and ``2·hostile + 3`` uploads a round.
    """
    select: int = Field(1, ge=1)
    """krum: uploads that are averaged (multi-Krum)."""
    bound: float | None = Field(None, gt=0)
    """norm-clip: the norm to which an update is clipped; by default the median of the round's."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Combine:
        if self.hostile != 1 and self.rule not in ("trimmed-mean", "krum"):
            raise ValueError(f"hostile is for trimmed-mean and krum; {self.rule} does not go by it")
        if self.select != 1 and self.rule != "krum":
            raise ValueError(f"select is for krum; {self.rule} does not go by it")
        if self.bound is not None and self.rule != "norm-clip":
            raise ValueError(f"bound is for norm-clip; {self.rule} does not go by it")
        return self

    @property
    def least(self) -> int:
        """How many uploads the rule needs: fewer are no quorum."""
        if self.rule == "krum":
            return max(2 * self.hostile + 3, self.hostile + 2 + self.select)
        return {"trimmed-mean": 2 * self.hostile + 1, "median": 3}.get(self.rule, 1)


class Secure(Section):
    """Secure aggregation: how many sites must take part to the end, and how many may work with the server.

    Where sites count by their images, one counts as ``most_examples`` at most.
    """

    threshold: float | None = Field(None, gt=0.5, le=1)
    """Share of the asked sites that must take part to the end, two thirds unless it says more; with fewer there is no
    sum."""
    colluders: int = Field(1, ge=0)
    """Sites that may work with the server: more than half of the asked sites and of these together must take part."""
    most_examples: int = Field(100_000, ge=1)
    """With ``method.weight: examples``: a site with more counts like one with so many."""
    entropy: Entropy = "system"
    """Masks come from the operating system, or are ``derived`` from the run's seed: for simulations whose ledgers must
    be equal; it hides nothing."""

    @field_validator("threshold")
    @classmethod
    def _former_default_is_unset(cls, value: float | None) -> float | None:
        return None if value == FORMER_SHARE else value

    def needed(self, asked: int) -> int:
        """Return how many of the asked sites must take part to the end: two at least.

        More than (n + colluders) / 2, so that any two such groups of sites share an honest one.
        """
        share = max(LEAST_SHARE, self.threshold or 0.0)
        return max(2, math.ceil(share * asked - 1e-9), (asked + self.colluders) // 2 + 1)


class Dp(Section):
    """Differential privacy of sites: each update is clipped to a norm of ``clip``, and noise is added to their sum.

    ``noise`` is its standard deviation in units of ``clip``; instead, ``epsilon`` says what the whole run may cost.
    """

    clip: float = Field(gt=0)
    """The L2 norm to which a site's update is clipped."""
    noise: float | None = Field(None, ge=0)
    """The noise on a sum in units of ``clip`` (0: none, and no promise); this or ``epsilon``."""
    epsilon: float | None = Field(None, gt=0, le=1e6)
    """What the whole run may cost; this or ``noise``."""
    delta: float | None = Field(None, gt=0, lt=1)
    """The δ at which ε holds."""
    entropy: Entropy = "system"
    """Noise comes from the operating system, or is ``derived`` from the run's seed, which makes a simulation repeatable
    and protects nobody."""

    @model_validator(mode="after")
    def _one_way_to_say_how_much(self) -> Dp:
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError("give either epsilon, for the whole run, or noise, in units of clip")
        if self.noise != 0 and self.delta is None:
            raise ValueError("delta is missing: Gaussian noise gives no guarantee without one")
        return self


class Poisoned(Section):
    """Simulated hostile sites, to see what a rule is worth: ``federation/poison.py`` says what the words mean."""

    sites: tuple[str, ...] = Field(min_length=1)
    """Which sites are hostile."""
    how: Literal["sign-flip", "scaling", "label-flip"]
    """How they attack."""
    factor: float = Field(1.0, gt=0)
    """How far, of sign-flip and scaling."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Poisoned:
        if self.how == "label-flip" and self.factor != 1:
            raise ValueError("factor is for sign-flip and scaling; label-flip does not go by it")
        return self


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
