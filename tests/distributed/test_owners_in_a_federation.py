"""Three organisations with rules of their own, in a federation of processes: refusals, an approval, and records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.federations import run_through
from tests.refusals import failed
from tests.toy import SITES, Sets, quiet_reporter, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import read_json, write_json
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, read_lines
from fedvisage.methods import read_method
from fedvisage.nvflare import operator
from fedvisage.nvflare.job import write_job
from fedvisage.nvflare.kits import REHEARSAL, own_settings
from fedvisage.nvflare.owner.commands import SiteFiles
from fedvisage.nvflare.owner.policy import policy_path
from fedvisage.nvflare.owner.statement import SECOND
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal
from fedvisage.recipe import set_value, tree_of, validate
from fedvisage.runs.directory import NAME

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def owners(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """A federation whose sites apply the rules of their kits, as on separate machines."""
    own = {name: str(sets[name]) for name in SITES}
    with rehearsal(tmp_path_factory.mktemp("owners"), own) as members:
        for kit in members.sites.values():
            settings = own_settings(kit.path)
            write_json(kit.own, {key: value for key, value in settings.items() if key != REHEARSAL})
        yield members


def add_rule(members: Rehearsal, name: str, rule: str) -> str:
    """Add a rule to a site's rules, as its administrator does, and return the rules before."""
    path = policy_path(members.sites[name].path)
    before = path.read_text()
    path.write_text(before.replace("approve: always", rule) if rule.startswith("approve") else f"{before}{rule}\n")
    return before


def content(sets: Sets, quorum: int, **changes: Any) -> dict[str, Any]:
    return tree(sets, training__rounds=2, federation__quorum=quorum, federation__give_up_after=1, **changes)


@pytest.fixture
def same_rules_afterwards(owners: Rehearsal) -> Iterator[None]:
    before = {name: policy_path(kit.path).read_text() for name, kit in owners.sites.items()}
    yield
    for name, text in before.items():
        policy_path(owners.sites[name].path).write_text(text)


def test_run_goes_on_without_a_site_that_refuses_it_and_the_operator_reads_the_rule(
    owners: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    before = add_rule(owners, "A", "rounds: 1")
    run_through(owners, content(sets, 2), tmp_path / "without")
    with failed(RunFailed, "A", "rule rounds"):
        run_through(owners, content(sets, 3), tmp_path / "refused")
    policy_path(owners.sites["A"].path).write_text(before)
    for row in read_lines(tmp_path / "without" / ROUNDS):
        assert row["replied"] == ["B", "C"]
        assert "rule rounds" in row["failed"]["A"]
    run = str(read_json(tmp_path / "without" / NAME)["run"])
    ledger = tmp_path / "without" / LEDGER
    assert {row["site"] for row in read_lines(ledger) if row["direction"] == "up"} == {"B", "C"}
    for name in "BC":
        assert SiteFiles(owners.sites[name].path).differences(run, ledger) == []
    refused = [row for row in SiteFiles(owners.sites["A"].path).record.read() if row["run"] == run]
    assert {row["event"] for row in refused} == {"refused"}


def test_run_waits_for_an_approval_and_continues_after_it(owners: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    """All rounds are over when the administrator approves the run: the default recipe does not give up earlier."""
    before = add_rule(owners, "B", "approve: ask")
    recipe, rounds, reporter = tree(sets, training__rounds=2, federation__quorum=3), list[Any](), quiet_reporter()
    reporter.listeners.append(rounds.append)
    with failed(RunFailed, "B", "approve", "--resume"):
        run_through(owners, recipe, tmp_path / "run")
    (request,) = SiteFiles(owners.sites["B"].path).requests.waiting()
    SiteFiles(owners.sites["B"].path).decide(request.run, "approved")
    run_through(owners, recipe, tmp_path / "run", resume=True, reporter=reporter)
    assert [(row["round"], row["failed"]) for row in rounds] == [(1, {}), (2, {})]
    policy_path(owners.sites["B"].path).write_text(before)
    for name in SITES:
        assert SiteFiles(owners.sites[name].path).differences(request.run, tmp_path / "run" / LEDGER) == []


def test_recipe_changed_after_its_signature_is_refused_by_every_site(
    owners: Rehearsal, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that arrives has more rounds than the operator signed, as a lying server would send it."""

    def write_changed_job(directory: Path, job: Any, sites: Any, signature: Any) -> None:
        longer = job.recipe.training.model_copy(update={"rounds": 3})
        recipe = job.recipe.model_copy(update={"training": longer})
        assert tree_of(recipe)["training"]["rounds"] == 3
        write_job(directory, type(job)(job.run, recipe), sites, signature)

    monkeypatch.setattr(operator, "write_job", write_changed_job)
    with failed(RunFailed, "signature", "A", "B", "C"):
        run_through(owners, content(sets, 1), tmp_path / "changed")


PRIVACY = {"epsilon": 4.0, "delta": 1e-3, "clip": 1.0}
RULES: list[tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = [
    (
        {"A": "rounds: 1", "B": "epochs: 1", "C": "image_size: 31"},
        {},
        {"training.rounds": 1},
    ),
    (
        {"A": "methods: [fedavg]", "B": "sets: [another]", "C": "require: [noise]"},
        {},
        {"method.name": "fedavg"},
    ),
    (
        {"A": "require: secure", "B": "least_sites: 4", "C": "operators: {another@example.org: any}"},
        {},
        {"federation.secure": {"threshold": 0.9}},
    ),
    (
        {"A": "hours: 0.000001", "B": "processor_hours: 0.000001", "C": "epsilon: 1"},
        {"training__privacy": PRIVACY, "method__network": {"width": 8, "norm": "group"}},
        {"training.privacy.epsilon": 1.0},
    ),
    (
        {"A": "members: {B: any}", "B": "approve: ask", "C": "runs_per_week: 1"},
        {},
        {"federation.quorum": 2, "data.sites": {"A": "elsewhere", "B": "elsewhere"}},
    ),
]
"""A rule per site, a recipe that breaks them, and changes with which a server would have one of them met."""


@pytest.mark.usefixtures("same_rules_afterwards")
@pytest.mark.parametrize(("rules", "changes", "lie"), RULES, ids=["size", "method", "protection", "time", "approval"])
def test_each_rule_holds_against_an_operator_and_against_a_server_that_lies(
    rules: dict[str, str],
    changes: dict[str, Any],
    lie: dict[str, Any],
    owners: Rehearsal,
    sets: Sets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = content(sets, 3, **changes)
    if "runs_per_week" in rules["C"]:
        run_through(owners, recipe, tmp_path / "first")
    for name, rule in rules.items():
        policy_path(owners.sites[name].path).write_text(f"format: 1\n{rule}\n")
    names = [rule.partition(":")[0].replace("members", "approve") for rule in rules.values()]  # a new member needs it
    with failed(RunFailed, *(f"rule {name}" for name in names)):
        run_through(owners, recipe, tmp_path / "operator")

    def write_changed_job(directory: Path, job: Any, sites: Any, signature: Any) -> None:
        tree = tree_of(job.recipe)
        for key, value in lie.items():
            set_value(tree, key, value)
        write_job(directory, type(job)(job.run, validate(tree, read_method)), sites, signature)

    monkeypatch.setattr(operator, "write_job", write_changed_job)
    with failed(RunFailed, "signature", "A", "B"):
        run_through(owners, recipe, tmp_path / "server")
    for name in rules:
        runs = [str(read_json(tmp_path / by / NAME)["run"]) for by in ("operator", "server")]
        left = [row for row in SiteFiles(owners.sites[name].path).record.read() if row["event"] == "sent"]
        assert not any(row["run"] in runs for row in left)


@pytest.mark.usefixtures("same_rules_afterwards")
def test_rule_for_two_signatures_holds_against_one_operator_and_against_a_server_that_copies_a_signature(
    owners: Rehearsal, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kit in owners.sites.values():
        policy_path(kit.path).write_text("format: 1\nsignatures: 2\n")
    with failed(RunFailed, "rule signatures", "A", "B", "C"):
        run_through(owners, content(sets, 3), tmp_path / "operator")

    def write_job_with_a_copy(directory: Path, job: Any, sites: Any, signature: Any) -> None:
        write_job(directory, job, sites, signature | {SECOND: dict(signature)})

    monkeypatch.setattr(operator, "write_job", write_job_with_a_copy)
    with failed(RunFailed, "second operator's signature", "A", "B", "C"):
        run_through(owners, content(sets, 3), tmp_path / "server")
