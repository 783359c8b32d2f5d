"""The console: requests that it answers, and the server's answer to it."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.refusals import refused
from tests.report.federation_states import usual
from tests.toy import Sets, recipe_of, tree
from typer.testing import CliRunner

from fedvisage.base.errors import UserError
from fedvisage.cli import app
from fedvisage.federation.record.ledger import LedgerEntry
from fedvisage.nvflare.http_page import serve_page
from fedvisage.nvflare.outcome import LAST, RunLog, last_lines
from fedvisage.nvflare.server_program import progress
from fedvisage.nvflare.status import EVERY, HEADERS
from fedvisage.report.federation_page import page


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with serve_page("--serve", "/", lambda: page(usual(), EVERY).encode(), HEADERS, 0) as url:
        yield str(urlsplit(url).hostname), int(urlsplit(url).port or 0)


def fetch(address: tuple[str, int], path: str = "/", host: str = "", verb: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request(verb, path, headers={"Host": host or f"127.0.0.1:{address[1]}"})
    reply = connection.getresponse()
    body, policy = reply.read().decode(), str(reply.getheader("Content-Security-Policy"))
    connection.close()
    return reply.status, body, policy


def test_browser_on_this_machine_gets_the_page(address: tuple[str, int]) -> None:
    for host in ("", f"localhost:{address[1]}"):
        status, body, policy = fetch(address, host=host)
        assert status == 200
        assert "faces-0a1b2c3d4e5f" in body
        assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("path", "host", "verb", "expected"),
    [
        ("/", "evil.example:80", "GET", 421),
        ("/", "localhost", "GET", 421),
        ("/../etc/passwd", "", "GET", 404),
        ("/?a", "", "GET", 404),
        ("/", "", "POST", 501),
    ],
)
def test_other_host_path_or_verb_does_not_get_the_page(
    address: tuple[str, int], path: str, host: str, verb: str, expected: int
) -> None:
    """A page elsewhere could make a browser ask by a name that points to this machine."""
    status, body, _ = fetch(address, path, host, verb)
    assert status == expected
    assert "faces-0a1b2c3d4e5f" not in body


def test_console_listens_on_the_loopback_address_only(address: tuple[str, int]) -> None:
    assert address[0] == "127.0.0.1"
    others = {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for other in others - {"127.0.0.1"}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, address[1]), timeout=5).close()


def test_port_in_use_is_reported(address: tuple[str, int]) -> None:
    with refused("--serve", str(address[1])), serve_page("--serve", "/", bytes, HEADERS, address[1]):
        pass


def test_json_and_serve_exclude_each_other(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["status", str(tmp_path), "--json", "--serve", "8080"])
    assert isinstance(done.exception, UserError)
    assert "--serve" in done.exception.message


def test_console_gets_the_last_log_lines_and_the_spent_budget(sets: Sets, tmp_path: Path) -> None:
    recipe = recipe_of(tree(sets, "privacyface"))
    log = RunLog(tmp_path, "a-run")
    for number in range(1, 400):
        log.say(f"line {number} " + "x" * 1000)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"time": "2026')  # about to be written
    cost = {"total": {"epsilon": 1.5, "delta": 0.01, "tight_epsilon": 1.2}, "releases": [], "noise": "derived"}
    entry = LedgerEntry(1, "A", "up", "release", "centres", "centres", 8, "", cost=cost)
    (tmp_path / "ledger.jsonl").write_text(json.dumps(entry.row()) + "\n")
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{"round": 2}\n')
    answer = progress(tmp_path, recipe, "", {"after": 1, "more": True}, None)
    assert [row["round"] for row in answer["rounds"]] == [2]
    assert (answer["spent"]["epsilon"], answer["spent"]["site"]) == (1.5, "A")
    assert answer["budget"] == {"epsilon": 1000.0, "delta": 0.5}
    lines = [line["message"] for line in answer["log"]]
    assert [line.split()[1] for line in lines] == [str(number) for number in range(400 - len(lines), 400)]
    assert 1 < len(lines) <= LAST
    assert max(map(len, lines)) <= 300
    assert set(progress(tmp_path, recipe, "", {"after": 1}, None)) == {"of", "rounds"}
    assert last_lines(tmp_path / "nowhere") == []
