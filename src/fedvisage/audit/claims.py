"""The claim of ε, tried: lower bounds for the run's mechanism, for Algorithm 1 as printed and for broken ones."""

from __future__ import annotations

from fedvisage.audit.finding import Audit, Finding, Subject
from fedvisage.audit.lower_bound import lower_bound
from fedvisage.audit.mechanisms import CLAIM, Claimed, trials
from fedvisage.methods.clusters import Options
from fedvisage.privacy.draws import DerivedDraws
from fedvisage.privacy.private_clustering import Privately
from fedvisage.streams import torch_rng


def obstacle(subject: Subject) -> str:
    """Only releases have an ε."""
    return "" if isinstance(subject.recipe.method, Options) else "sites release no clusters"


def attack(subject: Subject) -> Finding:
    """Try the run's settings at ε = 1, where some hundreds of releases can tell a broken mechanism from a sound one."""
    options = subject.recipe.options(Options)
    claimed = Claimed(options.rho, Privately(**options.private.model_dump()), CLAIM)
    rows: list[dict[str, str | float]] = []
    for trial in trials(claimed):
        draws = DerivedDraws(torch_rng(subject.recipe.runtime.seed, "audit", trial.name))
        bound = lower_bound(trial, trial.releases, draws)
        rows.append(
            {
                "mechanism": trial.name,
                "claimed ε": bound.claim,
                "shown ε, at least": bound.epsilon,
                "claim": "proved wrong" if bound.exceeds else "stands",
            }
        )
    wrong = [str(row["mechanism"]) for row in rows if row["claim"] == "proved wrong"]
    says = (
        "With 99.9 % confidence for each line, outputs on two neighbouring data sets show an ε of at least the third "
        f"column's. Proved wrong: {'; '.join(wrong) or 'none'}. A claim that stands is not thereby proved."
    )
    return Finding(says, {}, rows)


AUDIT = Audit("privacy-claim", "Whether the claimed ε can be refuted", obstacle, attack)
