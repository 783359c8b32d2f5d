"""A kit whose papers do not belong together, to its name or to this day is refused before anything connects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.distributed.papers import copy_of
from tests.refusals import refused

from fedvisage.nvflare.certificates import check, credentials_in, expiry_of

KINDS = [("server", "localhost"), ("sites/bank", "bank"), ("operator", "operator@example.org")]


@pytest.mark.parametrize(("kit", "name"), KINDS)
def test_credentials_of_a_new_kit_pass_the_check(kit: str, name: str, own_kits: Path) -> None:
    papers = credentials_in(own_kits / kit, at_server=kit == "server")
    check(papers, name)
    assert timedelta(days=358) < expiry_of(papers) - datetime.now(UTC) < timedelta(days=367), "deploy.md says a year"


def lose_certificate(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.crt").unlink()


def lose_key(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.key").unlink()


def lose_root(kit: Path, own: Path, other: Path) -> None:
    (kit / "rootCA.pem").unlink()


def spoil_key(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.key").write_text("-----BEGIN PRIVATE KEY-----\nnothing\n-----END PRIVATE KEY-----\n")


def spoil_certificate(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.crt").write_bytes(b"\x00\x01")


def open_key_to_the_group(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.key").chmod(0o640)


def open_key_to_all(kit: Path, own: Path, other: Path) -> None:
    (kit / "client.key").chmod(0o644)


def take_key_of_border(kit: Path, own: Path, other: Path) -> None:
    shutil.copy(own / "sites" / "border" / "startup" / "client.key", kit)


def take_all_of_border(kit: Path, own: Path, other: Path) -> None:
    for name in ("client.crt", "client.key"):
        shutil.copy(own / "sites" / "border" / "startup" / name, kit)


def take_all_of_another_federation(kit: Path, own: Path, other: Path) -> None:
    for name in ("client.crt", "client.key"):
        shutil.copy(other / "sites" / "bank" / "startup" / name, kit)


def take_root_of_another_federation(kit: Path, own: Path, other: Path) -> None:
    shutil.copy(other / "sites" / "bank" / "startup" / "rootCA.pem", kit)


@pytest.mark.parametrize(
    ("deed", "file", "keyword"),
    [
        (lose_certificate, "client.crt", "missing"),
        (lose_key, "client.key", "missing"),
        (lose_root, "rootCA.pem", "missing"),
        (spoil_key, "client.key", "key"),
        (spoil_certificate, "client.crt", "certificate"),
        (open_key_to_the_group, "client.key", "chmod 600"),
        (open_key_to_all, "client.key", "chmod 600"),
        (take_key_of_border, "client.key", "key"),
        (take_all_of_border, "client.crt", "border"),
        (take_all_of_another_federation, "client.crt", "federation"),
        (take_root_of_another_federation, "client.crt", "federation"),
    ],
)
def test_damaged_kit_is_refused_by_file_name(
    deed: Callable[[Path, Path, Path], None], file: str, keyword: str, own_kits: Path, other_kits: Path, tmp_path: Path
) -> None:
    kit = copy_of(own_kits / "sites" / "bank", tmp_path)
    deed(kit / "startup", own_kits, other_kits)
    with refused(kit / "startup" / file, keyword):
        check(credentials_in(kit, at_server=False), "bank")


@pytest.mark.parametrize(("days", "word"), [(400, "expired"), (-2, "clock")])
def test_certificate_outside_its_dates_is_refused(days: int, word: str, own_kits: Path) -> None:
    papers = credentials_in(own_kits / "sites" / "bank", at_server=False)
    with refused(papers.certificate, word):
        check(papers, "bank", datetime.now(UTC) + timedelta(days=days))


def test_server_command_without_a_key_exits_with_2_and_one_line(own_kits: Path, tmp_path: Path) -> None:
    kit = copy_of(own_kits / "server", tmp_path)
    (kit / "startup" / "server.key").unlink()
    command = [sys.executable, "-m", "fedvisage", "server", str(kit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines()), done.stdout) == (2, 1, "")
    assert "server.key" in done.stderr
