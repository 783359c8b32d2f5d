"""The rules of a site: the file, invalid rules at the start, a refusal per rule, and the operator's signature."""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from tests.commands import output_of
from tests.distributed.site_owners import FIRST, SECOND, key_of, prepare_owner, provision_owners, submit
from tests.federation.kit_sites import open_trust
from tests.refusals import Command, check_output, failed, refused
from tests.toy import Sets, recipe_of, tree

from fedvisage.base import extensions
from fedvisage.federation.wire.schema import RefusedMessage
from fedvisage.methods import METHODS, all_methods
from fedvisage.methods.origin import digest_of
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of, name_of
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.node import start_site
from fedvisage.nvflare.owner.acceptance import AcceptedRun, accept_run
from fedvisage.nvflare.owner.policy import Policy, broken_rules, policy_path, policy_text, read_policy
from fedvisage.nvflare.owner.record import SiteRecord, other_runs
from fedvisage.nvflare.owner.statement import CONTEXT, verify_run
from fedvisage.nvflare.owner.submission import NotReady, Submission
from fedvisage.nvflare.terminal import Terminal


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


RULES = ("require", "methods", "sets", "rounds", "epochs", "hours", "processor_hours", "epsilon", "delta")
PRIVACY = {"clip": 1.0, "delta": 1e-3}

Owner = Callable[[str | None], Kit]


@pytest.fixture
def owner(kits: Path, sets: Sets, tmp_path: Path) -> Owner:
    """Return site A with these rules, on a set whose images are missing: whatever reads them fails."""
    data = Path(shutil.copytree(sets["A"], tmp_path / "data"))
    (data / "images.npy").unlink()
    kit = Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit"))
    return lambda policy: prepare_owner(kit, data, tmp_path / "state", policy)


def accept(site: Kit, submission: Submission) -> AcceptedRun:
    return accept_run(site.path, site.name, own_settings(site.path), submission)


def test_new_kits_pin_operators_and_members_and_require_three_sites(kits: Path) -> None:
    policy = read_policy(kits / "sites" / "A", "A")
    assert policy is not None
    assert policy.operators == {name: key_of(kits, name) for name in (FIRST, SECOND)}
    assert policy.members == {name: key_of(kits, name) for name in "BC"}
    assert (policy.least_sites, policy.approve) == (3, "always")


def test_commented_rules_are_valid_with_and_without_the_comments(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    policy_path(tmp_path).write_text(policy_text())
    assert read_policy(tmp_path, "A") is not None
    commented = [
        line.removeprefix("# ") for line in policy_text().splitlines() if line.startswith("# ") and ": " in line
    ]
    rules = [line for line in commented if line.split(":")[0] in RULES]
    assert len(rules) == 9
    policy_path(tmp_path).write_text(policy_text() + "\n".join(rules))
    policy = read_policy(tmp_path, "A")
    assert policy is not None
    assert (policy.epsilon, policy.delta) == (16, 1e-5)
    assert (policy.require, policy.rounds, policy.hours) == (("secure", "noise"), 100, 48)


def test_command_prints_whole_fingerprints(kits: Path) -> None:
    printed = output_of("site", "policy", kits / "sites" / "A")
    values = "".join(line.split("│")[2].strip() for line in printed.splitlines() if line.count("│") == 3)
    assert all(key_of(kits, name) in values for name in (FIRST, SECOND, "B", "C"))
    assert key_of(kits, "A") in printed


@pytest.mark.parametrize(
    ("text", "key", "keyword"),
    [
        ("format: 1\nround: 3", "round", "rounds"),
        ("rounds: 3", "format", "missing"),
        ("format: 2\nnew_rule: 1", "format", "2"),
        ("format: 1\nrounds: many", "rounds", "number"),
        ("format: 1\napprove: yes", "approve", "ask"),
        ("format: 1\nmethods: [fedpat]", "methods", "fedpad"),
        ("format: 1\noperators: {a@b.org: '12:ab'}", "operators.a@b.org", "sha256"),
        ("format: 1\noperators: {}", "operators", "1"),
        ("format: 1\nrequire: [noise, privacy]", "require.1", "secure"),
        ("format: 1\nhours: 0", "hours", "0"),
        ("format: 1\nepsilon: .inf", "epsilon", "finite"),
        (f"format: 1\nmethods: [fedpad sha256:{'0' * 64}]", "methods", digest_of(METHODS["fedpad"])),
        ("format: 1\nleast_sites: 3\nmembers: {B: any}", "least_sites", "3"),
    ],
)
def test_misspelt_contradictory_or_newer_rules_are_refused_with_their_place(
    text: str, key: str, keyword: str, owner: Owner
) -> None:
    with refused(f"policy.yaml: {key}", keyword):
        read_policy(owner(text).path, "A")


def test_invalid_rules_end_the_start_of_a_site(owner: Owner, sets: Sets, tmp_path: Path) -> None:
    site = owner("format: 1\nround: 3")
    with refused("policy.yaml: round", "rounds"):
        start_site(site.path, sets["A"], tmp_path / "state", None, Terminal(print, print), verbose=False)


def test_link_to_missing_rules_is_not_a_kit_without_rules(owner: Owner) -> None:
    site = owner(None)
    policy_path(site.path).symlink_to("moved.yaml")
    with refused("policy.yaml"):
        read_policy(site.path, "A")


def test_sum_of_one_site_contradicts_the_rule_for_secure_sums(owner: Owner) -> None:
    with refused("policy.yaml", "secure", "least_sites"):
        read_policy(owner("format: 1\nrequire: secure\nleast_sites: 1").path, "A")


def test_permission_for_plain_runs_contradicts_the_rule_for_secure_sums(
    owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site = owner("format: 1\nrequire: secure")
    with refused("policy.yaml: require", "--allow-roster"):
        start_site(
            site.path, sets["A"], tmp_path / "state", None, Terminal(print, print), verbose=False, rosters=["plain"]
        )


@pytest.mark.parametrize(
    ("rule", "value", "changes", "keyword"),
    [
        ("methods", "[fedavg]", {}, "fedpad"),
        ("sets", "[another]", {}, "set"),
        ("rounds", "2", {}, "3"),
        ("epochs", "1", {"training__local": {"epochs": 2}}, "2"),
        ("epochs", "1", {}, "batches"),
        ("image_size", "31", {}, "32"),
        ("require", "secure", {}, "federation.secure"),
        ("require", "noise", {}, "training.privacy"),
        ("require", "[noise]", {"training__privacy": {**PRIVACY, "noise": 0.0}}, "training.privacy"),
        ("epsilon", "3.9", {"training__privacy": {**PRIVACY, "epsilon": 4.0}}, "4"),
        ("epsilon", "3.9", {"privacy": {"epsilon": 4.0, "delta": 1e-3}}, "4"),
        ("epsilon", "1", {"training__privacy": {**PRIVACY, "noise": 0.5}}, "training.privacy"),
        ("delta", "1.0e-5", {"training__privacy": {**PRIVACY, "epsilon": 4.0, "delta": 0.09}}, "0.09"),
        ("delta", "1.0e-5", {"privacy": {"epsilon": 4.0, "delta": 1e-3}}, "0.001"),
        ("require", "noise", {"training__privacy": {**PRIVACY, "noise": 1e-2}}, "1000"),
        ("least_sites", "4", {}, "3"),
        ("least_sites", "3", {"federation__participation": 0.5}, "2"),
        ("operators", f"{{{SECOND}: any}}", {}, FIRST),
        ("operators", f"{{{FIRST}: sha256:{'0' * 64}}}", {}, "key"),
    ],
)
def test_each_rule_refuses_a_run_that_breaks_it_before_data_is_opened(
    rule: str, value: str, changes: dict[str, Any], keyword: str, kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    submission = submit(kits, sets, tmp_path, **changes)
    assert accept(owner("format: 1"), submission).job.run == "run-1"
    with failed(NotReady, "rule", rule, keyword):
        accept(owner(f"format: 1\n{rule}: {value}"), submission)


@pytest.mark.parametrize("rules", [{"epsilon": 8.0}, {"require": "noise"}])
def test_rules_for_noise_bound_delta_and_the_epsilon_of_a_noise_multiplier(rules: dict[str, Any], sets: Sets) -> None:
    def broken(privacy: dict[str, Any], **more: Any) -> list[str]:
        recipe = recipe_of(tree(sets, "fedavg", training__privacy={"clip": 1.0, **privacy}))
        return [rule for rule, _ in broken_rules(Policy(format=1, **rules, **more), recipe, "A", [])]

    assert broken({"epsilon": 1.0, "delta": 1e-5}) == []
    assert broken({"epsilon": 1.0, "delta": 2e-5}) == ["delta"]
    assert broken({"epsilon": 1.0, "delta": 2e-5}, delta=2e-5) == []
    assert broken({"noise": 1.0, "delta": 1e-5}) == []
    for noise in (1e-2, 3e-3):
        assert broken({"noise": noise, "delta": 1e-5}) == list(rules)


def test_epsilon_of_a_noise_multiplier_counts_at_the_delta_of_the_rules(sets: Sets) -> None:
    """Six steps with the rate 0.1; at the lower δ of the recipe their ε is higher."""
    privacy = {"clip": 1.0, "noise": 1.0, "delta": 1e-9}
    recipe = recipe_of(tree(sets, "fedavg", training__privacy=privacy))
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 6)
    epsilon = accountant.get_epsilon(1e-7)
    limits = (1.01 * epsilon, 0.99 * epsilon)
    broken = [dict(broken_rules(Policy(format=1, epsilon=limit, delta=1e-7), recipe, "A", [])) for limit in limits]
    assert [list(rules) for rules in broken] == [[], ["epsilon"]]


@pytest.mark.parametrize(
    ("rule", "key", "changes"),
    [
        ("noise", "training.privacy", {"method__name": "fedgpad"}),
        ("noise", "evaluation.threshold", {"evaluation__threshold": "source-train-eer", "evaluation__every": 0}),
        ("secure", "federation.secure", {"method__name": "scaffold", "federation__secure": True}),
        ("secure", "training.statistics", {"training__statistics": "exact", "federation__secure": True}),
    ],
)
def test_protection_that_the_method_or_another_setting_defeats_is_refused(
    rule: str, key: str, changes: dict[str, Any], kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    """The operator left out the check of its command."""
    if rule == "noise":
        changes = {**changes, "training__privacy": {**PRIVACY, "epsilon": 4.0}}
    with refused(f"recipe.{key}"):
        accept(owner(f"format: 1\nrequire: {rule}\ndelta: 1.0e-3"), submit(kits, sets, tmp_path, **changes))


def test_secure_sums_that_close_with_fewer_sites_break_the_rule(sets: Sets) -> None:
    """Of five sites two thirds must finish: four."""
    content = tree(sets, federation={"secure": True})
    content["data"]["sites"] = {name: f"sets/{name}" for name in ("A", "B", "C", "D", "E")}
    recipe = recipe_of(content)
    broken = [[*dict(broken_rules(Policy(format=1, least_sites=least), recipe, "A", []))] for least in (4, 5)]
    assert broken == [[], ["least_sites"]]


def test_rounds_before_other_sites_join_count_for_the_least_number_of_sites(sets: Sets) -> None:
    """A trains alone for two rounds; C, which joins last, is never in a round of fewer than three sites."""
    recipe = recipe_of(tree(sets, federation__joins={"B": 2, "C": 3}))
    broken = {site: [*dict(broken_rules(Policy(format=1, least_sites=3), recipe, site, []))] for site in "ABC"}
    assert broken == {"A": ["least_sites"], "B": ["least_sites"], "C": []}


def test_runs_of_a_week_count_once_each_and_only_if_accepted(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site = owner("format: 1\nruns_per_week: 2\nrounds: 3")
    for run in ("run-1", "run-2", "run-1"):
        accept(site, submit(kits, sets, tmp_path, run=run))
    with failed(NotReady, "runs_per_week", "2"):
        accept(site, submit(kits, sets, tmp_path, run="run-3"))
    with failed(NotReady, "runs_per_week"):  # another recipe under the name of an earlier run is another run
        accept(site, submit(kits, sets, tmp_path, run="run-1", training__rounds=2))
    rows = SiteRecord(site.path, tmp_path / "state").read()
    assert [row["run"] for row in rows] == ["run-1", "run-2", "run-1"]
    counts = [other_runs(rows, "run-3", {}, datetime.now(UTC) + timedelta(days=days)) for days in (0, 8)]
    assert counts == [2, 0]


def test_run_ends_when_the_hours_since_its_first_acceptance_have_passed(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site = owner("format: 1\nhours: 1.5")
    first = accept(site, submit(kits, sets, tmp_path))
    assert first.began is not None
    first.check_time(first.began + timedelta(minutes=89))
    again = accept(site, submit(kits, sets, tmp_path))
    assert again.began is not None
    assert abs(again.began - first.began) < timedelta(seconds=2)  # the record has whole seconds
    with failed(NotReady, "rule hours", "1.5"):
        again.check_time(first.began + timedelta(minutes=91))


def test_run_ends_at_its_processor_time_which_earlier_jobs_add_to(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site = owner("format: 1\nprocessor_hours: 5")
    accept(site, submit(kits, sets, tmp_path)).check_time()
    record = SiteRecord(site.path, tmp_path / "state")
    for run, seconds in (("run-1", 17_000.0), ("run-2", 18_000.0), ("run-1", 17_500.0)):
        record.append("sent", run=run, processor=seconds)
    assert accept(site, submit(kits, sets, tmp_path)).used == 17_500
    record.append("sent", run="run-1", processor=18_000.0)
    with failed(NotReady, "rule processor_hours", "5"):
        accept(site, submit(kits, sets, tmp_path))


@pytest.fixture
def installed_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install a package with a method, and return the method's name."""
    lines = ("import dataclasses", "from fedvisage.methods import METHODS")
    own = 'OWN = dataclasses.replace(METHODS["fedavg"], name="own")'
    (tmp_path / "own_method.py").write_text("\n".join((*lines, own)))
    metadata = tmp_path / "own_method-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: own-method\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[fedvisage.methods]\nown = own_method:OWN\n")
    monkeypatch.syspath_prepend(tmp_path)
    extensions._entries.cache_clear()
    yield "own"
    extensions._entries.cache_clear()
    sys.modules.pop("own_method", None)


def test_method_of_another_package_is_named_with_the_digest_of_its_source(installed_method: str, owner: Owner) -> None:
    digest = digest_of(all_methods()[installed_method])
    with refused("policy.yaml: methods", f"{installed_method} sha256:{digest}"):
        read_policy(owner(f"format: 1\nmethods: [{installed_method}]").path, "A")
    policy = read_policy(owner(f"format: 1\nmethods: [fedpad, {installed_method} sha256:{digest}]").path, "A")
    assert policy is not None
    assert policy.methods == ("fedpad", f"{installed_method} sha256:{digest}")


def test_kit_without_rules_accepts_unsigned_jobs_and_prints_a_note_at_its_start(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site, lines = owner(None), list[str]()
    assert accept(site, submit(kits, sets, tmp_path, signer=None)).policy.pins == {}
    with refused("images.npy"):  # the check of the set, after the notes
        start_site(site.path, tmp_path / "data", tmp_path / "state", None, Terminal(lines.append, print), verbose=False)
    assert any("policy.yaml" in line and "every run" in line for line in lines)


# The operator's signature, against a server that lies.


@pytest.mark.parametrize(
    "tampered",
    [
        {"training.rounds": 4},
        {"data.sites": {"A": "elsewhere", "B": "elsewhere", "D": "elsewhere"}},
        {"data.sites": {"A": "elsewhere", "B": "elsewhere"}},
        {"method.name": "fedavg"},
        {"federation.quorum": 2},
    ],
)
@pytest.mark.parametrize("policy", ["format: 1", None])
def test_recipe_roster_or_method_changed_by_the_server_is_refused(
    tampered: dict[str, Any], policy: str | None, kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "signature"):
        accept(owner(policy), submit(kits, sets, tmp_path, tampered=tampered))


def test_signature_of_another_run_is_refused(kits: Path, owner: Owner, sets: Sets, tmp_path: Path) -> None:
    with failed(NotReady, "signature"):
        accept(owner("format: 1"), replace(submit(kits, sets, tmp_path), run="run-2"))


def test_unsigned_job_is_refused_by_any_rules(kits: Path, owner: Owner, sets: Sets, tmp_path: Path) -> None:
    with failed(NotReady, "operators", "signed"):
        accept(owner("format: 1"), submit(kits, sets, tmp_path, signer=None))


def test_signature_of_a_member_that_is_no_operator_is_refused(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "operator"):
        accept(owner("format: 1"), submit(kits, sets, tmp_path, signer="B"))


def test_certificate_of_another_operator_under_a_forged_signature_is_refused(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    """The server puts the certificate of the first operator, which it knows, before the second one's signature."""
    site = owner(f"format: 1\noperators: {{{FIRST}: any}}")
    honest, other = (submit(kits, sets, tmp_path, signer=name) for name in (FIRST, SECOND))
    assert honest.signature is not None
    assert other.signature is not None
    credentials = [bytes.fromhex(each.signature["credential"]) for each in (honest, other) if each.signature]
    lengths = [int.from_bytes(each[:2], "big") for each in credentials]
    forged = credentials[0][: 4 + lengths[0]] + credentials[1][4 + lengths[1] :]
    with failed(NotReady, "signature"):
        accept(site, replace(other, signature={**other.signature, "credential": forged.hex()}))
    with failed(NotReady, "operators", SECOND):
        accept(site, other)
    assert accept(site, honest).job.run == "run-1"


def test_operator_of_another_federation_is_refused(
    owner: Owner, sets: Sets, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    others = provision_owners(tmp_path_factory.mktemp("others") / "kits")
    with failed(NotReady, "certificate"):
        accept(owner("format: 1"), submit(others, sets, tmp_path))


@pytest.mark.parametrize(
    "signature",
    [{}, {"time": "now"}, {"time": 1, "versions": [], "credential": "zz"}, {"time": "2026-01-01", "credential": None}],
)
def test_malformed_signature_is_refused(
    signature: dict[str, Any], kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "signature"):
        accept(owner("format: 1"), replace(submit(kits, sets, tmp_path), signature=signature))


@pytest.mark.parametrize(("days", "valid"), [(0, True), (6.9, True), (7.1, False), (-1, False)])
def test_signature_is_valid_for_seven_days(days: float, valid: bool, kits: Path, sets: Sets, tmp_path: Path) -> None:
    submission = submit(kits, sets, tmp_path)
    root = certificates_in(credentials_in(kits / "sites/A", at_server=False).root)[0]
    now = datetime.now(UTC) + timedelta(days=days)
    if valid:
        signer = verify_run(submission, root, now)
        assert signer is not None
        assert (name_of(signer), fingerprint_of(signer)) == (FIRST, key_of(kits, FIRST))
    else:
        with failed(NotReady, "7", "days"):
            verify_run(submission, root, now)


def test_time_of_a_signature_cannot_be_moved(kits: Path, owner: Owner, sets: Sets, tmp_path: Path) -> None:
    submission = submit(kits, sets, tmp_path)
    assert submission.signature is not None
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat(timespec="seconds")
    with failed(NotReady, "signature"):
        accept(owner("format: 1"), replace(submission, signature={**submission.signature, "time": later}))


def test_statements_about_runs_and_secure_sums_cannot_be_exchanged(kits: Path, tmp_path: Path) -> None:

    trust = open_trust(kits, "A", tmp_path)
    assert not trust._context.startswith(CONTEXT)
    assert not CONTEXT.startswith(trust._context)


def test_pinned_key_of_a_member_is_checked_in_secure_sums(kits: Path, tmp_path: Path) -> None:

    receiver, sender = open_trust(kits, "A", tmp_path), open_trust(kits, "B", tmp_path)
    credential = sender.sign(b"keys")
    receiver._pins = {"B": key_of(kits, "B")}
    receiver.verify("B", b"keys", credential)
    receiver._pins = {"B": key_of(kits, "C")}
    with failed(RefusedMessage, "members", "B"):
        receiver.verify("B", b"keys", credential)


# The command.


def test_command_writes_rules_and_checks_a_recipe_against_them(
    owner: Owner, sets: Sets, tmp_path: Path, command: Command
) -> None:
    site, recipe = owner(None), tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree(sets)))
    code, output, _ = command("site", "policy", str(site.path))
    assert code == 0
    assert "policy.yaml" in output
    assert "least_sites" in output
    prepare_owner(site.path, tmp_path / "data", tmp_path / "state", "format: 1\nrounds: 2\nmembers: {B: any}")
    code, output, _ = command("site", "policy", str(site.path), str(recipe))
    assert code == 0
    (rounds,) = [line for line in output.splitlines() if "rounds" in line and "2" in line]
    assert "3" in rounds
    assert "C" in next(line for line in output.splitlines() if "members" in line)
    recipe.write_text(
        yaml.safe_dump(tree(sets, training__local={"epochs": 1}, training__privacy=PRIVACY | {"noise": 1.0}))
    )
    code, _, error = command("site", "policy", str(site.path), str(recipe))
    assert code == 2
    check_output(error, "recipe.training.local", "batches")
    prepare_owner(site.path, tmp_path / "data", tmp_path / "state", "format: 1\nround: 2")
    code, _, error = command("site", "policy", str(site.path))
    assert code == 2
    check_output(error, "policy.yaml: round", "rounds")
