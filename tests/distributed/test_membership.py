"""Later provisioning: new members get kits, existing kits stay, certificates are renewed and revoked."""

import json
import shutil
import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.drivers.driver import ConnMonitor
from nvflare.fuel.f3.drivers.grpc.qq import QQ
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from tests.distributed.federations import LineReporter, make_kits, small_files
from tests.refusals import failed, refused
from tests.toy import Sets, files_below, recipe_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import write_json
from fedvisage.cli.federation import print_tables
from fedvisage.nvflare import greeting
from fedvisage.nvflare.admission import Admission, AdmissionListener
from fedvisage.nvflare.authority import FederationFile, open_authority
from fedvisage.nvflare.certificates import check, credentials_in, warning
from fedvisage.nvflare.greeting import (
    Admitted,
    Unreachable,
    address_in,
    announce_leave,
    request_admission,
    request_stop,
)
from fedvisage.nvflare.kits import Kit, open_kit, own_settings
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.node import start_server, start_site
from fedvisage.nvflare.operator import train_in_federation
from fedvisage.nvflare.outcome import left_sites, note_left
from fedvisage.nvflare.preparation import prepare_server
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.nvflare.status import CertificateStatus, Status
from fedvisage.nvflare.terminal import Terminal
from fedvisage.nvflare.watching import _log_out

FIRST, SECOND = "operator@example.org", "second@example.org"


def federation_file(**changes: Any) -> FederationFile:
    content = {
        "server": {"host": "localhost", "port": 8002, "organisation": "institute"},
        "operator": {"email": FIRST},
        "sites": {"bank": {"organisation": "bank"}, "border": {"organisation": "agency"}},
    }
    return FederationFile.model_validate(content | changes)


def file_with_phone() -> FederationFile:
    sites = {"bank": {"organisation": "bank"}, "phone": {"organisation": "maker"}}
    return federation_file(sites=sites, operator=[{"email": SECOND}, {"email": FIRST}])


@pytest.fixture(scope="module")
def first_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of a new federation."""
    directory = tmp_path_factory.mktemp("early") / "kits"
    provision(federation_file(), directory)
    return directory


@pytest.fixture
def kits(first_kits: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(first_kits, tmp_path / "kits"))


def admission(kits: Path, lines: list[str]) -> Admission:
    """Return the admission of a server that starts now."""
    started = Admission(kits / "server", lines.append)
    started.read()
    return started


def certificate(kit: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())


@pytest.mark.long
def test_new_members_get_kits_and_existing_kits_stay(kits: Path) -> None:
    before = {name: files_below(kits / name) for name in ("server", "operator", "sites/bank", "sites/border")}
    changes = provision(file_with_phone(), kits)
    assert changes.kits == {kits / "sites/phone": "phone", kits / "operators" / SECOND: SECOND}
    assert not changes.updates
    assert {name: files_below(kits / name) for name in before} == before
    for kit, kind, name in (("sites/phone", "site", "phone"), (f"operators/{SECOND}", "operator", SECOND)):
        check(credentials_in(kits / kit, at_server=False), name)
        assert open_kit(kits / kit, kind).name == name  # type: ignore[arg-type]
    root = (kits / "server/startup/rootCA.pem").read_bytes()
    assert (kits / "sites/phone/startup/rootCA.pem").read_bytes() == root
    (leaving,) = [note for note in changes.notes if "border" in note]
    assert "--revoke border" in leaving
    assert not provision(file_with_phone(), kits).kits, "once more changes nothing"


def test_root_key_is_private_and_the_authority_keeps_no_members_key(kits: Path) -> None:
    key = kits / "authority" / "root.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    kept = b"".join(path.read_bytes() for path in key.parent.rglob("*") if path.is_file())
    for own in kits.rglob("startup/*.key"):
        assert own.read_bytes() not in kept
    assert kept.count(b"PRIVATE KEY-----") == 2, "beginning and end of the root's"


def test_renewal_is_a_certificate_for_the_key_in_the_kit(kits: Path) -> None:
    before, old = files_below(kits / "sites/bank"), certificate(kits / "sites/bank")
    changes = provision(federation_file(), kits, renew=["bank", "server"])
    update = kits / "updates/bank"
    assert changes.updates == {update: "bank", kits / "updates/server": "localhost"}
    assert set(files_below(update)) == {"startup/client.crt"}
    assert set(files_below(kits / "updates/server")) == {"startup/server.crt"}
    assert files_below(kits / "sites/bank") == before
    for name, kit in (("bank", "sites/bank"), ("server", "server")):
        shutil.copytree(kits / "updates" / name, kits / kit, dirs_exist_ok=True)
    check(credentials_in(kits / "sites/bank", at_server=False), "bank")
    check(credentials_in(kits / "server", at_server=True), "localhost")
    new = certificate(kits / "sites/bank")
    assert new.serial_number != old.serial_number
    assert new.subject == old.subject
    assert [one.value for one in new.extensions] == [one.value for one in old.extensions]
    assert timedelta(days=359) < new.not_valid_after_utc - datetime.now(UTC) < timedelta(days=361)


@pytest.mark.long
def test_revoked_member_is_refused_until_renewed(kits: Path) -> None:
    lines: list[str] = []
    lost, border = certificate(kits / "sites/bank"), certificate(kits / "sites/border")
    at_server = admission(kits, lines)
    assert at_server.refusal(lost) is None
    changes = provision(federation_file(), kits, revoke=["bank"])
    assert list(changes.updates) == [kits / "updates/server"]
    assert set(files_below(kits / "updates/server")) == {"startup/revoked.pem"}
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    at_server.follow()
    for _ in range(2):
        assert "revoked" in str(at_server.refusal(lost))
    assert len(lines) == 1
    assert "bank" in lines[0]
    assert at_server.refusal(border) is None
    assert any("--renew bank" in note for note in provision(federation_file(), kits).notes)
    provision(federation_file(), kits, renew=["bank"])
    again = certificate(kits / "updates/bank")
    provision(federation_file(), kits, revoke=["border"])
    assert not (kits / "updates/border").exists()
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    at_server.follow()
    assert [bool(at_server.refusal(one)) for one in (lost, again, border)] == [True, False, True]


def number_in(path: Path) -> int:
    listed = x509.load_pem_x509_crl(path.read_bytes())
    return listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def test_older_or_missing_list_is_refused_by_name(kits: Path, tmp_path: Path) -> None:
    path, new = kits / "server/startup/revoked.pem", kits / "updates/server/startup/revoked.pem"
    assert number_in(path) == 0, "a new kit ships with list 0"
    admission(kits, [])
    for number, name in enumerate(("bank", "border"), start=1):
        provision(federation_file(), kits, revoke=[name])
        assert number_in(new) == number
        shutil.copyfile(new, tmp_path / f"list-{number}")
        shutil.copyfile(new, path)
    lost, lines = [certificate(kits / "sites" / name) for name in ("bank", "border")], list[str]()
    at_server = admission(kits, lines)

    shutil.copyfile(tmp_path / "list-1", path)  # a restored backup, while the server runs and at its start
    at_server.follow()
    at_server.follow()
    assert len(lines) == 1
    assert "is list 1" in lines[0]
    assert "older than list 2" in lines[0]
    assert all(at_server.refusal(one) for one in lost), "the newer list stays in force"
    with refused("server/startup/revoked.pem", "list 1", "list 2", "updates/server"):
        admission(kits, [])

    path.unlink()
    at_server.follow()
    assert all(at_server.refusal(one) for one in lost)
    with refused("server/startup/revoked.pem", "missing", "list 2"):
        admission(kits, [])
    shutil.copyfile(new, path)
    assert all(admission(kits, []).refusal(one) for one in lost)


def unnumbered(kits: Path, name: str) -> bytes:
    """Return a list as it was made before lists had numbers, with one member revoked."""
    authority, now = open_authority(kits / "authority"), datetime.now(UTC).replace(microsecond=0)
    entry = x509.RevokedCertificateBuilder(certificate(kits / "sites" / name).serial_number, now).build()
    builder = x509.CertificateRevocationListBuilder(authority.root.subject, now, authority.root.not_valid_after_utc)
    return builder.add_revoked_certificate(entry).sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_list_is_enforced_although_the_disk_has_no_room_to_remember_it(kits: Path) -> None:
    lines, path = list[str](), kits / "server/startup/revoked.pem"
    at_server = admission(kits, lines)
    provision(federation_file(), kits, revoke=["bank"])
    shutil.copyfile(kits / "updates/server/startup/revoked.pem", path)
    with small_files():
        at_server.follow()
    assert "restart" in lines[-1]
    assert at_server.refusal(certificate(kits / "sites/bank"))
    assert number_in(at_server.memory) != number_in(path)
    at_server.follow()
    assert number_in(at_server.memory) == number_in(path)


def follow_and_leave(at_server: Admission, place: Path, barrier: threading.Barrier, site: str) -> None:
    barrier.wait()
    at_server.follow()
    note_left(place, site, "stopped")


def test_threads_that_read_a_list_and_note_sites_at_once_do_not_disturb_each_other(kits: Path, tmp_path: Path) -> None:
    first = (kits / "server/startup/revoked.pem").read_bytes()
    provision(federation_file(), kits, revoke=["bank"])
    for turn in range(20):
        (kits / "server/startup/revoked.pem").write_bytes(first)
        (kits / "server/local/revoked.pem").unlink(missing_ok=True)
        at_server, place = admission(kits, []), tmp_path / str(turn)
        shutil.copyfile(kits / "updates/server/startup/revoked.pem", kits / "server/startup/revoked.pem")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(partial(follow_and_leave, at_server, place, threading.Barrier(2)), "AB"))
        assert at_server.refusal(certificate(kits / "sites/bank"))
        assert set(left_sites(place)) == {"A", "B"}


def test_kit_without_a_numbered_list_works_with_a_note(kits: Path) -> None:
    path, lines = kits / "server/startup/revoked.pem", list[str]()
    path.unlink()
    book = kits / "authority/members.json"
    old = {key: value for key, value in json.loads(book.read_text()).items() if key != "revocations"}
    book.write_text(json.dumps(old))
    at_server = admission(kits, lines)
    at_server.follow()
    assert len(lines) == 1
    assert "predates numbered lists" in lines[0]
    path.write_bytes(unnumbered(kits, "bank"))
    at_server.follow()
    assert "has no number" in lines[-1]
    assert at_server.revoked() == {}
    assert at_server.refusal(certificate(kits / "sites/bank"))
    assert set(at_server.revoked()) == {"bank"}, "after its attempt to connect"
    provision(federation_file(), kits, revoke=["border"])
    assert number_in(kits / "updates/server/startup/revoked.pem") == 1
    path.write_bytes((kits / "updates/server/startup/revoked.pem").read_bytes())
    assert admission(kits, []).refusal(certificate(kits / "sites/border"))
    path.write_bytes(unnumbered(kits, "bank"))
    with refused("server/startup/revoked.pem", "list 0", "list 1"):
        admission(kits, [])


def test_list_memory_of_another_federation_is_refused_until_it_is_deleted(kits: Path) -> None:
    copy_update(revoke(kits, "bank"), kits)
    admission(kits, [])
    other = make_kits(kits.parent / "other")
    for name in ("revoked.pem", "rootCA.pem"):
        shutil.copyfile(other / "server/startup" / name, kits / "server/startup" / name)
    with refused("server/local/revoked.pem", "not signed", "delete it", "new federation"):
        admission(kits, [])
    (kits / "server/local/revoked.pem").unlink()
    admission(kits, [])


def revoke(kits: Path, *names: str) -> Path:
    """Revoke members, and return the new list."""
    provision(federation_file(), kits, revoke=names)
    return kits / "updates/server/startup/revoked.pem"


def copy_update(revocations: Path, kits: Path) -> None:
    """Copy a list to the server's kit, as its owner does."""
    shutil.copyfile(revocations, kits / "server/startup/revoked.pem")


def serials_in(path: Path) -> set[int]:
    return {entry.serial_number for entry in x509.load_pem_x509_crl(path.read_bytes())}


def signed_list(kits: Path, number: int | None, serials: Iterable[int], *, days: float = 0.0) -> bytes:
    """Return a list that the federation's authority signed, with any content; ``days`` moves its date."""
    authority = open_authority(kits / "authority")
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    builder = x509.CertificateRevocationListBuilder(authority.root.subject, when, authority.root.not_valid_after_utc)
    if number is not None:
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for serial in serials:
        builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, when).build())
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_provision_takes_over_the_list_that_a_restored_members_file_lacks(kits: Path, tmp_path: Path) -> None:
    """The founder restores ``members.json`` from a copy made before bank was revoked, then revokes border."""
    lost = [certificate(kits / "sites" / name) for name in ("bank", "border")]
    book = kits / "authority/members.json"
    shutil.copyfile(book, tmp_path / "older")
    copy_update(revoke(kits, "bank"), kits)
    admission(kits, [])
    shutil.copyfile(tmp_path / "older", book)
    changes = provision(federation_file(), kits, revoke=["border"])
    (warning,) = [note for note in changes.notes if note.startswith("warning: ")]
    assert all(word in warning for word in ("members.json", "older than list 1", "bank", "updates/server"))
    newest = kits / "updates/server/startup/revoked.pem"
    assert number_in(newest) == 2
    copy_update(newest, kits)
    assert all(admission(kits, []).refusal(each) for each in lost)
    assert not any(note.startswith("warning") for note in provision(federation_file(), kits).notes), (
        "nothing is left to warn of"
    )


def test_restored_members_file_without_a_later_certificate_still_revokes_it(kits: Path, tmp_path: Path) -> None:
    """bank's renewed certificate is issued and revoked after the copy, so no member's record has it any more."""
    book = kits / "authority/members.json"
    shutil.copyfile(book, tmp_path / "older")
    provision(federation_file(), kits, renew=["bank"])
    later = certificate(kits / "updates/bank").serial_number
    revoke(kits, "bank")
    shutil.copyfile(tmp_path / "older", book)
    assert later in serials_in(revoke(kits, "border"))
    assert later in serials_in(revoke(kits, "bank")), "the authority keeps it"


def test_list_that_lacks_an_earlier_revocation_is_refused_whatever_its_number_and_date(
    kits: Path, tmp_path: Path
) -> None:
    """The founder's copy of the first list is lost, too, so ``provision`` cannot warn."""
    bank, border = (certificate(kits / "sites" / name) for name in ("bank", "border"))
    book, path = kits / "authority/members.json", kits / "server/startup/revoked.pem"
    shutil.copyfile(book, tmp_path / "older")
    shutil.move(kits / "server", tmp_path / "server")  # on another machine
    provision(federation_file(), kits, revoke=["bank"])
    kept = tmp_path / "server/startup/revoked.pem"
    shutil.copyfile(kits / "updates/server/startup/revoked.pem", kept)
    running = admission(tmp_path, [])
    shutil.rmtree(kits / "updates")
    shutil.copyfile(tmp_path / "older", book)
    changes = provision(federation_file(), kits, revoke=["border"])
    assert not any(note.startswith("warning") for note in changes.notes)
    assert number_in(kits / "updates/server/startup/revoked.pem") == 1, "the number of another list"
    shutil.copyfile(kits / "updates/server/startup/revoked.pem", kept)
    running.follow()
    assert running.refusal(bank), "the list before it stays in force"
    assert running.refusal(border) is None
    place = (
        "server/startup/revoked.pem",
        "lacks 1",
        f"{bank.serial_number:x}",
        "local/revoked.pem",
        "provision again",
    )
    with refused(*place):
        admission(tmp_path, [])
    # The remedy in the message works: the server's copy goes to the founder, who provisions again.
    shutil.copyfile(tmp_path / "server/local/revoked.pem", kits / "updates/server/startup/revoked.pem")
    provision(federation_file(), kits, revoke=["border"])
    shutil.copyfile(kits / "updates/server/startup/revoked.pem", kept)
    running.follow()
    assert running.refusal(bank)
    assert running.refusal(border)
    assert not path.exists()


@pytest.mark.parametrize(("number", "days"), [(2, 1.0), (3, 1.0), (2**60, 400.0), (None, 1.0), (1, 1.0)], ids=str)
def test_list_without_one_serial_is_refused_with_any_number(number: int | None, days: float, kits: Path) -> None:
    serials = [certificate(kits / "sites" / name).serial_number for name in ("bank", "border")]
    path = kits / "server/startup/revoked.pem"
    path.write_bytes(signed_list(kits, 2, serials))
    admission(kits, [])
    path.write_bytes(signed_list(kits, number, serials[:1], days=days))
    with refused("server/startup/revoked.pem", "list 2" if (number or 0) < 2 else f"{serials[1]:x}"):
        admission(kits, [])
    path.write_bytes(signed_list(kits, 2, [*serials, 7], days=1.0))
    assert admission(kits, []).refusal(certificate(kits / "sites/border")), "a list with more is accepted"


def test_revocations_persist_with_another_state_directory(kits: Path, tmp_path: Path) -> None:
    server, border = open_kit(kits / "server", "server"), certificate(kits / "sites/border")
    first = shutil.copyfile(kits / "server/startup/revoked.pem", tmp_path / "list-0")
    prepare_server(server, tmp_path / "runs")
    copy_update(revoke(kits, "border"), kits)
    assert admission(kits, []).refusal(border)
    prepare_server(server, tmp_path / "new")
    shutil.copyfile(first, server.path / "startup/revoked.pem")
    with refused("server/startup/revoked.pem", "list 0", "list 1"):
        admission(kits, [])


@pytest.mark.parametrize("chosen", ["runs", "new"])
def test_memory_of_an_earlier_version_moves_into_the_kit(chosen: str, kits: Path, tmp_path: Path) -> None:
    """An earlier version stored it beside the runs; the first start may name another directory."""
    server, lines = open_kit(kits / "server", "server"), list[str]()
    first = shutil.copyfile(kits / "server/startup/revoked.pem", tmp_path / "list-0")
    (tmp_path / "runs").mkdir()
    root = x509.load_pem_x509_certificate((server.path / "startup/rootCA.pem").read_bytes())
    memory = {root.fingerprint(hashes.SHA256()).hex(): [1, "2026-11-01T00:00:00+00:00"]}
    write_json(tmp_path / "runs/revocations.json", memory)
    write_json(server.own, own_settings(server.path) | {"state": str(tmp_path / "runs")})
    prepare_server(server, tmp_path / chosen)
    with refused("server/startup/revoked.pem", "list 0", "list 1 of 2026-11-01"):
        admission(kits, [])
    copy_update(revoke(kits, "bank"), kits)
    started = Admission(server.path, lines.append)
    started.read()
    started.read()
    assert [line for line in lines if "local/revocations.json" in line and "local/revoked.pem" in line] == lines
    assert serials_in(server.path / "local/revoked.pem") == {certificate(kits / "sites/bank").serial_number}
    shutil.copyfile(first, server.path / "startup/revoked.pem")
    with refused("server/startup/revoked.pem", "list 0", "list 1"):
        admission(kits, [])


def test_damaged_list_memory_is_refused_by_name(kits: Path) -> None:
    admission(kits, [])
    (kits / "server/local/revoked.pem").write_text("nothing")
    with refused("server/local/revoked.pem", "not contain a list"):
        admission(kits, [])


def test_server_names_revoked_members_until_they_connect_with_a_renewed_certificate(kits: Path) -> None:
    old = certificate(kits / "sites/bank")
    copy_update(revoke(kits, "bank", FIRST), kits)
    server = admission(kits, [])
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert server.revoked() == {"bank": today, FIRST: today}, "without a connection since its start"
    provision(federation_file(), kits, renew=["bank"])
    server.enter(certificate(kits / "updates/bank"))
    assert server.refusal(old), "the lost kit stays refused"
    assert server.revoked() == {FIRST: today}
    copy_update(revoke(kits, "bank"), kits)
    server.follow()
    assert set(server.revoked()) == {"bank", FIRST}, "revoked again"


def test_stolen_kit_is_revoked_and_renewed_at_once(kits: Path) -> None:
    lost = certificate(kits / "sites/bank")
    provision(federation_file(), kits, revoke=["bank"], renew=["bank"])
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    at_server = admission(kits, [])
    update = kits / "updates/bank"
    assert at_server.revoked() == {}, "the list does not name it"
    assert at_server.refusal(lost)
    assert at_server.refusal(certificate(update)) is None
    assert certificate(update).public_key() != lost.public_key()
    assert stat.S_IMODE((update / "startup/client.key").stat().st_mode) == 0o600
    shutil.copytree(update, kits / "sites/bank", dirs_exist_ok=True)
    check(credentials_in(kits / "sites/bank", at_server=False), "bank")


@pytest.mark.long
def test_list_with_a_foreign_signature_is_refused_and_the_list_in_force_stays(kits: Path, own_kits: Path) -> None:
    lines: list[str] = []
    provision(federation_file(), kits, revoke=["bank"])
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    at_server, lost = admission(kits, lines), certificate(kits / "sites/bank")
    foreign = make_kits(kits.parent / "foreign")
    port = address_in(open_kit(foreign / "operator", "operator")).port
    file = federation_file(server={"host": "localhost", "port": port})
    provision(file, foreign, revoke=["bank"])
    path = kits / "server/startup/revoked.pem"
    for wrong, word in (
        ((foreign / "updates/server/startup/revoked.pem").read_bytes(), "signed"),
        (b"nothing", "not contain a list"),
    ):
        path.write_bytes(wrong)
        lines.clear()
        at_server.follow()
        assert any(word in line and str(path) in line for line in lines)
        assert at_server.refusal(lost), "the list before it stays in force"
        with refused(path, word):
            admission(kits, [])


@pytest.mark.parametrize(
    ("changes", "options", "place"),
    [
        ({"server": {"host": "elsewhere", "organisation": "institute"}}, {}, "server.host"),
        ({"server": {"host": "localhost", "port": 8003, "organisation": "institute"}}, {}, "server.port"),
        ({"name": "another"}, {}, "name"),
        ({"sites": {"bank": {"organisation": "other"}}}, {}, "bank"),
        ({}, {"revoke": ["nobody"]}, "nobody"),
        ({}, {"renew": ["nobody"]}, "nobody"),
        ({}, {"revoke": ["server"]}, "--revoke"),
        ({"sites": {"phone": {"organisation": "maker"}}}, {"renew": ["phone"]}, "phone"),
    ],
)
def test_change_of_a_fixed_value_is_refused(
    changes: dict[str, Any], options: dict[str, Any], place: str, kits: Path
) -> None:
    before = files_below(kits)
    with refused(place):
        provision(federation_file(**changes), kits, **options)
    assert files_below(kits) == before


def test_foreign_directory_and_damaged_authority_are_refused(kits: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with refused("other", "federation"):
        provision(federation_file(), tmp_path / "other")
    shutil.copy(kits / "sites/bank/startup/client.key", kits / "authority/root.key")
    with refused("authority/root.key", "root.pem"):
        provision(federation_file(), kits)
    write_json(kits / "authority/members.json", {"members": 3})
    with refused("kits/authority", "damaged"):
        provision(federation_file(), kits)


def test_repeated_name_is_refused() -> None:
    for changes in (
        {"sites": {"localhost": {"organisation": "bank"}}},
        {"operator": [{"email": FIRST}, {"email": FIRST}]},
    ):
        with pytest.raises(ValueError, match="named twice"):
            federation_file(**changes)


@pytest.mark.parametrize(("days", "words"), [(300, None), (335, "bank"), (359, "bank")])
def test_expiry_warning_begins_thirty_days_ahead(days: int, words: str | None, first_kits: Path) -> None:
    credentials = credentials_in(first_kits / "sites/bank", at_server=False)
    line = warning(credentials, "bank", datetime.now(UTC) + timedelta(days=days))
    assert (line is None) == (words is None)
    if line is not None:
        assert str(credentials.certificate) in line
        assert "--renew bank" in line
        assert f"in {359 - days} days" in line


def test_no_certificate_outlives_the_root(tmp_path: Path) -> None:
    provision(federation_file(), tmp_path / "kits", root_days=10)
    kit = tmp_path / "kits/sites/bank"
    root = x509.load_pem_x509_certificate((kit / "startup/rootCA.pem").read_bytes())
    assert certificate(kit).not_valid_after_utc == root.not_valid_after_utc
    notes = provision(federation_file(), tmp_path / "kits").notes
    assert any("root ends" in note for note in notes)


@pytest.mark.long
def test_servers_sites_and_runs_warn_of_expiry_at_their_start(sets: Sets, tmp_path: Path) -> None:
    port, lines = free_port(), list[str]()
    provision(federation_file(server={"host": "localhost", "port": port}), tmp_path / "kits", root_days=10)
    terminal, kits = Terminal(lines.append, lines.append), tmp_path / "kits"
    with refused("nowhere", "directory"):
        start_site(kits / "sites/bank", Path("nowhere"), None, None, terminal, verbose=False)
    with socket.create_server(("", port)), failed(RunFailed, f"port {port}"):
        start_server(kits / "server", None, None, None, terminal, verbose=False)
    reporter = LineReporter()
    with failed(RunFailed, "did not answer within"):
        train_in_federation(
            recipe_of(tree(sets)), tmp_path, reporter, open_kit(kits / "operator", "operator"), wait=0.5
        )
    lines = [line for line in (*lines, *reporter.lines) if "in 9 days" in line]
    assert [Path(line.split()[0]).relative_to(kits).parts[0] for line in lines] == ["sites", "server", "operator"]


def test_status_names_certificates_that_end_soon(capsys: pytest.CaptureFixture[str]) -> None:
    seen = (
        CertificateStatus("bank", "2026-12-01T10:00:00+00:00", 10.2),
        CertificateStatus("phone", "2027-09-01", 280.0),
    )
    print_tables(Status((), (), seen))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "certificate" in line]
    assert "bank" in line
    assert "2026-12-01" in line


class IgnoringMonitor(ConnMonitor):  # type: ignore[misc]
    """Accepts connections and ignores their messages."""

    def state_change(self, connection: Any) -> None:
        return None


@pytest.fixture
def listener(kits: Path) -> Iterator[tuple[Path, int]]:
    """A server's listener, without a federation behind it."""
    startup, port, driver = kits / "server/startup", free_port(), AdmissionListener()
    driver.register_conn_monitor(IgnoringMonitor())
    AdmissionListener.admission = admission(kits, [])
    params = {
        "scheme": "grpc",
        "host": "localhost",
        "port": port,
        "secure": True,
        "ca_cert": str(startup / "rootCA.pem"),
        "server_cert": str(startup / "server.crt"),
        "server_key": str(startup / "server.key"),
    }
    connector = ConnectorInfo("guarded", driver, params, Mode.PASSIVE, 0, 0, False, threading.Event())
    thread = threading.Thread(target=driver.listen, args=(connector,), daemon=True)
    thread.start()
    yield kits, port
    driver.shutdown()
    thread.join(20)
    AdmissionListener.admission = None


def kit_at_port(port: int, kit: Path, kind: Any) -> Kit:
    """Return a kit whose server listens on a port of this test."""
    for name in ("fed_client.json", "fed_admin.json"):
        path = kit / "startup" / name
        if path.exists():
            path.write_text(path.read_text().replace("8002", str(port)))
    return open_kit(kit, kind)


def request_until_answered(kit: Kit) -> Admitted:
    while True:
        try:
            return request_admission(kit)
        except Unreachable:
            continue  # it has not begun to listen


def test_answer_to_admission_depends_on_the_certificate(listener: tuple[Path, int]) -> None:
    kits, port = listener
    provision(file_with_phone(), kits)
    bank, operator = kit_at_port(port, kits / "sites/bank", "site"), kit_at_port(port, kits / "operator", "operator")
    assert request_until_answered(bank).until == {}, "sites learn nothing of others"
    assert request_until_answered(operator).until["bank"] == certificate(bank.path).not_valid_after_utc
    provision(federation_file(), kits, revoke=["bank", FIRST])
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    for kit in (bank, operator):
        with refused("startup/client.crt", "revoked"):
            request_admission(kit)
    assert AdmissionListener.admission is not None
    assert AdmissionListener.admission.refused == 2
    second = kit_at_port(port, kits / "operators" / SECOND, "operator")
    assert set(request_until_answered(second).revoked) == {"bank", FIRST}
    assert request_until_answered(kit_at_port(port, kits / "sites/border", "site")).revoked == {}, (
        "sites learn nothing of others"
    )
    assert request_until_answered(kit_at_port(port, kits / "sites/border", "site")).until == {}


def test_members_with_other_versions_are_reported_at_both_ends(
    listener: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kits, port = listener
    bank, operator = kit_at_port(port, kits / "sites/bank", "site"), kit_at_port(port, kits / "operator", "operator")
    assert not list(request_until_answered(bank).differences())
    with monkeypatch.context() as earlier:
        earlier.setattr(greeting, "VERSIONS", "fedvisage 0.0.1, NVFlare 2.9.0")
        (at_site,) = request_until_answered(bank).differences()
    (at_operator,) = request_until_answered(operator).differences()
    assert at_site.startswith(f"server runs {greeting.VERSIONS}, this machine fedvisage 0.0.1, NVFlare 2.9.0; ")
    assert at_operator.startswith(f"bank runs fedvisage 0.0.1, NVFlare 2.9.0, this machine {greeting.VERSIONS}; ")
    border = kit_at_port(port, kits / "sites/border", "site")
    assert set(request_until_answered(border).versions) == {"server"}, "sites learn nothing of others"
    assert AdmissionListener.admission is not None
    assert any("bank runs fedvisage 0.0.1" in text for text in AdmissionListener.admission._reported)


def test_server_remembers_who_stopped_a_job_and_sites_cannot_stop_one(listener: tuple[Path, int]) -> None:
    kits, port = listener
    bank, operator = kit_at_port(port, kits / "sites/bank", "site"), kit_at_port(port, kits / "operator", "operator")
    request_until_answered(operator)
    request_stop(operator, "job-1")
    assert request_until_answered(operator).stopped == {"job-1": operator.name}
    with refused("startup/client.crt", "operators"):
        request_stop(bank, "job-2")
    assert request_until_answered(operator).stopped == {"job-1": operator.name}
    assert request_until_answered(bank).stopped == {}, "sites learn nothing of runs"
    AdmissionListener.admission = admission(kits, [])
    assert request_until_answered(operator).stopped == {"job-1": operator.name}, (
        "a restart of the server changes nothing"
    )
    AdmissionListener.admission.jobs = lambda: ["job-3"]
    jobs = [request_until_answered(kit).jobs for kit in (operator, bank)]
    assert jobs == [frozenset({"job-3"}), frozenset()]


def test_stopping_site_is_dropped_by_its_name_and_token(listener: tuple[Path, int]) -> None:
    kits, port = listener
    bank = kit_at_port(port, kits / "sites/bank", "site")
    request_until_answered(bank)
    dropped = list[tuple[str, ...]]()
    assert AdmissionListener.admission is not None
    AdmissionListener.admission.dropped = lambda *arguments: dropped.append(arguments)
    announce_leave(bank, "a token")
    assert dropped == [("bank", "was stopped at the site", "a token")]
    announce_leave(bank, "")
    assert len(dropped) == 1


class Registered:
    """NVFlare's server with two processes of bank, one after the other in its place, and a run of the second."""

    def __init__(self) -> None:
        self.clients = {token: SimpleNamespace(name=name) for token, name in (("new", "bank"), ("other", "border"))}
        self.client_manager = SimpleNamespace(get_clients=lambda: self.clients)
        self.engine = SimpleNamespace(run_processes={"job": {"_participants": dict(self.clients)}})

    def logout_client(self, token: str) -> None:
        del self.clients[token]


@pytest.mark.parametrize(("token", "stays"), [("old", True), ("new", False), ("", False)])
def test_site_leaves_its_runs_unless_another_process_has_its_place(token: str, stays: bool, tmp_path: Path) -> None:
    server = Registered()
    _log_out(tmp_path, server, "bank", "was stopped at the site", token)
    assert set(server.clients) == ({"new", "other"} if stays else {"other"})
    assert left_sites(tmp_path / "job/fedvisage") == ({} if stays else {"bank": "was stopped at the site"})


def test_site_is_logged_out_although_its_note_cannot_be_written(tmp_path: Path) -> None:
    server = Registered()
    (tmp_path / "job").touch()  # in place of the directory
    with pytest.raises(OSError, match="job"):
        _log_out(tmp_path, server, "bank", "was revoked", "")
    assert set(server.clients) == {"other"}


def test_all_revoked_members_are_cut_and_logged_out_although_one_note_fails(
    kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(federation_file(), kits, revoke=["bank", "border"])
    copy_update(kits / "updates/server/startup/revoked.pem", kits)
    at_server = admission(kits, [])
    monkeypatch.setattr(AdmissionListener, "admission", at_server)
    cut, logged_out, failures = list[str](), list[str](), iter([OSError("the disk is full")])

    def log_out(name: str, reason: str) -> None:
        for failure in failures:
            raise failure
        logged_out.append(f"{name} {reason.split(' on ')[0]}")

    at_server.dropped = log_out
    driver = AdmissionListener()
    for name in ("bank", "border", "operator"):
        kit = kits / ("operator" if name == "operator" else f"sites/{name}")
        driver._shown[name] = SimpleNamespace(cancel=partial(cut.append, name)), certificate(kit)
    with pytest.raises(OSError, match="full"):
        driver.cut()
    assert (cut, logged_out) == (["bank", "border"], [])
    driver._shown.clear()  # the streams have ended
    driver.cut()
    assert logged_out == ["bank was revoked", "border was revoked"]


def open_streams(kit: Kit, port: int, count: int) -> Iterator[Any]:
    """Open streams with one certificate, one connection each, and send nothing."""
    startup = kit.path / "startup"
    root, key, own = ((startup / name).read_bytes() for name in ("rootCA.pem", "client.key", "client.crt"))
    for number in range(count):
        options = [("grpc.channel_id", number)]  # not one connection for all
        channel = grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root, key, own), options)
        yield channel, StreamerStub(channel).Stream(QQ())


@pytest.mark.long
def test_one_certificate_cannot_take_all_streams(listener: tuple[Path, int]) -> None:
    """The oldest of its streams are closed: a member whose connections died can always open a new one."""
    kits, port = listener
    bank, border = kit_at_port(port, kits / "sites/bank", "site"), kit_at_port(port, kits / "sites/border", "site")
    request_until_answered(bank)
    flood, over = list(open_streams(bank, port, 105)), threading.Semaphore(0)
    assert request_until_answered(border).until == {}
    for _, stream in flood:
        if not stream.add_callback(over.release):
            over.release()
    assert all(over.acquire(timeout=600) for _ in range(105 - AdmissionListener.streams_each))
    assert sum(stream.is_active() for _, stream in flood) == AdmissionListener.streams_each
    for channel, _ in flood:
        channel.close()


def test_kit_of_the_server_has_the_numbers_of_streams(tmp_path: Path) -> None:
    server = {"host": "localhost", "port": 8002, "streams": 2000}
    provision(federation_file(server=server), tmp_path / "kits")
    settings = own_settings(tmp_path / "kits/server")
    assert (settings["streams"], settings["streams_each"]) == ("2000", "16")
    assert "streams" not in own_settings(tmp_path / "kits/sites/bank")
