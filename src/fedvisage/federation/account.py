"""Noise on the models and what sites release by themselves, in one account (PrivacyFace, A.3, 4).

The two protect different things: ``federation.dp`` what a site's data did to the models that go down, a release one
class centre. What they share is a person. Two runs are neighbours if a site has all images of one person or none of
them (or, with ``replace-one``, another person's): then one class centre differs, if each is made of its own person's
images and of the lent model alone, and the update of one site, by 2C at most, both updates being within C. Every model
that is lent has noise on it or is the first one, so releases may depend on it. All that is told is a sequence of
mechanisms under one relation, and composes: summed, and tightly.

The promise holds against whoever sees the models and what sites told each other: users and other sites, not the server,
which adds the noise and sees clipped updates. With Algorithm 1 as printed the sum is what the paper would count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from fedvisage.errors import UserError
from fedvisage.federation.declared import Declared
from fedvisage.federation.dp import Plan, plan_of
from fedvisage.privacy.accountant import Charge, Relation, Spent, spent
from fedvisage.recipe import Recipe

OF_A_PERSON: dict[Relation, Relation] = {"add-remove": "person", "replace-one": "person-exchanged", "paper": "paper"}
"""What neighbours are that differ in a person, by what they are where they differ in one class centre."""


@dataclass(frozen=True)
class Account:
    """The account of a recipe with both; it does not change with how the run goes, like the plan of its noise."""

    plan: Plan
    prices: Callable[[int], tuple[Charge, ...]]
    """What so many releases of a site cost."""
    delta: float
    entropy: str

    def charges(self, rounds: int) -> tuple[Charge, ...]:
        """Return what so many rounds cost the site that is asked most, under one relation."""
        times = self.plan.paid[rounds - 1] if rounds else 0
        if not times:
            return ()
        told = self.prices(times)
        relation = OF_A_PERSON[told[0].relation]
        between = replace(self.plan, clip=2 * self.plan.clip, multiplier=self.plan.multiplier / 2)
        return tuple(replace(one, relation=relation) for one in (*told, between.charge("noise on the models", times)))

    def spent(self, rounds: int) -> Spent:
        """Return what so many rounds have cost."""
        return _spent(self.charges(rounds), self.delta)

    def figures(self, rounds: int) -> dict[str, Any]:
        """Return the account for ``metrics.json``."""
        charges = self.charges(rounds)
        return {
            **asdict(self.spent(rounds)), "site": "each", "relation": sorted({one.relation for one in charges}),
            "noise": self.entropy, "account": [one.as_json() for one in charges],
        }  # fmt: skip

    def guarantee(self, rounds: int) -> str:
        """Return the text for the ledger, beside weights that so many rounds went into."""
        total, relation = self.spent(rounds), self.charges(rounds)[0].relation
        return (
            f"together with what sites released, {relation} level: ε {total.epsilon:.4g}, δ {total.delta:.3g} by their "
            f"sum, ε {total.tight_epsilon:.4g} tightly"
        )


@lru_cache(maxsize=256)
def _spent(charges: tuple[Charge, ...], delta: float) -> Spent:
    """Compose charges once: each order that goes out asks again."""
    return spent(charges, delta) if charges else Spent(0.0, 0.0, 0.0, delta)


def account_of(recipe: Recipe, method: Declared) -> Account | None:
    """Return the account of a recipe that puts noise on the models of a method whose sites release something, too."""
    plan, dp, own = plan_of(recipe), recipe.federation.dp, recipe.privacy
    prices = method.prices
    if plan is None or dp is None or prices is None:
        return None
    if own.delta is None:
        raise UserError("recipe.privacy", "names no budget; give epsilon and delta for all releases of the run")
    entropy = "derived" if "derived" in (dp.entropy, own.noise) else "system"
    return Account(plan, lambda times: prices(recipe, times), plan.delta + own.delta, entropy)


def promise_of(recipe: Recipe, method: Declared) -> Callable[[int], str]:
    """Return what is promised of weights that so many rounds went into: nothing, without noise on them."""
    plan, dp, account = plan_of(recipe), recipe.federation.dp, account_of(recipe, method)

    def promise(rounds: int) -> str:
        if plan is None or dp is None or not rounds:
            return ""
        together = [account.guarantee(rounds)] if account is not None else []
        return "; ".join([plan.guarantee(rounds, dp.entropy), *together])

    return promise


def figures_of(recipe: Recipe, method: Declared, rounds: int, told: dict[str, Any]) -> dict[str, Any]:
    """Return what ``metrics.json`` says of differential privacy; ``told`` is what the site that released most spent."""
    plan, dp, account = plan_of(recipe), recipe.federation.dp, account_of(recipe, method)
    if plan is None or dp is None:
        return told
    models = plan.figures(rounds, dp.entropy)
    return models if account is None else account.figures(rounds) | {"models": models, "releases": told}
