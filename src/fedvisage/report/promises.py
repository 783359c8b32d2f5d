"""What a run's protections promise, in sentences for its page: noise, secure and robust aggregation, attacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedvisage.privacy.accountant import PROTECTS
from fedvisage.report.run_files import Row

SIMULATED = "The noise follows from the run's seed, so that it can be repeated: a simulation, which protects nobody."


def promises(metrics: Row, recipe: Row) -> list[str]:
    """Return a sentence for each protection that the run used."""
    federation = recipe.get("federation") or {}
    return [*_of_noise(metrics.get("privacy") or {}), *_of_the_sum(federation)]


def _of_noise(privacy: Row) -> Iterator[str]:
    if not privacy:
        return
    if "models" in privacy:
        yield from _of_both(privacy)
        return
    what = " and ".join(str(PROTECTS.get(one, one)) for one in privacy["relation"])
    tight = f"ε {privacy['tight_epsilon']:.4g} at δ {privacy['at_delta']:.3g}"
    if "noise_multiplier" in privacy:
        yield (
            f"Differential privacy of sites: {tight}, for {what}. Updates were clipped to {privacy['clip']:g}, with "
            f"noise of {privacy['noise_multiplier']:.4g} times that on each of {privacy['releases']} sums. It covers "
            "the weights that went down, not the statistics beside them."
        )
    else:
        yield (
            f"What site {privacy['site']} released under differential privacy, the most of any: "
            f"ε {privacy['epsilon']:.4g} at δ {privacy['delta']:.3g} by the sum of its parts, {tight} tightly; "
            f"for {what}."
        )
    if privacy.get("noise") == "derived":
        yield SIMULATED


def _of_both(privacy: Row) -> Iterator[str]:
    """Say the joint account first: it is what holds when both are looked at."""
    yield (
        f"Noise on the models and noise on what sites released, together: ε {privacy['tight_epsilon']:.4g} at δ "
        f"{privacy['at_delta']:.3g} (ε {privacy['epsilon']:.4g} at δ {privacy['delta']:.3g} by the sum of all parts), "
        f"for {' and '.join(str(PROTECTS.get(one, one)) for one in privacy['relation'])}."
    )
    for part in (privacy["models"], privacy["releases"]):
        yield from _of_noise({**part, "noise": ""})
    if privacy["noise"] == "derived":
        yield SIMULATED


def _of_the_sum(federation: Row) -> Iterator[str]:
    secure, poisoned = federation.get("secure"), federation.get("poisoned")
    rule = (federation.get("combine") or {}).get("rule", "mean")
    if secure:
        yield _secret(secure)
    if rule != "mean":
        yield (
            f"Robust aggregation: uploads met by {rule}, which bounds what some hostile sites can do, and saw every "
            "one of them."
        )
    if poisoned:
        yield f"Simulated attack: {', '.join(poisoned['sites'])} sent a {poisoned['how']} on purpose."


def _secret(secure: dict[str, Any]) -> str:
    if secure.get("entropy") == "derived":
        return (
            "Secure aggregation, of a simulation: masks follow from the run's seed, and all who know it can take them "
            "off."
        )
    return "Secure aggregation: the server saw the sum of the sites' weights and losses, and no upload singly."
