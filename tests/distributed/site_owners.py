"""A federation with two operators and a viewer whose kits lie on one disk, and jobs as its sites receive them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toy import SITES, Sets, recipe_of, tree

from fedvisage import recipe as recipes
from fedvisage.base.files import read_json, write_json
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.kits import OWN, Kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.owner.policy import policy_path
from fedvisage.nvflare.owner.statement import SECOND as SECOND_KEY
from fedvisage.nvflare.owner.statement import sign_run, write_second_signature
from fedvisage.nvflare.owner.submission import Submission, read_submission

FIRST, SECOND, VIEWER = "first@example.org", "second@example.org", "viewer@example.org"
KITS = {FIRST: "operator", SECOND: f"operators/{SECOND}", VIEWER: f"operators/{VIEWER}", "B": "sites/B"}


def owners_file(port: int = 8002) -> FederationFile:
    """Return the file of the federation."""
    content = {
        "server": {"host": "localhost", "port": port},
        "operator": [{"email": FIRST}, {"email": SECOND}, {"email": VIEWER, "role": "viewer"}],
        "sites": {name: {"organisation": "owner"} for name in SITES},
    }
    return FederationFile.model_validate(content)


def provision_owners(directory: Path, port: int = 8002) -> Path:
    """Make the kits."""
    provision(owners_file(port), directory)
    return directory


def key_of(kits: Path, name: str) -> str:
    """Return the fingerprint of a member's key."""
    kit = kits / KITS.get(name, f"sites/{name}")
    return fingerprint_of(certificates_in(credentials_in(kit, at_server=False).certificate)[0])


def prepare_owner(kit: Path, data: Path, state: Path, policy: str | None) -> Kit:
    """Give site A its data, its state and its rules, as its start does; None removes the rules."""
    write_json(kit / "local" / OWN, {"data": str(data), "state": str(state), "organisation": "owner"})
    state.mkdir(exist_ok=True)
    policy_path(kit).unlink(missing_ok=True)
    if policy is not None:
        policy_path(kit).write_text(policy, encoding="utf-8")
    return Kit(kit, "site", "A")


def submit(
    kits: Path,
    sets: Sets,
    place: Path,
    *,
    run: str = "run-1",
    signer: str | None = FIRST,
    second: str | None = None,
    tampered: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Submission:
    """Return a job of a recipe that one or two members signed; a lying server then changes keys of the recipe."""
    recipe = without_local_parts(recipe_of(tree(sets, "fedpad", **changes)))
    credentials = None if signer is None else credentials_in(kits / KITS[signer], at_server=False)
    signature: dict[str, Any] | None = None
    if credentials is not None:
        signature = dict(sign_run(credentials, run, recipes.tree_of(recipe)))
    if signature is not None and second is not None:
        file, other = place / "second.json", credentials_in(kits / KITS[second], at_server=False)
        write_second_signature(file, other, recipes.tree_of(recipe))
        signature[SECOND_KEY] = {key: value for key, value in read_json(file).items() if key != "recipe"}
    write_job(place / f"job-{len(list(place.glob('job-*')))}", Job(run, recipe), SITES, signature)
    newest = max(place.glob("job-*"), key=lambda path: int(path.name.removeprefix("job-")))
    submission = read_submission(newest / "app" / "config")
    for key, value in (tampered or {}).items():
        recipes.set_value(submission.tree, key, value)
    return submission
