"""Damaged kits: each is refused in one line that names the file."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.distributed.federations import copy_kit
from tests.refusals import refused
from tests.toy import Sets

from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import REVOKED, check, credentials_in
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.preparation import prepare_server, prepare_site


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("damage", [replace_by_pipe, make_huge])
@pytest.mark.parametrize("name", ["client.crt", "client.key", "rootCA.pem"])
def test_pipe_or_huge_file_as_credential_is_refused(
    damage: Callable[[Path], None], name: str, own_kits: Path, tmp_path: Path
) -> None:
    kit = copy_kit(own_kits / "sites" / "bank", tmp_path)
    damage(kit / "startup" / name)
    with refused(kit / "startup" / name):
        check(credentials_in(kit, at_server=False), "bank")


def test_key_too_short_for_tls_is_refused(own_kits: Path, tmp_path: Path) -> None:
    """A key of 1,024 bits: the files match each other, and TLS refuses them."""
    kit, now = copy_kit(own_kits / "sites" / "bank", tmp_path), datetime.now(UTC)
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank")])
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 7, now - timedelta(1), now + timedelta(90))
    pem = certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    for file in ("client.crt", "rootCA.pem"):
        (kit / "startup" / file).write_bytes(pem)
    plain = serialization.NoEncryption()
    key_bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (kit / "startup" / "client.key").write_bytes(key_bytes)
    with refused("startup/client.crt", "key"):
        check(credentials_in(kit, at_server=False), "bank")


def test_kit_without_its_local_directory_is_refused(own_kits: Path, tmp_path: Path) -> None:
    kit = copy_kit(own_kits / "sites" / "bank", tmp_path)
    (kit / "local").rename(tmp_path / "lost")
    with refused("kit/local", "missing"):
        open_kit(kit, "site")


@pytest.mark.parametrize("content", [{"components": None}, {"components": [7]}, {"components": [{}]}, {}])
def test_malformed_resources_are_refused(
    content: dict[str, object], own_kits: Path, tmp_path: Path, sets: Sets
) -> None:
    for name in ("sites/bank", "server"):
        kit = copy_kit(own_kits / name, tmp_path / name.replace("/", "-"))
        path = kit / "local" / "resources.json"
        path.write_text(json.dumps(content))
        opened = open_kit(kit, "server" if name == "server" else "site")
        start = partial(prepare_server, opened) if name == "server" else partial(prepare_site, opened, str(sets["A"]))
        with refused("local/resources.json", "damaged"):
            start()


@pytest.mark.parametrize("damage", [replace_by_pipe, make_huge])
def test_pipe_or_huge_file_as_revocation_list_is_refused(
    damage: Callable[[Path], None], own_kits: Path, tmp_path: Path
) -> None:
    kit = copy_kit(own_kits / "server", tmp_path)
    (kit / "startup" / REVOKED).touch()
    damage(kit / "startup" / REVOKED)
    with refused(kit / "startup" / REVOKED):
        Admission(kit, lambda text: None).read()
