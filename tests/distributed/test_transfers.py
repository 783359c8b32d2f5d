"""Files between an operator and a server, with NVFlare's console and the replies of a dishonest server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.fuel.flare_api.api_spec import InternalError
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client import api as console
from nvflare.fuel.hci.cmd_arg_utils import split_to_args
from tests.distributed.federations import copy_kit
from tests.refusals import failed

from fedvisage.base.errors import RunFailed
from fedvisage.nvflare import operator
from fedvisage.nvflare.greeting import Admitted
from fedvisage.nvflare.kits import open_kit

JOB, TRANSFER = "4f9a6c1e-2d7b-4b3a-9c55-0a6f6e1d2c3b", "0d1f6c52-8a94-4c1b-b3de-5f6a7b8c9d0e"
PUSH, PULL = "file_transfer.push_folder", "file_transfer.pull_folder"
HONEST = {"submit_job": PUSH, "download_job": PULL}
RESULT = "the server's bytes"


@dataclass
class Server:
    """A server's answers to commands of NVFlare's console, and the folders that it received."""

    place: Path
    files: list[list[str]] = field(default_factory=lambda: [["fedvisage/outcome.json", "one"]])
    transfer: str = TRANSFER
    location: str | None = None
    commands: dict[str, str] = field(default_factory=lambda: dict(HONEST))
    received: list[str] = field(default_factory=list)

    def connect(self, name: str, kit: str, **_: Any) -> Session:
        """Return NVFlare's session after its login here."""
        session = Session(name, kit)
        session.api.cell = SimpleNamespace(send_request=self.answer, stop=lambda: None)
        session.api.upload_file = lambda path, _: self.received.append(path)
        assert session.api._after_login()["status"] == "SUCCESS"
        return session

    def answer(self, request: Any, **_: Any) -> Any:
        command = split_to_args(json.loads(request.payload)["data"][0]["data"])[0].removeprefix("job.")
        meta: dict[str, Any] = {"status": "ok"}
        data: dict[str, Any] = {"type": "string", "data": "OK"}
        if command == "download_job":
            meta |= {"files": self.files, "tx_id": self.transfer, "source_fqcn": "server", "location": self.location}
        elif command == "_commands":
            rows = [["job", name, "", "", "none", function] for name, function in self.commands.items()]
            data = {"type": "table", "rows": [["scope", "command"], *rows]}
        lines = [data, {"type": "success", "data": ""}]
        return SimpleNamespace(payload=json.dumps({"time": "0", "data": lines, "meta": meta}))

    def send_file(self, **_: Any) -> tuple[None, str]:
        """Return a fetched file, as NVFlare does."""
        path = self.place / "fetched"
        path.write_text(RESULT)
        return None, str(path)


@contextmanager
def session_at(server: Server, kits: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Connect an operator to a server, as all commands do."""
    monkeypatch.setattr(operator, "new_secure_session", server.connect)
    monkeypatch.setattr(operator, "wait_for_admission", lambda *_, **__: Admitted())
    monkeypatch.setattr(console.downloader, "download_file", server.send_file)
    kit = open_kit(copy_kit(kits / "operator", server.place), "operator")
    with operator.connect_to_server(kit, 1e9) as session:
        yield session


def test_files_of_a_result_arrive(own_kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_at(Server(tmp_path), own_kits, monkeypatch) as session:
        downloaded = Path(session.download_job_result(JOB, str(tmp_path / "out")))
    assert (downloaded / "fedvisage" / "outcome.json").read_text() == RESULT


@pytest.mark.parametrize(
    "hostile",
    [
        {"files": [["../../OUTSIDE", "one"]]},
        {"files": [["{place}/OUTSIDE", "one"]]},
        {"transfer": "x/../../../OUTSIDE"},
        {"files": [["..", "one"]]},
    ],
    ids=["a parent", "an absolute path", "a transfer", "the folder itself"],
)
def test_server_cannot_write_files_outside_a_result(
    hostile: dict[str, Any], own_kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start-up file of the operator's shell would run the server's commands."""
    values = json.loads(json.dumps(hostile).replace("{place}", str(tmp_path)))
    with (
        session_at(Server(tmp_path, **values), own_kits, monkeypatch) as session,
        failed(RunFailed, "server", "result"),
    ):
        session.download_job_result(JOB, str(tmp_path / "out"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == RESULT.encode()]


def test_server_cannot_move_a_folder_of_the_operator(
    own_kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moved result is deleted after it was read."""
    own = tmp_path / "photographs"
    own.mkdir()
    server = Server(tmp_path, files=[], location=str(own))
    with session_at(server, own_kits, monkeypatch) as session, failed(RunFailed, "server", "photographs"):
        session.download_job_result(JOB, str(tmp_path / "out"))
    assert own.exists()


@pytest.mark.parametrize("commands", [HONEST | {"download_job": PUSH}, {"submit_job": PULL, "download_job": PUSH}])
def test_server_cannot_fetch_a_folder_of_the_operator(
    commands: dict[str, str], own_kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server chooses the id of a job, and would have it sent as a folder."""
    own = tmp_path / "photographs"
    own.mkdir()
    (own / "face.png").write_bytes(b"face")
    server = Server(tmp_path, commands=commands)
    with session_at(server, own_kits, monkeypatch) as session, pytest.raises(InternalError):
        session.download_job_result(str(own), str(tmp_path / "out"))
    assert not server.received


@pytest.mark.parametrize("number", ["../../OUTSIDE", f"{JOB} ../../OUTSIDE"])
def test_server_cannot_choose_the_place_of_a_result_by_the_id_of_a_job(
    number: str, own_kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session_at(Server(tmp_path), own_kits, monkeypatch) as session, failed(RunFailed, "server", "id"):
        session.download_job_result(number, str(tmp_path / "out"))
    assert not list(tmp_path.rglob("OUTSIDE*"))
