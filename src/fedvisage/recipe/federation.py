"""The section ``federation``: participation, deadlines, and the combination and protection of uploads."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedvisage.recipe.section import Section

Entropy = Literal["system", "derived"]
"""Source of secrets and noise: the operating system, or the run's seed, which is for simulations only."""

LEAST_SHARE = 2 / 3
"""Least share of the selected sites that a secure sum needs. A recipe cannot lower it: its writer may be hostile."""

Rule = Literal["mean", "norm-clip", "trimmed-mean", "median", "krum"]


class Combine(Section):
    """The rule that combines the sites' uploads into one; see ``federation/protections/combine.py``."""

    rule: Rule = "mean"
    """The rule that combines uploads."""
    hostile: int = Field(1, ge=1)
    """trimmed-mean, krum: number of sites that may be hostile; needs ``2·hostile + 1`` and ``2·hostile + 3`` uploads
    per round."""
    select: int = Field(1, ge=1)
    """krum: number of uploads that are averaged (multi-Krum)."""
    bound: float | None = Field(None, gt=0)
    """norm-clip: the norm to which an update is clipped; by default the median of the round's norms."""

    @model_validator(mode="after")
    def _refuse_ignored_options(self) -> Combine:
        if self.hostile != 1 and self.rule not in ("trimmed-mean", "krum"):
            raise ValueError(f"hostile requires the rule trimmed-mean or krum; it does not apply to {self.rule}")
        if self.select != 1 and self.rule != "krum":
            raise ValueError(f"select requires the rule krum; it does not apply to {self.rule}")
        if self.bound is not None and self.rule != "norm-clip":
            raise ValueError(f"bound requires the rule norm-clip; it does not apply to {self.rule}")
        return self

    @property
    def least(self) -> int:
        """Return the number of uploads that the rule needs; a round with fewer has no quorum."""
        if self.rule == "krum":
            return max(2 * self.hostile + 3, self.hostile + 2 + self.select)
        return {"trimmed-mean": 2 * self.hostile + 1, "median": 3}.get(self.rule, 1)


class Secure(Section):
    """Secure aggregation: the number of sites that must finish, and of those that may collude with the server."""

    threshold: float | None = Field(None, gt=0.5, le=1)
    """Share of the selected sites that must finish; at least and by default two thirds. With fewer sites there is no
    sum."""
    colluders: int = Field(1, ge=0)
    """Number of sites that may collude with the server: more than half of the selected sites and of these together must
    finish."""
    most_examples: int = Field(100_000, ge=1)
    """With ``method.weight: examples``: the largest number of images that counts for a site."""
    entropy: Entropy = "system"
    """Masks come from the operating system, or are ``derived`` from the run's seed, which hides nothing, for
    simulations with reproducible ledgers."""

    def sites_needed(self, asked: int) -> int:
        """Return how many of the selected sites must finish: two at least.

        More than (n + colluders) / 2, so that any two groups of this size share an honest site.
        """
        share = max(LEAST_SHARE, self.threshold or 0.0)
        return max(2, math.ceil(share * asked - 1e-9), (asked + self.colluders) // 2 + 1)


LEAST_NOISE = 1e-6
"""Least noise other than none, in units of clip; its ε of 5·10¹¹ per release is no protection."""


LEAST_EPSILON = 1e-3
"""Least ε of a budget; the noise of a lower one leaves no usable number."""
LARGEST_DELTA = 0.1
"""Largest δ; a useful one is far below one divided by the number of people."""


def check_amount(noise: float | None, epsilon: float | None, delta: float | None) -> None:
    """Raise an error unless one of noise and ε is given, and δ with it."""
    if (noise is None) == (epsilon is None):
        raise ValueError("give either epsilon, for the whole run, or noise, in units of clip")
    if noise is not None and 0 < noise < LEAST_NOISE:
        raise ValueError(f"noise is {noise:g} and protects nobody; give 0, or {LEAST_NOISE:g} or more")
    if noise != 0 and delta is None:
        raise ValueError("delta is missing: without it, Gaussian noise gives no privacy guarantee")


class Dp(Section):
    """Differential privacy of sites: each update is clipped to a norm of ``clip``, and noise is added to their sum."""

    clip: float = Field(gt=0)
    """The L2 norm to which a site's update is clipped."""
    noise: float | None = Field(None, ge=0)
    """Standard deviation of the noise on a sum in units of ``clip`` (0: no noise and no guarantee); this or
    ``epsilon``."""
    epsilon: float | None = Field(None, ge=LEAST_EPSILON, le=1e6)
    """The ε that the whole run may cost; this or ``noise``."""
    delta: float | None = Field(None, gt=0, le=LARGEST_DELTA)
    """The δ at which ε holds."""
    entropy: Entropy = "system"
    """Noise comes from the operating system, or is ``derived`` from the run's seed, which makes a simulation repeatable
    and protects nothing."""

    @model_validator(mode="after")
    def _one_way_to_say_how_much(self) -> Dp:
        check_amount(self.noise, self.epsilon, self.delta)
        return self


class HostileSites(Section):
    """Simulated hostile sites that test a rule: see ``federation/protections/steps.py``."""

    sites: tuple[str, ...] = Field(min_length=1)
    """Names of the hostile sites."""
    how: Literal["sign-flip", "scaling", "label-flip"]
    """The attack."""
    factor: float = Field(1.0, gt=0)
    """sign-flip, scaling: factor of the update."""

    @model_validator(mode="after")
    def _refuse_ignored_options(self) -> HostileSites:
        if self.how == "label-flip" and self.factor != 1:
            raise ValueError("factor requires sign-flip or scaling; it does not apply to label-flip")
        return self


class Federation(Section):
    """Participation, drop-outs, deadlines and quorum of rounds, and the combination and protection of uploads."""

    unset: ClassVar[frozenset[str]] = frozenset({"rates"})

    participation: float = Field(1.0, gt=0, le=1)
    """Share of sites that the server selects per round."""
    offline: float = Field(0.0, ge=0, le=1)
    """Simulated drop-outs: the probability that a site is offline for a round."""
    offline_policy: Literal["any-site", "one-site"] = "any-site"
    """Each site drops out independently, or ``one-site`` per round."""
    quorum: int = Field(1, ge=1)
    """Number of sites that must answer."""
    give_up_after: int = Field(10, ge=1)
    """Consecutive rounds without a quorum that end the run. A run without any quorum fails, even a shorter one."""
    joins: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Sites that join in a later round, with the number of that round."""
    deadline: float = Field(600.0, gt=0)
    """Over a network: seconds that a site has for one order; ``--on local`` waits for every site."""
    sit_out: int = Field(2, ge=0)
    """Over a network: rounds that a site sits out after it missed one or was unreachable."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Number format of weights in transit, in both directions. ``bf16`` halves the bytes with stochastic rounding;
    weights become float32 again before they are combined or trained. Held-out scores are those of the exact model. Not
    with ``secure`` or ``dp``."""
    rates: Literal["curve", "threshold"] | None = None
    """The error rates of the sites' held-out people that a model keeps: their averaged ``curve``, for operating points
    (``--at``), or only the ``threshold``. ``curve`` needs three sites, and is the default with them."""
    combine: Combine = Combine()
    """Robust aggregation for averaging methods: a rule's name or a section. All rules but the mean weight sites
    alike."""
    secure: Secure | None = None
    """Averaging methods: secure aggregation, ``true`` or a section; the server sees only the sum of the uploads."""
    dp: Dp | None = None
    """Differential privacy of averaging methods and of privacyface, with one account for both; noise protects the
    sites."""
    poisoned: HostileSites | None = None
    """Simulations only: hostile sites."""

    @field_validator("combine", mode="before")
    @classmethod
    def _name_is_a_rule(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("secure", mode="before")
    @classmethod
    def _true_is_the_default(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value

    def asks(self, sites: int) -> int:
        """Return how many of ``sites`` sites the server selects per round."""
        return max(1, round(self.participation * sites))
