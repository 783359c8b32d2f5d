"""Members with keys of their own: requests, kits without a key, and the refusal of hostile requests and kits."""

import base64
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import AttributeOID, NameOID
from tests.commands import output_of, refusal_of
from tests.distributed.federations import run_through
from tests.distributed.test_changing_members import federation_file as rehearsed_file
from tests.distributed.test_changing_members import sites_by_round
from tests.refusals import refused
from tests.toy import Sets, files_below, tree

from fedvisage.nvflare.authority import FederationFile, open_authority
from fedvisage.nvflare.certificates import certificates_in, check, credentials_in, fingerprint_of, signing_key
from fedvisage.nvflare.joining import JoinRequest, digest_of, files_of, finish_join, make_request, read_request
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.owner.policy import read_policy
from fedvisage.nvflare.owner.statement import sign_run, verify_run
from fedvisage.nvflare.owner.submission import Submission
from fedvisage.nvflare.preparation import prepare_site
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

OPERATOR = "operator@example.org"


def content_of_file() -> dict[str, Any]:
    """Return a federation whose operator and two of three sites make their own keys."""
    return {
        "server": {"host": "localhost", "port": 8002},
        "operator": {"email": OPERATOR, "key": "own"},
        "sites": {
            "bank": {"organisation": "bank", "key": "own"},
            "border": {"organisation": "agency"},
            "phone": {"organisation": "maker", "key": "own"},
        },
    }


FEDERATION = FederationFile.model_validate(content_of_file())


def key_in(directory: Path) -> rsa.RSAPrivateKey:
    key = load_pem_private_key((directory / "startup/client.key").read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


def fingerprint(directory: Path) -> str:
    """Return the fingerprint of the private key in a directory, without its request or certificate."""
    public = key_in(directory).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(public).hexdigest()}"


def certificate(kit: Path) -> x509.Certificate:
    return certificates_in(kit / "startup/client.crt")[0]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that was provisioned with the requests of bank and the operator; phone's is to come."""
    place = tmp_path_factory.mktemp("own")
    requests = [make_request("bank", "site", place / "bank"), make_request(OPERATOR, "operator", place / "operator")]
    provision(FEDERATION, place / "kits", requests=requests)
    return place


@pytest.fixture
def place(first: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, with the directories of the members and ``kits``, that of the founder."""
    return Path(shutil.copytree(first, tmp_path / "copy"))


def finish(place: Path, kit: str = "sites/bank", member: str = "bank") -> Path:
    received = place / "kits" / kit
    return finish_join(place / member, received, digest_of(files_of(received))).path


def test_finished_kits_pass_the_checks_of_the_start(place: Path, sets: Sets) -> None:
    bank, operator = finish(place), finish(place, "operator", "operator")
    check(credentials_in(bank, at_server=False), "bank")
    check(credentials_in(operator, at_server=False), OPERATOR)
    policy, made_by_founder = read_policy(bank, "bank"), place / "kits/sites/border"
    assert policy is not None
    prepare_site(open_kit(bank, "site"), str(sets["A"]))
    assert open_kit(operator, "operator").name == OPERATOR
    credentials = credentials_in(operator, at_server=False)
    assert signing_key(credentials).private_numbers() == key_in(operator).private_numbers()
    root = certificates_in(made_by_founder / "startup/rootCA.pem")[0]
    signature = sign_run(credentials, "run-1", {"method": "fedpad"})
    signer = verify_run(Submission("run-1", {"method": "fedpad"}, signature), root)
    assert signer is not None
    assert policy.operators == {OPERATOR: fingerprint_of(signer)} == {OPERATOR: fingerprint(operator)}


def test_private_key_is_readable_by_its_owner_alone_and_in_no_file_of_the_founder(place: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_request("phone", "site", tmp_path / "phone")
    finally:
        os.umask(before)
    provision(FEDERATION, place / "kits", requests=[read_request(tmp_path / "phone/request.csr")])
    assert (tmp_path / "phone").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "phone/startup/client.key").stat().st_mode & 0o777 == 0o600
    for directory, kit in ((place / "bank", "sites/bank"), (tmp_path / "phone", "sites/phone")):
        body = (directory / "startup/client.key").read_text().splitlines()[1]
        assert not [path for path, content in files_below(place / "kits").items() if body.encode() in content]
        assert body not in (directory / "request.csr").read_text()
        assert not list((place / "kits" / kit).rglob("*.key"))


def test_authority_copies_nothing_but_name_and_key_from_a_request(place: Path) -> None:
    own, usual = certificate(place / "kits/sites/bank"), certificate(place / "kits/sites/border")
    assert fingerprint_of(own) == fingerprint(place / "bank")
    assert [(attribute.oid, attribute.value) for attribute in own.subject] == [
        (NameOID.COMMON_NAME, "bank"),
        (NameOID.ORGANIZATION_NAME, "bank"),
    ]
    assert [(each.oid, each.critical) for each in own.extensions] == [
        (each.oid, each.critical) for each in usual.extensions
    ]
    recorded = open_authority(place / "kits/authority").members["bank"].issued
    assert [issued.certificate for issued in recorded] == [own]


def test_kits_pin_known_keys_and_the_names_of_members_whose_keys_come_later(place: Path, tmp_path: Path) -> None:
    border = read_policy(place / "kits/sites/border", "border")
    assert border is not None
    assert border.operators == {OPERATOR: fingerprint(place / "operator")}
    assert border.members == {"bank": fingerprint(place / "bank"), "phone": "any"}
    assert border.least_sites == 3
    before = files_below(place / "kits/sites/border")
    changes = provision(FEDERATION, place / "kits", requests=[make_request("phone", "site", tmp_path / "phone")])
    assert changes.kits == {place / "kits/sites/phone": "phone"}
    phone = read_policy(place / "kits/sites/phone", "phone")
    assert phone is not None
    assert phone.members == {"bank": fingerprint(place / "bank"), "border": fingerprint(place / "kits/sites/border")}
    assert files_below(place / "kits/sites/border") == before


def test_members_without_a_request_get_no_kit_and_a_note(tmp_path: Path) -> None:
    changes = provision(FEDERATION, tmp_path / "kits")
    assert changes.kits == {tmp_path / "kits/server": "localhost", tmp_path / "kits/sites/border": "border"}
    assert [note.split()[0] for note in changes.notes if "--sign" in note] == ["bank", OPERATOR, "phone"]
    policy = read_policy(tmp_path / "kits/sites/border", "border")
    assert policy is not None
    assert policy.operators == {OPERATOR: "any"}, "not every operator that the authority certifies"


Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def small_key(bits: int = 2048, exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, bits)


def huge_key() -> rsa.RSAPrivateKey:
    """Return a key of 8,676 bits from two Mersenne primes; making a random one takes long."""
    p, q, e = 2**4423 - 1, 2**4253 - 1, 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPublicNumbers(e, p * q)
    private = rsa.RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), numbers)
    return private.private_key(unsafe_skip_rsa_key_validation=True)


def csr(
    key: Key,
    name: str = "bank",
    role: str | None = "site",
    *further: x509.NameAttribute[str],
    extension: x509.ExtensionType | None = None,
    password: bytes | None = None,
) -> bytes:
    """Return a request as an attacker with a key could make it."""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False), *further]
    if role is not None:
        subject.insert(1, x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    builder = x509.CertificateSigningRequestBuilder(x509.Name(subject))
    if extension is not None:
        builder = builder.add_extension(extension, critical=True)
    if password is not None:
        builder = builder.add_attribute(AttributeOID.CHALLENGE_PASSWORD, password)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def private_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def with_other_name(request: bytes) -> bytes:
    """Return the request with another name, and the old signature."""
    changed = x509.load_pem_x509_csr(request).public_bytes(Encoding.DER).replace(b"bank", b"bonk")
    return x509.load_der_x509_csr(changed).public_bytes(Encoding.PEM)


ORGANISATION = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "bank")


@pytest.mark.parametrize(
    ("make", "keyword"),
    [
        (lambda _: b"", "request"),
        (lambda _: b"\x00\xff" * 100, "request"),
        (lambda _: b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "request"),
        (lambda _: bytes(1 << 15), "limit"),
        (private_pem, "private"),
        (lambda key: csr(key) + private_pem(key), "private"),
        (lambda _: csr(ec.generate_private_key(ec.SECP256R1())), "RSA"),
        (lambda _: csr(ed25519.Ed25519PrivateKey.generate()), "RSA"),
        (lambda _: csr(small_key(1024)), "RSA"),
        (lambda _: csr(small_key(exponent=3)), "RSA"),
        (lambda _: csr(huge_key()), "RSA"),
        (lambda key: with_other_name(csr(key)), "signed"),
        (lambda key: csr(key, role=None), "role"),
        (lambda key: csr(key, role="server"), "role"),
        (lambda key: csr(key, role="project_admin"), "role"),
        (lambda key: csr(key, "bank", "site", ORGANISATION), "alone"),
        (lambda key: csr(key, extension=x509.BasicConstraints(ca=True, path_length=None)), "alone"),
        (lambda key: csr(key, extension=x509.SubjectAlternativeName([x509.DNSName("localhost")])), "alone"),
        (lambda key: csr(key, password=b"secret"), "alone"),
    ],
)
def test_hostile_request_is_refused(make: Callable[[Any], bytes], keyword: str, first: Path, tmp_path: Path) -> None:
    path = tmp_path / "request.csr"
    path.write_bytes(make(key_in(first / "bank")))
    with refused(path, keyword):
        read_request(path)


def test_request_with_changed_bytes_is_refused(first: Path, tmp_path: Path) -> None:
    der = x509.load_pem_x509_csr((first / "bank/request.csr").read_bytes()).public_bytes(Encoding.DER)
    for position in range(0, len(der), 7):
        changed = bytearray(der)
        changed[position] ^= 1 << position % 8
        text = base64.encodebytes(bytes(changed)).decode()
        path = tmp_path / "request.csr"
        path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n")
        with refused(path):
            read_request(path)


def test_request_with_a_long_name_is_refused_without_a_warning(first: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="length"):
        (tmp_path / "request.csr").write_bytes(csr(key_in(first / "bank"), "n" * 3000))
    with warnings.catch_warnings(action="error"), refused("request.csr", "name"):
        read_request(tmp_path / "request.csr")


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_request_that_is_no_regular_file_is_refused(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "request.csr").symlink_to(path)
    with refused(tmp_path / "request.csr", "regular"):
        read_request(tmp_path / "request.csr")


@pytest.mark.parametrize(
    ("name", "role", "keyword"),
    [
        ("border", "site", "own"),
        ("fork", "site", "fork"),
        ("localhost", "site", "localhost"),
        ("bank", "operator", "operator"),
        (OPERATOR, "site", "site"),
        ("../bank", "site", "../bank"),
        ("bank\n\x1b[2J", "site", "bank"),
        ("b\N{CYRILLIC SMALL LETTER A}nk", "site", "site"),
    ],
)
def test_request_of_a_member_that_the_file_lacks_is_refused(
    name: str, role: str, keyword: str, first: Path, tmp_path: Path
) -> None:
    (tmp_path / "request.csr").write_bytes(csr(key_in(first / "bank"), name, role))
    before = files_below(first / "kits")
    with refused("request.csr", keyword) as caught:
        provision(FEDERATION, first / "kits", requests=[read_request(tmp_path / "request.csr")])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    assert files_below(first / "kits") == before


def test_refused_request_leaves_no_new_federation(first: Path, tmp_path: Path) -> None:
    (tmp_path / "request.csr").write_bytes(csr(key_in(first / "bank"), "fork"))
    with refused("request.csr", "fork"):
        provision(FEDERATION, tmp_path / "kits", requests=[read_request(tmp_path / "request.csr")])
    assert not (tmp_path / "kits").exists()


def request_with(key: rsa.RSAPrivateKey, place: Path, name: str = "bank", role: str = "site") -> JoinRequest:
    path = place / f"{len(list(place.iterdir()))}.csr"
    path.write_bytes(csr(key, name, role))
    return read_request(path)


def test_key_that_was_certified_before_is_refused(place: Path, tmp_path: Path) -> None:
    requests = {
        "bank": read_request(place / "bank/request.csr"),  # once more
        OPERATOR: request_with(key_in(place / "operator"), tmp_path, "phone"),  # another member's
        "border": request_with(key_in(place / "kits/sites/border"), tmp_path, "phone"),  # one that the founder made
    }
    for owner, request in requests.items():
        with refused(request.path, owner):
            provision(FEDERATION, place / "kits", requests=[request])


def test_request_is_not_signed_again_after_its_revocation(place: Path) -> None:
    provision(FEDERATION, place / "kits", revoke=["bank"])
    shutil.move(place / "kits/sites/bank", place / "old")
    with refused("bank/request.csr", "certified", "bank"):
        provision(FEDERATION, place / "kits", requests=[read_request(place / "bank/request.csr")])


def test_second_key_is_refused_until_the_first_is_revoked(place: Path, tmp_path: Path) -> None:
    request = make_request("bank", "site", place / "again")
    with refused(request.path, "--revoke"):
        provision(FEDERATION, place / "kits", requests=[request])
    with refused("sites/bank", "move"):
        provision(FEDERATION, place / "kits", revoke=["bank"], requests=[request])
    assert open_authority(place / "kits/authority").members["bank"].holding, "a refused call revokes nothing"
    shutil.move(place / "kits/sites/bank", tmp_path / "old")
    changes = provision(FEDERATION, place / "kits", revoke=["bank"], requests=[request])
    assert changes.kits == {place / "kits/sites/bank": "bank"}
    old, new = open_authority(place / "kits/authority").members["bank"].issued
    assert (old.revoked is None, new.revoked is None) == (False, True)
    listed = x509.load_pem_x509_crl((place / "kits/updates/server/startup/revoked.pem").read_bytes())
    assert [(entry.serial_number, len(entry.extensions)) for entry in listed] == [(old.certificate.serial_number, 0)]
    check(credentials_in(finish(place, member="again"), at_server=False), "bank")


def test_two_requests_with_one_name_or_one_key_are_refused(place: Path, tmp_path: Path) -> None:
    key = small_key()
    for other in (request_with(key, tmp_path, "bank"), request_with(small_key(), tmp_path, "phone")):
        phone = request_with(key, tmp_path, "phone")
        with refused(phone.path, other.path.name):
            provision(FEDERATION, place / "kits", requests=[other, phone])


def test_renewal_keeps_the_own_key_and_a_revoked_own_key_is_not_replaced_by_the_founder(place: Path) -> None:
    bank = finish(place)
    provision(FEDERATION, place / "kits", renew=["bank"])
    assert set(files_below(place / "kits/updates/bank")) == {"startup/client.crt"}
    shutil.copytree(place / "kits/updates/bank", bank, dirs_exist_ok=True)
    check(credentials_in(bank, at_server=False), "bank")
    with refused("bank", "--sign"):
        provision(FEDERATION, place / "kits", revoke=["bank"], renew=["bank"])
    provision(FEDERATION, place / "kits", revoke=["bank"])
    assert any("--sign" in note for note in provision(FEDERATION, place / "kits").notes if note.startswith("bank"))
    with refused("bank", "--sign"):
        provision(FEDERATION, place / "kits", renew=["bank"])


@pytest.mark.parametrize(
    ("name", "role", "place", "keyword"),
    [
        ("bank", "server", "--role", "server"),
        ("../bank", "site", "NAME", "'../bank'"),
        ("bank\n", "site", "NAME", "letters"),
        ("Server", "site", "NAME", "'Server'"),
        ("", "site", "NAME", "letters"),
        ("b" * 65, "site", "NAME", "64"),
        (OPERATOR, "site", "NAME", "letters"),
        ("bank", "operator", "NAME", "e-mail"),
        (f"{'o' * 60}@example.org", "operator", "NAME", "64"),
        (f"{OPERATOR}\n", "operator", "NAME", "e-mail"),
    ],
)
def test_name_that_no_member_can_have_makes_no_directory(
    name: str, role: str, place: str, keyword: str, tmp_path: Path
) -> None:
    with refused(place, keyword):
        make_request(name, role, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, partial(Path.symlink_to, target="/nowhere")])
def test_request_is_not_written_into_an_existing_place(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "place")
    with refused(tmp_path / "place", "exists"):
        make_request("bank", "site", tmp_path / "place")
    assert files_below(tmp_path) in ({}, {"place": b""})


def add_key(kit: Path, place: Path) -> None:
    shutil.copy(place / "bank/startup/client.key", kit / "startup")


def add_link(kit: Path, place: Path) -> None:
    (kit / "local/more").symlink_to(place / "bank/startup/client.key")


def add_large_file(kit: Path, _: Path) -> None:
    (kit / "large").touch()
    os.truncate(kit / "large", 1 << 40)


def take_startup_of(kit: str, names: tuple[str, ...], at: Path, place: Path) -> None:
    for name in names:
        shutil.copy(place / kit / "startup" / name, at / "startup")


def take_root_of_another(kit: Path, place: Path) -> None:
    provision(FEDERATION, place / "other")
    shutil.copy(place / "other/sites/border/startup/rootCA.pem", kit / "startup")


def rename(kit: Path, _: Path) -> None:
    path = kit / "startup/fed_client.json"
    path.write_text(path.read_text().replace('"bank"', '"phone"'))


@pytest.mark.parametrize(
    ("change", "file", "keyword"),
    [
        (add_key, "client.key", "others"),
        (add_link, "local/more", "link"),
        (add_large_file, "large", "limit"),
        (partial(take_startup_of, "kits/sites/border", ("client.crt",)), "bank/startup/client.key", "key"),
        (take_root_of_another, "startup/client.crt", "federation"),
        (rename, "sites/bank", "'phone'"),
    ],
)
def test_kit_that_does_not_belong_to_the_request_is_refused(
    change: Callable[[Path, Path], None], file: str, keyword: str, place: Path
) -> None:
    change(place / "kits/sites/bank", place)
    before = files_below(place / "bank")
    with refused(file, keyword):
        finish(place)
    assert files_below(place / "bank") == before


def test_kit_of_another_digest_is_refused(place: Path) -> None:
    kit = place / "kits/sites/bank"
    digest = digest_of(files_of(kit))
    for path in sorted(path for path in kit.rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with refused(kit, digest):
            finish_join(place / "bank", kit, digest)
        path.write_bytes(content)
    (kit / "local/readme.txt").touch()
    with refused(kit, digest):
        finish_join(place / "bank", kit, digest)
    (kit / "local/readme.txt").unlink()
    finish_join(place / "bank", kit, digest)


@pytest.mark.parametrize("make", [Path.touch, partial(Path.symlink_to, target="/nowhere")])
def test_finish_overwrites_no_file_and_can_be_repeated(make: Callable[[Path], None], place: Path) -> None:
    make(place / "bank/readme.txt")
    with refused("bank/readme.txt", "exists"):
        finish(place)
    assert not (place / "bank/local").exists()
    (place / "bank/readme.txt").unlink()
    key = (place / "bank/startup/client.key").read_bytes()
    files = files_below(finish(place))
    assert files_below(finish(place)) == files
    assert files["startup/client.key"] == key
    assert files.keys() == {*files_below(place / "kits/sites/bank"), "startup/client.key", "request.csr"}


def test_finish_refuses_a_directory_without_request_or_key(place: Path) -> None:
    with refused(place / "kits", "join request"):
        finish(place, member="kits")
    (place / "bank/startup/client.key").chmod(0o644)
    with refused("startup/client.key", "chmod 600"):
        finish(place)


def test_key_in_the_file_is_own_or_founder(tmp_path: Path) -> None:
    content = content_of_file()
    content["sites"]["bank"]["key"] = "mine"
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(content))
    error = refusal_of("provision", tmp_path / "federation.yaml", tmp_path / "kits")
    assert error.place.endswith("sites.bank.key")
    assert "own" in error.message


def test_commands_make_a_request_sign_it_and_finish_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("federation.yaml").write_text(yaml.safe_dump(content_of_file()))
    printed = output_of("join", "request", "bank", "bank")
    assert fingerprint(Path("bank")) in printed
    assert "bank/request.csr" in printed
    sign = ("provision", "federation.yaml", "kits", "--sign", "bank/request.csr")
    assert refusal_of(*sign).place == "--fingerprint"
    wrong = refusal_of(*sign, "--fingerprint", f"sha256:{'0' * 64}")
    assert wrong.place == "bank/request.csr"
    assert fingerprint(Path("bank")) in wrong.message
    assert not Path("kits").exists()
    signed = output_of(*sign, "--fingerprint", fingerprint(Path("bank")))
    digest = digest_of(files_of(Path("kits/sites/bank")))
    assert f"{digest}\n" in signed
    finished = output_of("join", "finish", "bank", "kits/sites/bank", "--digest", digest)
    assert finished.startswith("bank ")
    assert fingerprint(Path("bank")) in output_of("site", "policy", "bank")


@pytest.fixture
def members(sets: Sets, tmp_path: Path) -> Iterator[Rehearsal]:
    """A running federation of two, which C joins with its own key."""
    with rehearsal(tmp_path, {name: str(sets[name]) for name in "AB"}) as running:
        content = rehearsed_file(running).model_dump()
        content["sites"]["C"]["key"] = "own"
        request = make_request("C", "site", tmp_path / "C")
        provision(FederationFile.model_validate(content), tmp_path / "kits", requests=[request])
        received = tmp_path / "kits/sites/C"
        third = finish_join(tmp_path / "C", received, digest_of(files_of(received)))
        prepare_site(third, str(sets["C"]), tmp_path / "sites/C")
        grown = replace(running, sites={**running.sites, "C": third})
        grown.start("C")
        yield grown


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.long
def test_site_with_its_own_key_trains_in_a_federation(members: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    run_through(members, tree(sets, training__rounds=1), tmp_path / "run")
    assert sites_by_round(tmp_path / "run") == [set("ABC")]
