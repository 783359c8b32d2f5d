"""Viewers see a federation; their own commands, the server and the sites refuse to run or stop anything for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nvflare.fuel.flare_api.api_spec import AuthorizationError
from tests.commands import output_of, refusal_of
from tests.distributed.federations import WAIT, run_through
from tests.distributed.site_owners import FIRST, SECOND, VIEWER, owners_file, provision_owners, submit
from tests.distributed.test_changing_members import federation_file
from tests.refusals import failed, refused
from tests.toy import SITES, Sets, recipe_of, tree

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.certificates import certificates_in, credentials_in
from fedvisage.nvflare.greeting import request_stop
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.joining import digest_of, files_of, finish_join, make_request
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.operator import connect_to_server
from fedvisage.nvflare.owner.policy import read_policy
from fedvisage.nvflare.owner.statement import sign_run, verify_run
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal
from fedvisage.nvflare.status import list_runs, status_of


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


def test_viewers_kit_opens_for_commands_that_look_and_for_no_others(kits: Path) -> None:
    kit = kits / "operators" / VIEWER
    assert (open_kit(kit, "viewer").kind, open_kit(kit, "viewer").name) == ("viewer", VIEWER)
    assert (open_kit(kits / "operator", "viewer").kind, open_kit(kits / "operator", "viewer").name) == (
        "operator",
        FIRST,
    )
    with refused(kit, "viewer", "operator"):
        open_kit(kit, "operator")
    with refused(kits / "sites/A", "site", "viewer"):
        open_kit(kits / "sites/A", "viewer")
    assert "neither start nor stop" in (kit / "readme.txt").read_text()


def test_commands_refuse_a_viewers_kit_before_they_connect(kits: Path, sets: Sets, tmp_path: Path) -> None:
    kit, recipe = kits / "operators" / VIEWER, tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tree(sets)))
    for words in (
        ("run", recipe, "--on", "nvflare", "--kit", kit, "--out", tmp_path / "run"),
        ("stop", "run-1", "--kit", kit),
        ("cosign", recipe, "--kit", kit, "--out", tmp_path / "second.json"),
    ):
        error = refusal_of(*words)
        assert error.place == str(kit)
        assert "viewer" in error.message
    assert not (tmp_path / "second.json").exists()


def test_sites_do_not_pin_viewers_and_refuse_runs_that_a_viewer_signed(kits: Path, sets: Sets, tmp_path: Path) -> None:
    policy = read_policy(kits / "sites" / "A", "A")
    assert policy is not None
    assert policy.operators is not None
    assert policy.operators.keys() == {FIRST, SECOND}
    root = certificates_in(credentials_in(kits / "sites/A", at_server=False).root)[0]
    with failed(NotReady, "operator"):
        verify_run(submit(kits, sets, tmp_path, signer=VIEWER), root)


def test_role_of_a_member_cannot_change(tmp_path: Path) -> None:
    provision(owners_file(), tmp_path / "kits")
    content = owners_file().model_dump()
    content["operator"][2]["role"] = "operator"
    with refused(VIEWER, "viewer", "revoke"):
        provision(FederationFile.model_validate(content), tmp_path / "kits")


def test_file_with_viewers_alone_is_refused(tmp_path: Path) -> None:
    content = owners_file().model_dump()
    content["operator"] = [{"email": VIEWER, "role": "viewer"}]
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(content))
    error = refusal_of("provision", tmp_path / "federation.yaml", tmp_path / "kits")
    assert error.place.endswith("operator")
    assert "viewers" in error.message


def test_viewer_can_make_its_own_key(tmp_path: Path) -> None:
    content = owners_file().model_dump()
    content["operator"][2]["key"] = "own"
    request = make_request(VIEWER, "viewer", tmp_path / "own")
    provision(FederationFile.model_validate(content), tmp_path / "kits", requests=[request])
    received = tmp_path / "kits/operators" / VIEWER
    assert finish_join(tmp_path / "own", received, digest_of(files_of(received))).kind == "viewer"
    printed = output_of("join", "request", VIEWER, tmp_path / "again", "--role", "viewer")
    assert "fingerprint" in printed


@pytest.fixture
def viewed(sets: Sets, tmp_path: Path) -> Iterator[tuple[Rehearsal, Path]]:
    """A running federation, and the kit of a viewer who joined it."""
    with rehearsal(tmp_path, {name: str(sets[name]) for name in SITES}) as running:
        content = federation_file(running).model_dump()
        content["operator"] = [*content["operator"], {"email": VIEWER, "role": "viewer"}]
        provision(FederationFile.model_validate(content), tmp_path / "kits")
        yield running, tmp_path / "kits/operators" / VIEWER


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.long
def test_viewer_sees_a_federation_and_can_neither_submit_nor_end_a_run(
    viewed: tuple[Rehearsal, Path], sets: Sets, tmp_path: Path
) -> None:
    running, place = viewed
    run_through(running, tree(sets, training__rounds=1), tmp_path / "run")
    (listed,) = list_runs(place, WAIT)
    assert listed.run.startswith("run-")
    status = status_of(place, WAIT)
    assert {site.name for site in status.sites} == set(SITES)
    assert {"server", "A"} & {certificate.name for certificate in status.certificates}
    viewer = open_kit(place, "viewer")
    # Our commands refuse the kit, so these calls go to NVFlare directly.
    recipe = without_local_parts(recipe_of(tree(sets, "fedpad")))
    signature = sign_run(credentials_in(place, at_server=False), "stolen", recipes.tree_of(recipe))
    write_job(tmp_path / "job", Job("stolen", recipe), SITES, signature)
    with connect_to_server(viewer, WAIT) as session:
        with pytest.raises(AuthorizationError):
            session.submit_job(str(tmp_path / "job"))
        with pytest.raises(AuthorizationError):
            session.abort_job(listed.job)
        with pytest.raises(AuthorizationError):
            session.delete_job(listed.job)
        with pytest.raises(AuthorizationError):
            session.download_job_result(listed.job, str(tmp_path / "loot"))
        with pytest.raises(AuthorizationError):
            session.shutdown("server")
    with pytest.raises(UserError, match="only operators stop runs"):
        request_stop(viewer, listed.job)
    (listed,) = list_runs(place, WAIT)
    assert listed.state == "ended"
