"""Sites that require two operators: the second one's signature, and runs and files that are refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.commands import output_of, refusal_of
from tests.distributed.site_owners import FIRST, SECOND, VIEWER, key_of, prepare_owner, provision_owners, submit
from tests.refusals import failed, refused
from tests.toy import Sets, quiet_reporter, recipe_of, tree

from fedvisage import recipe as recipes
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Reporter
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of
from fedvisage.nvflare.job import open_at_operator, without_local_parts
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.owner import statement
from fedvisage.nvflare.owner.acceptance import AcceptedRun, accept_run
from fedvisage.nvflare.owner.record import SiteRecord
from fedvisage.nvflare.owner.requests import Requests
from fedvisage.nvflare.owner.statement import read_second_signature, verify_second
from fedvisage.nvflare.owner.submission import NotReady, Submission
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

TWO = "format: 1\nsignatures: 2"
KIT_OF_SECOND = f"operators/{SECOND}"

Owner = Callable[[str], Kit]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


@pytest.fixture
def owner(kits: Path, sets: Sets, tmp_path: Path) -> Owner:
    """Return site A with these rules."""
    kit = Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit"))
    return lambda policy: prepare_owner(kit, sets["A"], tmp_path / "state", policy)


def travelling_tree(sets: Sets, **changes: Any) -> dict[str, Any]:
    return recipes.tree_of(without_local_parts(recipe_of(tree(sets, "fedpad", training__rounds=3, **changes))))


def accept(site: Kit, submission: Submission) -> AcceptedRun:
    return accept_run(site.path, site.name, own_settings(site.path), submission)


def test_run_with_two_signatures_is_accepted_and_recorded_with_both_operators(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    site = owner(TWO)
    assert accept(site, submit(kits, sets, tmp_path, second=SECOND)).job.run == "run-1"
    (row,) = SiteRecord(site.path, tmp_path / "state").read()
    assert row["operator"] == f"{FIRST} and {SECOND}"


@pytest.mark.parametrize("second", [None, FIRST], ids=["none", "the same operator"])
def test_one_operator_does_not_suffice(
    second: str | None, kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "signatures", "cosign"):
        accept(owner(TWO), submit(kits, sets, tmp_path, second=second))


@pytest.mark.parametrize("second", [VIEWER, "B"])
@pytest.mark.parametrize("policy", [TWO, "format: 1"])
def test_second_signature_of_another_member_is_refused(
    second: str, policy: str, kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "second", "operator's"):
        accept(owner(policy), submit(kits, sets, tmp_path, second=second))


def test_second_operator_must_be_among_the_operators_of_the_rules(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    with failed(NotReady, "signatures", SECOND):
        accept(owner(f"{TWO}\noperators: {{{FIRST}: any}}"), submit(kits, sets, tmp_path, second=SECOND))
    pinned = f"{TWO}\noperators: {{{FIRST}: any, {SECOND}: '{key_of(kits, FIRST)}'}}"
    with failed(NotReady, "signatures", "key"):
        accept(owner(pinned), submit(kits, sets, tmp_path, second=SECOND))


def test_second_signature_of_another_federation_is_refused(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    others = provision_owners(tmp_path_factory.mktemp("others") / "kits")
    (tmp_path / "theirs").mkdir()
    theirs = submit(others, sets, tmp_path / "theirs", second=SECOND)
    ours = submit(kits, sets, tmp_path, second=SECOND)
    assert ours.signature is not None
    assert theirs.signature is not None
    mixed = {**ours.signature, statement.SECOND: theirs.signature[statement.SECOND]}
    with failed(NotReady, "second", "match"):
        accept(owner(TWO), replace(ours, signature=mixed))


def test_second_signature_of_another_recipe_is_refused(kits: Path, owner: Owner, sets: Sets, tmp_path: Path) -> None:
    few, many = (submit(kits, sets, tmp_path, second=SECOND, training__rounds=rounds) for rounds in (1, 9))
    assert few.signature is not None
    assert many.signature is not None
    mixed = {**many.signature, statement.SECOND: few.signature[statement.SECOND]}
    with failed(NotReady, "second", "match"):
        accept(owner(TWO), replace(many, signature=mixed))


@pytest.mark.parametrize(
    "second", [[], "text", {}, {"time": 1, "credential": "00"}, {"time": "2026-01-01", "credential": "zz"}]
)
def test_malformed_second_signature_is_refused(
    second: Any, kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    submission = submit(kits, sets, tmp_path)
    assert submission.signature is not None
    with failed(NotReady, "second", "match"):
        accept(owner(TWO), replace(submission, signature={**submission.signature, statement.SECOND: second}))


def test_run_with_the_first_operators_signature_in_both_places_is_refused(
    kits: Path, owner: Owner, sets: Sets, tmp_path: Path
) -> None:
    """The signature of a run is about another statement than that of a recipe, so neither replaces the other."""
    submission = submit(kits, sets, tmp_path)
    assert submission.signature is not None
    with failed(NotReady, "second", "match"):
        copied = {**submission.signature, statement.SECOND: dict(submission.signature)}
        accept(owner(TWO), replace(submission, signature=copied))


def test_approval_holds_for_both_operators(kits: Path, owner: Owner, sets: Sets, tmp_path: Path) -> None:
    site = owner("format: 1\napprove: ask")
    with failed(NotReady, "approve"):
        accept(site, submit(kits, sets, tmp_path, second=SECOND))
    requests = Requests(tmp_path / "state")
    bound = requests.get("run-1").bound["operator"]
    assert bound == f"{FIRST} {key_of(kits, FIRST)}, {SECOND} {key_of(kits, SECOND)}"
    requests.decide("run-1", "approved")
    accept(site, submit(kits, sets, tmp_path, second=SECOND))
    with failed(NotReady, "operator", "approve"):
        accept(site, submit(kits, sets, tmp_path))


@pytest.mark.parametrize("method", ["fedpad", "fedfr"])
def test_command_signs_the_recipe_that_the_other_operators_run_submits(
    method: str, kits: Path, sets: Sets, tmp_path: Path
) -> None:
    recipe, second = tmp_path / "recipe.yaml", tmp_path / "second.json"
    recipe.write_text(yaml.safe_dump(tree(sets, method, runtime__workers=2)))
    output_of("cosign", recipe, "training.rounds=3", "--kit", kits / KIT_OF_SECOND, "--out", second)
    own = credentials_in(kits / "operator", at_server=False)

    class Submitted(Exception):
        """The run is about to be submitted."""

    def submit_recipe(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        submitted = recipes.tree_of(without_local_parts(setup.recipe))
        assert read_second_signature(second, own, submitted).keys() == {"time", "credential"}
        assert submitted["training"]["rounds"] == 3
        raise Submitted

    content = tree(sets, method, training__rounds=3)
    request = Request(
        recipe_of(content), tmp_path / "run", tmp_path / "cache", training=submit_recipe, opening=open_at_operator
    )
    with pytest.raises(Submitted):
        run(request, quiet_reporter())
    text = second.read_text()
    assert str(sets["A"]) not in text, "paths of this machine stay here"
    assert str(sets["U"]) not in text


def test_signature_of_another_recipe_is_refused_with_the_keys_that_differ(
    kits: Path, sets: Sets, tmp_path: Path
) -> None:
    second, own = tmp_path / "second.json", credentials_in(kits / "operator", at_server=False)
    statement.write_second_signature(
        second, credentials_in(kits / KIT_OF_SECOND, at_server=False), travelling_tree(sets)
    )
    with refused(second, "recipe", "runtime.seed"):
        read_second_signature(second, own, travelling_tree(sets, runtime__seed=5))
    with refused(second, "own"):
        other = credentials_in(kits / KIT_OF_SECOND, at_server=False)
        read_second_signature(second, other, travelling_tree(sets))
    write_json(second, read_json(second) | {"credential": "00"})
    with refused(second, "signature"):
        read_second_signature(second, own, travelling_tree(sets))
    second.write_text("[]")
    with refused(second):
        read_second_signature(second, own, travelling_tree(sets))


@pytest.mark.parametrize(("days", "valid"), [(6.9, True), (7.1, False), (-1, False)])
def test_second_signature_is_valid_for_seven_days(
    days: float, valid: bool, kits: Path, sets: Sets, tmp_path: Path
) -> None:
    submission = submit(kits, sets, tmp_path, second=SECOND)
    root = certificates_in(credentials_in(kits / "sites/A", at_server=False).root)[0]
    now = datetime.now(UTC) + timedelta(days=days)
    if valid:
        signer = verify_second(submission, root, now)
        assert signer is not None
        assert fingerprint_of(signer) == key_of(kits, SECOND)
    else:
        with failed(NotReady, "second", "7", "days"):
            verify_second(submission, root, now)


def test_option_belongs_to_a_federation(tmp_path: Path, sets: Sets) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree(sets)))
    error = refusal_of("run", tmp_path / "recipe.yaml", "--cosigned", tmp_path / "second.json")
    assert error.place == "--cosigned"
