"""Credentials that do not match each other, the kit's name or today's date are refused before any connection."""

import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.federations import copy_kit
from tests.refusals import refused

from fedvisage.nvflare.certificates import check, credentials_in, expiry_of

KINDS = [("server", "localhost"), ("sites/bank", "bank"), ("operator", "operator@example.org")]


@pytest.mark.parametrize(("kit", "name"), KINDS)
def test_credentials_of_a_new_kit_pass_the_check(kit: str, name: str, own_kits: Path) -> None:
    credentials = credentials_in(own_kits / kit, at_server=kit == "server")
    check(credentials, name)
    assert timedelta(days=358) < expiry_of(credentials) - datetime.now(UTC) < timedelta(days=367), (
        "deploy.md says a year"
    )


@pytest.mark.parametrize(
    ("changed", "change", "file", "keyword"),
    [
        (["client.crt"], None, "client.crt", "missing"),
        (["client.key"], None, "client.key", "missing"),
        (["rootCA.pem"], None, "rootCA.pem", "missing"),
        (["client.key"], b"-----BEGIN PRIVATE KEY-----\nno key\n-----END PRIVATE KEY-----\n", "client.key", "key"),
        (["client.crt"], b"\x00\x01", "client.crt", "certificate"),
        (["client.key"], 0o640, "client.key", "chmod 600"),
        (["client.key"], 0o644, "client.key", "chmod 600"),
        (["client.key"], "own/sites/border", "client.key", "key"),
        (["client.crt", "client.key"], "own/sites/border", "client.crt", "border"),
        (["client.crt", "client.key"], "other/sites/bank", "client.crt", "federation"),
        (["rootCA.pem"], "other/sites/bank", "client.crt", "federation"),
    ],
)
def test_damaged_kit_is_refused_by_file_name(
    changed: list[str], change: Any, file: str, keyword: str, own_kits: Path, other_kits: Path, tmp_path: Path
) -> None:
    """Files are deleted, replaced by bytes, get another mode, or come from another kit."""
    kit = copy_kit(own_kits / "sites" / "bank", tmp_path)
    for path in (kit / "startup" / name for name in changed):
        if isinstance(change, str):
            federation, _, member = change.partition("/")
            shutil.copy((own_kits if federation == "own" else other_kits) / member / "startup" / path.name, path)
        elif isinstance(change, bytes):
            path.write_bytes(change)
        elif isinstance(change, int):
            path.chmod(change)
        else:
            path.unlink()
    with refused(kit / "startup" / file, keyword):
        check(credentials_in(kit, at_server=False), "bank")


@pytest.mark.parametrize(("days", "word"), [(400, "expired"), (-2, "clock")])
def test_certificate_outside_its_dates_is_refused(days: int, word: str, own_kits: Path) -> None:
    credentials = credentials_in(own_kits / "sites" / "bank", at_server=False)
    with refused(credentials.certificate, word):
        check(credentials, "bank", datetime.now(UTC) + timedelta(days=days))


@pytest.mark.long
def test_server_command_without_a_key_exits_with_2_and_one_line(own_kits: Path, tmp_path: Path) -> None:
    kit = copy_kit(own_kits / "server", tmp_path)
    (kit / "startup" / "server.key").unlink()
    command = [sys.executable, "-m", "fedvisage", "server", str(kit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, "")
    assert "server.key" in done.stderr
