"""The rules of a site, ``local/policy.yaml`` in its kit: which runs its owner accepts.

Only the site reads them. Each rule is a key, and a refusal names it. Decision 49 has the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from pydantic import Field, field_validator, model_validator

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.nvflare.certificates import fingerprint_of, name_of
from fedvisage.recipe import Recipe, Section, read_section, read_tree

POLICY = "policy.yaml"
FORMAT = 1
ANY = "any"
"""In place of a fingerprint: any key that the federation's authority certifies under this name."""

LARGEST_EPSILON = 1000.0
"""Most ε of a recipe with ``require: noise``, without the rule ``epsilon``; more is hardly noise."""

Keys = dict[str, Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|any)$")]]
"""Fingerprints of keys, or ``any``, by the names of their owners."""


class Policy(Section):
    """The rules of a site; a rule without a value does not apply."""

    format: int = Field(ge=1)
    """Version of this file."""
    operators: Keys | None = Field(None, min_length=1)
    """The operators whose runs the site accepts, by name, with the fingerprints of their keys."""
    signatures: int = Field(1, ge=1, le=2)
    """2: a second of these operators must also have signed the recipe (``fedvisage cosign``)."""
    members: Keys | None = None
    """The other sites, with the fingerprints of their keys; runs with further sites need approval. Secure sums check
    the keys; in other runs the server sees the upload."""
    methods: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the methods that a recipe may use; those of other packages with their digest: ``NAME sha256:DIGEST``."""
    sets: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the prepared sets that this site may train on, as in their ``set.json``."""
    rounds: int | None = Field(None, ge=1)
    """Most rounds of a run."""
    epochs: int | None = Field(None, ge=1)
    """Most epochs per round; recipes that count batches are refused."""
    image_size: int | None = Field(None, ge=1)
    """Most pixels per side of an image (``input.size``)."""
    hours: float | None = Field(None, gt=0)
    """Most hours from the acceptance of a run to its end."""
    processor_hours: float | None = Field(None, gt=0)
    """Most hours of processor time of a run at this site."""
    require: tuple[Literal["secure", "noise"], ...] = ()
    """``secure``: only runs with ``federation.secure``; ``noise``: only runs whose updates get noise at this site
    (``training.privacy``)."""
    epsilon: float | None = Field(None, gt=0)
    """Most ε that the releases of all runs together may cost; default: the ε of each run's recipe."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The δ at which ``epsilon`` counts, and most δ of a recipe; applies with ``epsilon``, ``require: noise``, or if
    given."""
    least_sites: int = Field(2, ge=1)
    """Least number of sites of a run, this one included. Without ``require: secure`` and ``members`` the server could
    invent the others."""
    runs_per_week: int | None = Field(None, ge=1)
    """Most runs in seven days; a run that continues counts once."""
    approve: Literal["ask", "always"] = "always"
    """``ask``: each run waits for ``fedvisage site approve``."""

    @property
    def bounds_noise(self) -> bool:
        """True if the rules bound ε and δ of a recipe."""
        return self.epsilon is not None or "noise" in self.require or "delta" in self.model_fields_set

    @property
    def pins(self) -> Keys:
        """The fingerprints that members must have."""
        return {name: key for name, key in (self.members or {}).items() if key != ANY}

    @field_validator("require", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("methods")
    @classmethod
    def _methods_exist(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        from fedvisage.methods import all_methods  # with torch, which a process that only waits for runs must not hold
        from fedvisage.methods.origin import digest_of

        names = all_methods()
        for entry in value or ():
            name, _, digest = entry.partition(" ")
            if name not in names:
                raise ValueError(f"unknown method {name!r}{choice_hint(name, names)}")
            if (digest or name in extensions.names("methods")) and digest != f"sha256:{digest_of(names[name])}":
                now = f"{name} sha256:{digest_of(names[name])}"
                raise ValueError(f"{name} must be named with the digest of its installed source, {now}")
        return value

    @model_validator(mode="after")
    def _rules_agree(self) -> Policy:
        if "secure" in self.require and self.least_sites < 2:
            raise ValueError("least_sites must be 2 or more with require: secure, because a sum of one hides nothing")
        return self


NO_RULES = Policy(format=FORMAT, least_sites=1)


def policy_path(kit: Path) -> Path:
    """Return the place of a kit's rules."""
    return kit / "local" / POLICY


def read_policy(kit: Path, site: str) -> Policy | None:
    """Read the rules of a site, or return None if its kit has none; refuse contradictory ones."""
    path = policy_path(kit)
    if not os.path.lexists(path):  # a link to a missing file is a mistake, and not a kit without rules
        return None
    tree = read_tree(path)
    written = tree.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise UserError(f"{path}: format", f"is {written}, and this version reads {FORMAT}; install a newer fedvisage")
    policy = read_section(Policy, tree, f"{path}: ")
    members = None if policy.members is None else len(policy.members.keys() | {site})
    if members is not None and members < policy.least_sites:
        fault = f"is {policy.least_sites}, and members has {members} with this site; correct one of them"
        raise UserError(f"{path}: least_sites", fault)
    return policy


def refuse_operator(policy: Policy, signer: x509.Certificate | None) -> str | None:
    """Return why the rule ``operators`` refuses the operator who signed a job, or None."""
    if signer is None:
        return "no operator signed the job; the operator needs this version of fedvisage"
    name = name_of(signer)
    pinned = ANY if policy.operators is None else policy.operators.get(name)
    if pinned is None:
        return f"{name} is not among the operators of this site"
    return None if pinned in (ANY, fingerprint_of(signer)) else f"the key of {name} is not the one that this site pins"


def refuse_signatures(
    policy: Policy, signer: x509.Certificate | None, second: x509.Certificate | None
) -> tuple[str, str] | None:
    """Return the rule that refuses the operators who signed a job, and the reason, or None."""
    if reason := refuse_operator(policy, signer):
        return "operators", reason
    if policy.signatures == 1:
        return None
    if signer is None or second is None or name_of(second) == name_of(signer):
        return "signatures", "a second operator must sign the recipe; see `fedvisage cosign`"
    reason = refuse_operator(policy, second)
    return None if reason is None else ("signatures", reason)


def broken_rules(policy: Policy, recipe: Recipe, site: str, sets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each rule that a recipe breaks, and the reason; others depend on operators, members and earlier runs."""
    training, federation, name = recipe.training, recipe.federation, recipe.method.name
    if policy.methods is not None and name not in (entry.partition(" ")[0] for entry in policy.methods):
        yield "methods", f"the method {name} is not among {', '.join(policy.methods)}"
    if policy.sets is not None and not set(sets) <= set(policy.sets):
        yield "sets", "this site runs with a set that the rule does not name"
    if policy.rounds is not None and training.rounds > policy.rounds:
        yield "rounds", f"at most {policy.rounds} are accepted, the recipe has {training.rounds}"
    if policy.epochs is not None and training.local.epochs is None:
        yield "epochs", f"at most {policy.epochs} are accepted, and the recipe counts batches"
    elif policy.epochs is not None and (training.local.epochs or 0) > policy.epochs:
        yield "epochs", f"at most {policy.epochs} are accepted, the recipe has {training.local.epochs}"
    if policy.image_size is not None and recipe.input.size > policy.image_size:
        yield "image_size", f"at most {policy.image_size} pixels are accepted, the recipe has {recipe.input.size}"
    if "secure" in policy.require and federation.secure is None:
        yield "require", "only secure sums are accepted; set federation.secure"
    if "noise" in policy.require and (training.privacy is None or training.privacy.noise == 0):
        yield "require", "only updates with this site's noise are accepted; set training.privacy"
    for place, epsilon, delta in _budgets(recipe, policy.delta) if policy.bounds_noise else ():
        if policy.epsilon is not None and epsilon > policy.epsilon:
            yield "epsilon", f"at most {policy.epsilon:g} is accepted, {place} of the recipe costs {epsilon:.4g}"
        elif "noise" in policy.require and epsilon > LARGEST_EPSILON:
            yield "require", f"noise of at most ε {LARGEST_EPSILON:g} is accepted, {place} costs {epsilon:.4g}"
        if delta > policy.delta:
            yield "delta", f"at most {policy.delta:g} is accepted, {place} of the recipe has {delta:g}"
    # The fewest sites of a round are those that have joined when this one does.
    joined = federation.joins.get(site, 1)
    sites = federation.asks(sum(federation.joins.get(name, 1) <= joined for name in recipe.data.sites))
    sites = sites if federation.secure is None else federation.secure.sites_needed(sites)
    if sites < policy.least_sites:
        yield "least_sites", f"{policy.least_sites} sites are required, and a round of the recipe can have {sites}"


def _budgets(recipe: Recipe, at_delta: float) -> Iterator[tuple[str, float, float]]:
    """Yield place, ε and δ of a recipe's noise at the sites; if it states no ε, the ε of its noise at a given δ."""
    from fedvisage.federation.protections.dpsgd import step_noise  # with torch

    people = recipe.training.privacy
    if people is not None and people.delta is not None and people.noise != 0:
        epsilon = people.epsilon
        if epsilon is None and (noised := step_noise(recipe)) is not None:
            epsilon = replace(noised, delta=at_delta).charge("all visits", noised.visits).epsilon
        yield "training.privacy", epsilon or 0.0, people.delta
    if recipe.privacy.epsilon is not None and recipe.privacy.delta is not None:
        yield "privacy", recipe.privacy.epsilon, recipe.privacy.delta


def results_of(policy: Policy, recipe: Recipe, site: str, sets: Sequence[str]) -> dict[str, str]:
    """Return what a recipe would meet, for the rules that it would not just meet."""
    results = {
        "operators": "depends on who signs the run",
        **({} if policy.signatures == 1 else {"signatures": "a second operator must sign the recipe"}),
        "runs_per_week": "depends on the runs of the week",
        "epsilon": "depends on earlier runs",
        "hours": "counted during the run",
        "processor_hours": "counted during the run",
    }
    if added := new_members(policy, recipe, site):
        results["members"] = f"needs approval, because of {', '.join(added)}"
    if policy.approve == "ask":
        results["approve"] = "needs approval"
    return results | dict(broken_rules(policy, recipe, site, sets))


def new_members(policy: Policy, recipe: Recipe, site: str) -> list[str]:
    """Return the sites of a recipe that the rule ``members`` does not name."""
    return [] if policy.members is None else sorted(recipe.data.sites.keys() - policy.members.keys() - {site})


TEXT = """\
# The rules of this site. Only this site reads them; the server and the operators have no copy.
# Remove the sign # to apply a rule. Check the file with: fedvisage site policy KIT
format: 1

# Operators whose runs this site accepts, with the fingerprints of their keys (any: not pinned). Default: all.
{operators}

# The other sites, with the fingerprints of their keys (any: not pinned). Runs with further sites need your approval.
{members}

# Least number of sites of a run, with this one. Without secure sums the server sees this site's upload in any case.
least_sites: {least}

# ask: each run waits until you approve it with `fedvisage site approve KIT RUN`. always: these rules suffice.
approve: always

# require: [secure, noise] # only runs whose uploads the server sees as a sum, and that add noise here
# epsilon: 16              # most ε of the releases of all runs
# delta: 1.0e-5            # the δ at which this ε counts, and most δ of a recipe
# methods: [fedpad]        # names, as in `fedvisage methods`
# sets: [bank 2026]        # names of this site's prepared sets, as in their set.json
# rounds: 100              # most rounds of a run
# epochs: 5                # most epochs per round
# image_size: 256          # most pixels per side
# signatures: 2            # a second operator must also sign the recipe
# hours: 48                # most hours from the acceptance of a run to its end
# processor_hours: 200     # most hours of processor time of a run
# runs_per_week: 10        # a run that continues counts once
"""


def policy_text(operators: Mapping[str, str] | None = None, members: Mapping[str, str] | None = None) -> str:
    """Return a commented file with safe defaults: at least three sites, or two in a federation of two."""
    least = 3 if members is None else max(2, min(3, len(members) + 1))
    named = {"operators": _lines("operators", operators or {}), "members": _lines("members", members or {})}
    return TEXT.format(**named, least=least)


def _lines(rule: str, keys: Mapping[str, str]) -> str:
    lines = [f"  {name}: {key}" for name, key in sorted(keys.items())]
    return "\n".join([f"{rule}:", *lines]) if lines else f"# {rule}: {{NAME: any}}"
