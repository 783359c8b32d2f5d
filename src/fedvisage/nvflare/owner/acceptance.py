"""The one place where a site accepts a run, before it opens any data.

A job arrives as a file from the server. The site verifies the operator's signature, then checks the recipe, then its
rules, then the approval. Its record has a line per accepted run and per reason for a refusal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedvisage.base.errors import plain_line
from fedvisage.data.prepared import Manifest, read_manifest
from fedvisage.federation.protections.compatible import check_protection, check_real
from fedvisage.methods import find
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of, name_of
from fedvisage.nvflare.greeting import VERSIONS
from fedvisage.nvflare.job import Job, check_job, sets_at_site
from fedvisage.nvflare.kits import REHEARSAL, REQUIRE_SECURE
from fedvisage.nvflare.owner.policy import NO_RULES, Policy, broken_rules, new_members, read_policy, refuse_signatures
from fedvisage.nvflare.owner.record import Row, SiteRecord, other_runs
from fedvisage.nvflare.owner.requests import Request, Requests
from fedvisage.nvflare.owner.statement import digest_of_recipe, verify_run, verify_second
from fedvisage.nvflare.owner.submission import NotReady, Submission
from fedvisage.recipe import Recipe


@dataclass(frozen=True)
class AcceptedRun:
    """A run that a site takes part in."""

    job: Job
    requests: Requests
    request: Request | None = None
    """The approved request; None if the rules sufficed."""
    policy: Policy = NO_RULES
    began: datetime | None = None
    """When the site first accepted the run."""
    used: float = 0.0
    """Seconds of processor time of the run's earlier jobs at this site."""

    def check_withdrawn(self) -> None:
        """Raise ``NotReady`` unless the run's request is still approved; without one, if any of its name is refused."""
        if self.request is not None:
            self.requests.require_approval(self.request)
            return
        for request in self.requests.find(self.job.run):
            if request.decision == "refused":
                raise NotReady(f"refused the run (rule approve): {request.because}")

    def processor_seconds(self) -> float:
        """Return the run's processor time at this site, without orders of jobs that were killed."""
        return self.used + time.process_time()

    def check_time(self, now: datetime | None = None) -> None:
        """Raise ``NotReady`` if the run has taken longer than the rules allow."""
        hours, processor_hours = self.policy.hours, self.policy.processor_hours
        if hours and self.began and (now or datetime.now(UTC)) - self.began > timedelta(hours=hours):
            raise NotReady(f"ends the run by its rule hours: {hours:g} hours have passed since it was accepted")
        if processor_hours and self.processor_seconds() > processor_hours * 3600:
            raise NotReady(f"ends the run by its rule processor_hours: it has used {processor_hours:g} hours")


def accept_run(kit: Path, site: str, settings: Mapping[str, str], submission: Submission) -> AcceptedRun:
    """Return the run of a job, or raise ``NotReady`` with the rule that refuses it."""
    root = certificates_in(credentials_in(kit, at_server=False).root)[0]
    signer, second = verify_run(submission, root), verify_second(submission, root)
    job = check_job(submission)
    if site not in job.recipe.data.sites:
        raise NotReady("is not among the recipe's sites")
    if settings.get(REQUIRE_SECURE) == "yes" and job.recipe.federation.secure is None:
        raise NotReady("takes part only in runs with federation.secure (--require-secure); set it in the recipe")
    requests = Requests(Path(settings["state"]))
    if REHEARSAL in settings:  # all members are processes of one user
        return AcceptedRun(job, requests)
    check_real(job.recipe)  # also if the operator's command did not
    check_protection(job.recipe, find(job.recipe.method))
    policy = read_policy(kit, site)
    sets = [read_manifest(path) for path in sets_at_site(job.recipe, settings)]
    added = [] if policy is None else new_members(policy, job.recipe, site)
    request: Request | None = None
    if policy is not None:
        names = [each.name for each in sets]
        broken = refuse_signatures(policy, signer, second) or next(broken_rules(policy, job.recipe, site, names), None)
        if broken is not None:
            rule, reason = broken
            raise NotReady(f"refuses the run by its rule {rule}: {reason}")
        if policy.approve == "ask" or added:
            assert signer is not None  # the rule operators requires one
            request = _request(submission, [signer, second] if second else [signer], sets, added)
            request = requests.require_approval(request)

    earlier: list[Row] = []

    def check_week(rows: list[Row]) -> None:  # while the record is locked, so that runs at once are counted, too
        most = None if policy is None else policy.runs_per_week
        if most is not None and other_runs(rows, job.run, submission.tree) >= most:
            raise NotReady(f"refuses the run by its rule runs_per_week: {most} other runs in the last seven days")
        earlier.extend(row for row in rows if row.get("run") == job.run)

    SiteRecord(kit, Path(settings["state"])).append(
        "accepted",
        check_week,
        run=job.run,
        title=plain_line(job.recipe.title),
        operator=" and ".join(name_of(each) for each in (signer, second) if each) or "not signed",
        key=fingerprint_of(signer) if signer else "",
        method=job.recipe.method.name,
        rounds=job.recipe.training.rounds,
        protection=protection_of(job.recipe),
        members=sorted(job.recipe.data.sites),
        new_members=added,
        sets=[{"name": manifest.name, "digest": manifest.digest} for manifest in sets],
        versions=VERSIONS,
        approved="" if request is None else request.decided,
        recipe=submission.tree,
        signed=submission.signature,  # evidence that the operator asked for this
    )
    times = [row["time"] for row in earlier if row["event"] == "accepted"]
    began = datetime.fromisoformat(times[0]) if times else datetime.now(UTC)
    used = max((row["processor"] for row in earlier if "processor" in row), default=0.0)
    accepted = AcceptedRun(job, requests, request, policy or NO_RULES, began, used)
    accepted.check_time()
    return accepted


def _request(
    submission: Submission, signers: list[x509.Certificate], sets: list[Manifest], added: list[str]
) -> Request:
    """Return the request for a run; a decision about it holds for these values."""
    bound = {
        "recipe": digest_of_recipe(submission.tree),
        "operator": ", ".join(f"{name_of(signer)} {fingerprint_of(signer)}" for signer in signers),
        "sets": ", ".join(sorted(f"{manifest.name} {manifest.digest}" for manifest in sets)),
        "versions": VERSIONS,
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Request(submission.run, bound, submission.tree, tuple(added), now)


def protection_of(recipe: Recipe) -> str:
    """Return the protection of a run's uploads in plain words."""
    words = ["the server sees only sums of uploads" if recipe.federation.secure else "the server sees each upload"]
    dp = recipe.federation.dp
    if dp is not None:
        size = f"ε {dp.epsilon:g}" if dp.epsilon is not None else f"{dp.noise:g} times the clipping norm"
        words.append(f"the server adds noise to their sum ({size})")
    if find(recipe.method).releases and recipe.privacy.epsilon is not None:
        words.append(f"this site adds noise to releases (ε up to {recipe.privacy.epsilon:g})")
    return "; ".join(words)
