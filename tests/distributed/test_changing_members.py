"""A federation of real processes whose members come and go, while the others' kits stay as they are."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.distributed.federations import WAIT, run_through
from tests.refusals import refused
from tests.toy import Sets, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.preparation import prepare_site
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal
from fedvisage.nvflare.status import status_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

FIRST, SECOND = "operator@localhost.org", "second@localhost.org"


def federation_file(members: Rehearsal) -> FederationFile:
    """Return the file of a rehearsal of A and B, to which C and a second operator were added."""
    sites = {name: {"organisation": f"owner_of_{name}"} for name in "ABC"}
    server = {"host": "localhost", "port": address_in(members.operator).port}
    operators = [{"email": FIRST}, {"email": SECOND}]
    return FederationFile.model_validate({"server": server, "sites": sites, "operator": operators})


def startup_files(kit: Path) -> dict[str, bytes]:
    """Return the files that a kit's owner received; a running process adds logs, stores and settings elsewhere."""
    return {path.name: path.read_bytes() for path in (kit / "startup").iterdir()}


@pytest.fixture(scope="module")
def members(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Start a federation of two, and add a third and a second operator while it is up."""
    directory = tmp_path_factory.mktemp("members")
    with rehearsal(directory, {name: str(sets[name]) for name in "AB"}) as first:
        kits = directory / "kits"
        old = [first.server.path, first.operator.path, *(kit.path for kit in first.sites.values())]
        before = [startup_files(kit) for kit in old]
        provision(federation_file(first), kits)
        assert [startup_files(kit) for kit in old] == before
        third = open_kit(kits / "sites" / "C", "site")
        prepare_site(third, str(sets["C"]), directory / "sites" / "C")
        second = open_kit(kits / "operators" / SECOND, "operator")
        grown = replace(first, sites={**first.sites, "C": third}, operator=second)
        grown.start("C")
        yield grown


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for an effect of other processes."""
    while not is_true():
        time.sleep(0.5)


def connected_sites(members: Rehearsal) -> set[str]:
    return {site.name for site in status_of(members.operator.path, WAIT).sites}


def sites_by_round(out: Path) -> list[set[str]]:
    """Return the sites that replied in each round."""
    return [set(row["replied"]) for row in read_lines(out / "rounds.jsonl")]


@pytest.mark.slow
def test_new_site_and_second_operator_take_part(members: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    run_through(members, tree(sets, training__rounds=2), tmp_path / "three")
    assert sites_by_round(tmp_path / "three") == [set("ABC")] * 2
    seen = {one.name for one in status_of(members.operator.path, WAIT).certificates}
    assert {"A", "B", "C", "localhost", SECOND} <= seen


@pytest.mark.long
def test_revoked_members_are_cut_off_and_a_renewed_site_returns(members: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    wait_until(lambda: connected_sites(members) == set("ABC"))
    kits = members.server.path.parent
    provision(federation_file(members), kits, revoke=["B", FIRST])
    shutil.copytree(kits / "updates/server", members.server.path, dirs_exist_ok=True)
    wait_until(lambda: connected_sites(members) == set("AC"))

    # The kit of C, which is new, has rules: its administrator accepts runs of the two sites that remain.
    rules = members.sites["C"].path / "local/policy.yaml"
    assert "least_sites: 3" in rules.read_text()
    rules.write_text(rules.read_text().replace("least_sites: 3", "least_sites: 2"))
    content = tree(sets, training__rounds=2)
    content["data"]["sites"].pop("B")
    run_through(members, content, tmp_path / "without")
    assert sites_by_round(tmp_path / "without") == [set("AC")] * 2
    with refused("startup/client.crt", "revoked"):
        status_of(kits / "operator", WAIT)
    wait_until(lambda: "revoked" in (members.sites["B"].path / "process.log").read_text())
    assert connected_sites(members) == set("AC"), "B does not return"
    assert refused_at_the_start(members, sets["B"])

    members.kill("B")
    provision(federation_file(members), kits, renew=["B"])
    shutil.copytree(kits / "updates/B", members.sites["B"].path, dirs_exist_ok=True)
    members.start("B")
    wait_until(lambda: connected_sites(members) == set("ABC"))
    run_through(members, tree(sets, training__rounds=1), tmp_path / "again")
    assert sites_by_round(tmp_path / "again") == [set("ABC")]


@pytest.mark.long
def test_sites_reconnect_to_a_renewed_server(members: Rehearsal) -> None:
    wait_until(lambda: connected_sites(members) == set("ABC"))
    kits = members.server.path.parent
    provision(federation_file(members), kits, renew=["server"])
    members.kill("server")
    shutil.copytree(kits / "updates/server", members.server.path, dirs_exist_ok=True)
    began = time.time()
    members.start("server")
    wait_until(lambda: connected_sites(members) == set("ABC"))
    seen = {
        site.name for site in status_of(members.operator.path, WAIT).sites if time.time() - site.seconds_ago > began
    }
    assert seen == set("ABC")


def refused_at_the_start(members: Rehearsal, data: Path) -> bool:
    """Start B by its command with a copy of the old kit, and return whether it ends with one line."""
    kit = members.server.path.parents[1] / "copy"
    shutil.copytree(members.sites["B"].path, kit, ignore=shutil.ignore_patterns(".lock", "*.log", "log.txt", "socket"))
    command = [sys.executable, "-m", "fedvisage", "site", str(kit), "--data", str(data), "--state", str(kit / "state")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    (line,) = done.stderr.splitlines()
    return done.returncode == 2 and "revoked on" in line and "client.crt" in line
