"""Runs that wait for a site's administrator: what an approval binds, the page about a request, and the commands."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.site_owners import FIRST, SECOND, key_of, prepare_owner, provision_owners, submit
from tests.refusals import Command, check_output, failed, refused
from tests.toy import Sets, make_set

from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.owner.acceptance import AcceptedRun, accept_run
from fedvisage.nvflare.owner.commands import SiteFiles, review_page
from fedvisage.nvflare.owner.requests import Request, Requests
from fedvisage.nvflare.owner.submission import NotReady, Submission

ASK = "format: 1\napprove: ask\n"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


@pytest.fixture
def site(kits: Path, sets: Sets, tmp_path: Path) -> Kit:
    """Site A, which asks its administrator about each run."""
    kit = Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit"))
    return prepare_owner(kit, sets["A"], tmp_path / "state", ASK)


@pytest.fixture
def job(kits: Path, sets: Sets, tmp_path: Path) -> Callable[..., Submission]:
    return lambda **changes: submit(kits, sets, tmp_path, **changes)


def accept(site: Kit, submission: Submission) -> AcceptedRun:
    return accept_run(site.path, site.name, own_settings(site.path), submission)


def waiting(site: Kit) -> Request:
    (request,) = SiteFiles(site.path).requests.waiting()
    return request


def test_run_waits_until_it_is_approved_and_continues_without_another_approval(
    site: Kit, job: Callable[..., Submission]
) -> None:
    for _ in range(2):
        with failed(NotReady, "administrator", "approve"):
            accept(site, job())
    assert [request.run for request in SiteFiles(site.path).requests.waiting()] == ["run-1"]
    SiteFiles(site.path).decide("run-1", "approved")
    for _ in range(2):  # the operator signs each repetition again
        assert accept(site, job()).job.run == "run-1"
    with failed(NotReady, "administrator", "approve"):
        accept(site, job(run="run-2"))


def test_operator_reads_the_reason_of_a_refusal(site: Kit, job: Callable[..., Submission]) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    SiteFiles(site.path).decide("run-1", "refused", "holidays")
    with failed(NotReady, "approve", "holidays"):
        accept(site, job())


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"training__rounds": 4}, "recipe"),
        ({"data__sites": {"A": "own", "B": "own"}}, "recipe"),
        ({"federation__quorum": 2}, "recipe"),
        ({"signer": SECOND}, "operator"),
    ],
)
def test_approval_for_another_recipe_or_operator_is_refused(
    changes: dict[str, Any], keyword: str, site: Kit, kits: Path, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, submit(kits, sets, tmp_path))
    SiteFiles(site.path).decide("run-1", "approved")
    with failed(NotReady, "another", keyword, "approve"):
        accept(site, submit(kits, sets, tmp_path, **changes))
    assert accept(site, submit(kits, sets, tmp_path)).job.run == "run-1"


def test_approval_ends_with_another_set_or_version(
    site: Kit, job: Callable[..., Submission], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    SiteFiles(site.path).decide("run-1", "approved")
    prepare_owner(site.path, make_set(tmp_path / "other", "A", 9), tmp_path / "state", ASK)
    with failed(NotReady, "another", "sets"):
        accept(site, job())
    SiteFiles(site.path).decide(waiting(site).name, "approved")
    monkeypatch.setattr("fedvisage.nvflare.owner.acceptance.VERSIONS", "fedvisage 9, NVFlare 9")
    with failed(NotReady, "another", "versions"):
        accept(site, job())


@pytest.mark.parametrize("decision", ["waiting", "refused"])
def test_request_cannot_be_exchanged_between_review_and_approval(
    decision: str, site: Kit, job: Callable[..., Submission]
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    owner = SiteFiles(site.path)
    if decision == "refused":
        owner.decide("run-1", "refused", "ask the board")
    shown = owner.requests.get("run-1")
    assert f"approve KIT {shown.name}<" in review_page(owner, "run-1")
    with failed(NotReady, "earlier", "recipe"):
        accept(site, job(training__rounds=400))
    (other,) = {request.name for request in owner.requests.find("run-1")} - {shown.name}
    with refused("run-1", shown.name, other):
        owner.decide("run-1", "approved")
    owner.decide(shown.name, "approved")
    assert accept(site, job()).job.run == "run-1"
    with failed(NotReady, "administrator"):
        accept(site, job(training__rounds=400))


COLLISION = ("69b000de9484", "20dd62a75635")
"""Two values with the same digest of 48 bits."""


def test_request_with_the_digest_of_an_approved_one_is_refused(tmp_path: Path) -> None:
    requests = Requests(tmp_path)
    first, second = (Request("run-1", {"recipe": value}, {}, (), "2026-01-01") for value in COLLISION)
    assert first.name == second.name
    with failed(NotReady, "administrator"):
        requests.require_approval(first)
    requests.decide("run-1", "approved")
    with failed(NotReady, "digest", "title"):
        requests.require_approval(second)
    assert requests.require_approval(first).decision == "approved"


def test_refusal_ends_a_run_that_was_approved(site: Kit, job: Callable[..., Submission]) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    SiteFiles(site.path).decide("run-1", "approved")
    accepted = accept(site, job())
    accepted.check_withdrawn()
    SiteFiles(site.path).decide("run-1", "refused", "consent was withdrawn")
    with failed(NotReady, "consent"):
        accepted.check_withdrawn()


@pytest.mark.parametrize(
    "changes", [{}, {"title": "another"}, {"signer": SECOND}], ids=["signature", "title", "operator"]
)
def test_no_other_request_undoes_a_refusal(changes: dict[str, Any], site: Kit, job: Callable[..., Submission]) -> None:
    """Without changes, the server leaves out the second operator's signature."""
    approved = job(second=SECOND)
    with failed(NotReady, "administrator"):
        accept(site, approved)
    owner = SiteFiles(site.path)
    owner.decide("run-1", "approved")
    running = accept(site, approved)
    owner.decide("run-1", "refused", "withdrawn")
    with failed(NotReady, "administrator"):
        accept(site, job(**changes))
    for call in (running.check_withdrawn, lambda: accept(site, approved)):
        with failed(NotReady, "refused", "withdrawn"):
            call()


def test_refusal_of_a_run_holds_for_all_its_requests_and_of_a_request_for_this_one(
    site: Kit, job: Callable[..., Submission]
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    owner = SiteFiles(site.path)
    owner.decide("run-1", "approved")
    running = accept(site, job())
    for title in ("b", "c"):
        with failed(NotReady, "administrator"):
            accept(site, job(title=title))
    owner.decide(owner.requests.waiting()[0].name, "refused", "one")
    running.check_withdrawn()
    assert len(owner.requests.waiting()) == 1
    assert len(owner.decide("run-1", "refused", "all")) == 3
    for title in ("", "b", "c"):
        with failed(NotReady, "refused", "all"):
            accept(site, job(title=title))
    with failed(NotReady, "refused", "all"):
        running.check_withdrawn()
    decided = [row["because"] for row in owner.record.read() if row["event"] == "decided"]
    assert decided == ["", "one", "all", "all", "all"]


def test_refusal_also_ends_a_run_of_this_name_that_needed_no_approval(
    site: Kit, job: Callable[..., Submission], sets: Sets, tmp_path: Path
) -> None:
    prepare_owner(site.path, sets["A"], tmp_path / "state", "format: 1")
    running, other = accept(site, job()), accept(site, job(run="run-2"))
    with refused("run-1", "approval"):
        SiteFiles(site.path).decide("run-1", "refused", "withdrawn")
    prepare_owner(site.path, sets["A"], tmp_path / "state", ASK)
    with failed(NotReady, "administrator"):
        accept(site, job())
    running.check_withdrawn()
    SiteFiles(site.path).decide("run-1", "refused", "withdrawn")
    with failed(NotReady, "refused", "withdrawn"):
        running.check_withdrawn()
    other.check_withdrawn()


def test_new_member_needs_approval_although_the_rules_suffice(
    site: Kit, job: Callable[..., Submission], kits: Path, sets: Sets, tmp_path: Path
) -> None:
    rules = f"format: 1\nmembers: {{B: '{key_of(kits, 'B')}'}}"
    prepare_owner(site.path, sets["A"], tmp_path / "state", rules)
    assert accept(site, job(run="run-1", data__sites={"A": "own", "B": "own"})).policy.pins == {"B": key_of(kits, "B")}
    with failed(NotReady, "administrator", "approve"):
        accept(site, job(run="run-2"))
    assert SiteFiles(site.path).requests.get("run-2").added == ("C",)
    SiteFiles(site.path).decide("run-2", "approved")
    assert accept(site, job(run="run-2")).job.run == "run-2"


def test_requests_that_wait_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvisage.nvflare.owner.requests.MOST", 2)
    requests = Requests(tmp_path)
    for run, reason in (("run-1", "administrator"), ("run-2", "administrator"), ("run-3", "2 runs")):
        with failed(NotReady, reason):
            requests.require_approval(Request(run, {"recipe": "1"}, {}, (), "2026-01-01"))
    assert [request.run for request in requests.waiting()] == ["run-1", "run-2"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": "run-2"}', '{"run": "run-1", "more": 1}'])
def test_damaged_request_is_refused_by_file_name(content: str, site: Kit, job: Callable[..., Submission]) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    path = SiteFiles(site.path).requests.directory / f"{waiting(site).name}.json"
    path.write_text(content)
    with refused(path.name, "delete"):
        SiteFiles(site.path).decide("run-1", "approved")


def test_file_of_another_request_or_of_an_earlier_version_is_refused_by_name(
    site: Kit, job: Callable[..., Submission]
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    owner = SiteFiles(site.path)
    path = owner.requests.directory / f"{waiting(site).name}.json"
    for name in ("run-1.json", "run-2@0123456789ab.json"):
        copy = shutil.copy(path, path.with_name(name))
        with refused(name, "earlier version", "delete"):
            owner.requests.waiting()
        Path(copy).unlink()


# The page.

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Collects the tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.attributes = set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_page_shows_a_request_without_script_and_with_every_text_escaped(
    site: Kit, job: Callable[..., Submission], kits: Path
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job(title=HOSTILE, data__target_name=HOSTILE))
    page, tags = review_page(SiteFiles(site.path), "run-1"), Tags()
    tags.feed(page)
    assert not {"script", "img", "a", "link", "iframe", "form", "object"} & tags.tags
    assert not any(name.startswith("on") or name in ("src", "href") for name in tags.attributes)
    assert "default-src 'none'" in page
    assert "&lt;script&gt;" in page
    for word in (FIRST, key_of(kits, FIRST), "FedPAD", "histogram", "sees", "infer"):
        assert word in page


def test_page_shows_the_findings_of_an_audit_and_refuses_other_files(
    site: Kit, job: Callable[..., Submission], tmp_path: Path
) -> None:
    with failed(NotReady, "administrator"):
        accept(site, job())
    attacks = [{"title": "Membership", "says": f"AUC 0.61 {HOSTILE}", "applies": True}]
    attacks += [{"title": "Tokens", "why": "no tokens", "applies": False}]
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps({"run": "simulated", "audits": attacks}))
    page, tags = review_page(SiteFiles(site.path), "run-1", audit), Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert "Membership: AUC 0.61 &lt;script&gt;" in page
    assert "Tokens" not in page
    for content in ("[]", '{"audits": [1]}', '{"audits": [{"applies": true}]}'):
        audit.write_text(content)
        with refused("audit.json", "fedvisage audit"):
            review_page(SiteFiles(site.path), "run-1", audit)


def test_commands_list_review_approve_and_refuse(
    site: Kit, job: Callable[..., Submission], kits: Path, command: Command, tmp_path: Path
) -> None:
    for run in ("run-1", "run-2"):
        with failed(NotReady, "administrator"):
            accept(site, job(run=run))
    kit = str(site.path)
    code, output, _ = command("site", "pending", kit, "--json")
    assert code == 0
    rows = json.loads(output)
    assert [(row["run"], row["operator"].split()[0]) for row in rows] == [("run-1", FIRST), ("run-2", FIRST)]
    output = command("site", "pending", kit)[1]
    assert "run: run-2" in output.splitlines()
    assert f"operator: {FIRST} {key_of(kits, FIRST)}" in output.splitlines()
    assert command("site", "review", kit, "run-1", "--out", str(tmp_path / "page.html"))[0] == 0
    assert "run-1" in (tmp_path / "page.html").read_text()
    names = [row["request"] for row in rows]
    assert command("site", "approve", kit, names[0])[1].startswith(f"approved {names[0]} ")
    assert command("site", "refuse", kit, "run-2", "--because", "too long")[1] == f"refused {names[1]}\n"
    assert command("site", "pending", kit)[1] == "no run waits for approval\n"
    code, output, _ = command("site", "log", kit, "--json")
    decided = [(row["run"], row["decision"], row["because"]) for row in json.loads(output) if row["event"] == "decided"]
    assert decided == [("run-1", "approved", ""), ("run-2", "refused", "too long")]
    for name in ("run-3", "../run-1", "RUN", "run-*", "run-1@", "run-1@000000000000", f"{names[0]}0"):
        code, _, error = command("site", "approve", kit, name)
        assert code == 2
        check_output(error, name, "pending")
    assert re.search(r"run-2", command("site", "log", kit)[1])
