"""Messages that a cell drops, and the socket between a kit's process and its processes of jobs."""

import contextlib
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from nvflare.fuel.f3.cellnet import defs
from nvflare.fuel.f3.connection import Connection, ConnState, FrameReceiver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.drivers.driver import ConnMonitor
from nvflare.fuel.f3.drivers.net_utils import parse_url
from nvflare.private.admin_defs import Message
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from tests.distributed.attacks import JOB, NEEDED

from fedvisage.nvflare.cells.local_socket import LocalSocketDriver
from fedvisage.nvflare.cells.rules import CheckedProcessor, fault

OPERATOR = f"_admin_{JOB}"
CHANNELS = [value for name, value in vars(defs.CellChannel).items() if name.isupper()]
TOPICS = ["admin", "abort", "get_task", "call", "bye", "stop", "heart_beat", "bulk", "*", ""]


def message(
    origin: object, destination: object, channel: object, topic: object, kind: object = "req", **more: object
) -> dict[str, Any]:
    return {
        "cn__origin": origin,
        "cn__destination": destination,
        "cn__channel": channel,
        "cn__topic": topic,
        "cn__msg_type": kind,
        **more,
    }


def stream_message(origin: str, destination: str, channel: str, topic: str) -> dict[str, Any]:
    return message(origin, destination, "sm__STREAM", "sm__DATA", sm__ch=channel, sm__tp=topic)


def is_dropped(own: str, sender: str, headers: dict[str, Any]) -> bool:
    """Return whether a cell drops a message from a neighbour's real connection."""
    is_local = own.partition(".")[0] == sender.partition(".")[0]
    return fault(own, sender, headers, is_local=is_local, is_operator=sender == OPERATOR) is not None


RUN = [
    ("server", "bank", message("bank", "server", "task", "register")),
    ("server", "bank", message("bank", "server", "task", "heart_beat")),
    ("server", "bank", message("bank", "server", "task", "report_job_failure")),
    ("server", "bank", message("bank", "server", "admin", "admin", "reply")),
    ("server", f"bank.{JOB}", message(f"bank.{JOB}", "server", "cellnet.channel", "bye")),
    ("server", f"bank.{JOB}", stream_message(f"bank.{JOB}", f"server.{JOB}", "server_command", "get_task")),
    ("server", f"bank.{JOB}", stream_message(f"bank.{JOB}", f"server.{JOB}", "aux_communication", "__job_heartbeat__")),
    ("server", f"bank.{JOB}", stream_message(f"bank.{JOB}", f"server.{JOB}", "return_only", "collab:call")),
    ("server", f"bank.{JOB}", message(f"bank.{JOB}", f"server.{JOB}", "sm__STREAM", "sm__ACK")),
    (
        "server",
        "bank",
        stream_message(f"bank.{JOB}", f"server.{JOB}", "download_service__", "download_service__download"),
    ),
    ("server", OPERATOR, stream_message(OPERATOR, "server", "hci_channel", "command")),
    ("server", OPERATOR, message(OPERATOR, "server", "task", "challenge")),
    ("server", f"server.{JOB}", message(f"server.{JOB}", "server", "server_parent_listener", "get_clients")),
    ("server", f"server.{JOB}", stream_message(f"server.{JOB}", f"bank.{JOB}", "collab", "call")),
    (f"server.{JOB}", "server", stream_message(f"bank.{JOB}", f"server.{JOB}", "server_command", "submit_update")),
    (f"server.{JOB}", "server", stream_message("server", f"server.{JOB}", "server_command", "app_command")),
    ("bank", "server", message("server", "bank", "admin", "admin")),
    ("bank", "server", message("server", "bank", "task", "heart_beat", "reply")),
    ("bank", f"bank.{JOB}", message(f"bank.{JOB}", "bank", "admin", "train.notify_job_status")),
    (f"bank.{JOB}", "bank", message("bank", f"bank.{JOB}", "client_command", "abort")),
    (f"bank.{JOB}", "server", stream_message(f"server.{JOB}", f"bank.{JOB}", "collab", "call")),
    (f"bank.{JOB}", "server", stream_message(f"server.{JOB}", f"bank.{JOB}", "aux_communication", "__end_run__")),
]
"""Messages of a run, as they were recorded."""


@pytest.mark.parametrize(("own", "sender", "headers"), RUN)
def test_messages_of_a_run_pass(own: str, sender: str, headers: dict[str, Any]) -> None:
    assert not is_dropped(own, sender, headers)


@pytest.mark.parametrize("channel", [*CHANNELS, "_net_manager", "credential_manager", "collab", "download_service__"])
def test_server_forwards_no_message_between_members(channel: str) -> None:
    members = ("border", f"border.{JOB}", OPERATOR)
    for sender in members:
        for destination in ("bank", f"bank.{JOB}", "_admin_0b8f4a76-55c2-4e0d-8a1b-3d9c6e7f2a10"):
            for topic in TOPICS:
                for kind in ("req", "reply", "return"):
                    assert is_dropped("server", sender, message(sender, destination, channel, topic, kind))
                assert is_dropped("server", sender, stream_message(sender, destination, channel, topic))


@pytest.mark.parametrize("channel", CHANNELS)
def test_only_the_server_administers_a_site(channel: str) -> None:
    for topic in TOPICS:
        for origin in ("border", f"border.{JOB}", f"server.{JOB}", OPERATOR):
            assert is_dropped("bank", "server", message(origin, "bank", channel, topic))
            assert is_dropped("bank", "server", stream_message(origin, "bank", channel, topic))
        if channel not in ("admin", "cellnet.channel"):
            assert is_dropped("bank", "server", message("server", "bank", channel, topic))


@pytest.mark.parametrize(
    ("own", "sender", "headers"),
    [
        ("server", "border", message("server", "bank", "admin", "admin")),
        ("server", "border", message("bank", "server", "task", "quit")),
        ("server", "border", message("border2", "server", "task", "heart_beat")),
        ("server", f"server.{JOB}", message("server", "bank", "admin", "admin")),
        ("server", f"server.{JOB}", message("border", "bank", "admin", "admin")),
        ("bank", f"bank.{JOB}", message("server", "bank", "admin", "admin")),
        ("bank", f"bank.{JOB}", message("bank", "bank", "admin", "admin")),
        ("bank", "border", message("border", "bank", "admin", "admin")),
        (f"bank.{JOB}", "border", message("server", f"bank.{JOB}", "collab", "call")),
        (f"bank.{JOB}", "server", message("bank", f"bank.{JOB}", "client_command", "abort")),
    ],
)
def test_false_origin_is_detected(own: str, sender: str, headers: dict[str, Any]) -> None:
    assert is_dropped(own, sender, headers)


@pytest.mark.parametrize(
    "destination", ["Bank", " bank", "bank ", "border.bank", "server.bank.", "server..", "", "bank\n", None, 1, []]
)
def test_message_to_an_invalid_destination_is_dropped(destination: object) -> None:
    assert is_dropped("server", "border", message("border", destination, "admin", "admin"))


@pytest.mark.parametrize(
    ("channel", "topic"),
    [
        ("server_command", "abort"),
        ("server_command", "shutdown"),
        ("server_command", "handle_dead_job"),
        ("server_command", "app_command"),
        ("server_parent_listener", "update_run_status"),
        ("aux_communication", "ObjectStreamer.Request"),
        ("aux_communication", "fed.event"),
        ("hci_channel", "command"),
        ("admin", "admin"),
        ("cellnet.channel", "bulk"),
        ("_net_manager", "stop"),
        ("_net_manager", "change_root"),
    ],
)
def test_member_sends_the_server_listed_requests_only(channel: str, topic: str) -> None:
    for sender in ("border", f"border.{JOB}"):
        for destination in ("server", f"server.{JOB}"):
            assert is_dropped("server", sender, message(sender, destination, channel, topic))
            assert is_dropped("server", sender, stream_message(sender, destination, channel, topic))


def test_member_cannot_act_as_operator_or_make_the_server_connect_elsewhere() -> None:
    command = stream_message(OPERATOR, "server", "hci_channel", "command")
    assert fault("server", OPERATOR, command, is_local=False, is_operator=False)
    beat = message("border", "server", "task", "heart_beat")
    assert fault("server", "border", beat, is_local=False, is_operator=False) is None
    address = {"cn__conn_url": "tcp://192.0.2.1:1"}
    assert fault("server", "border", beat | address, is_local=False, is_operator=False)


def test_cell_of_the_server_is_accepted_at_the_local_socket_only() -> None:
    headers = message(f"server.{JOB}", "server", "server_parent_listener", "update_run_status")
    assert fault("server", f"server.{JOB}", headers, is_local=True, is_operator=False) is None
    assert fault("server", f"server.{JOB}", headers, is_local=False, is_operator=False)
    assert fault("bank", "server", message("server", "bank", "admin", "admin"), is_local=True, is_operator=False)


@pytest.mark.parametrize("processor", ClientRequestProcessors.request_processors, ids=lambda each: type(each).__name__)
def test_site_accepts_the_topics_of_runs_and_refuses_invalid_job_ids(processor: Any) -> None:
    checked = CheckedProcessor(processor)
    assert set(checked.get_topics()) == NEEDED & set(processor.get_topics())
    for topic in checked.get_topics():
        for job in (None, "", ".", "startup", "../startup", f"../{JOB}", JOB.upper(), JOB.replace("-", ""), 7, [JOB]):
            request = Message(topic, "")
            request.set_header("job_id", job)
            if topic == "train.check_status":
                continue
            reply = checked.process(request, None)
            assert (reply.body, reply.get_header("_rtnCode")) == ("invalid job id", "_error")
        request = Message(topic, "")
        request.set_header("job_id", JOB)
        with pytest.raises(
            (TypeError, ValueError, AttributeError)
        ):  # NVFlare's processor got the request, and has no engine
            checked.process(request, None)


class Monitor(ConnMonitor, FrameReceiver):  # type: ignore[misc]
    """Takes connections, and the frames of those that were accepted."""

    def __init__(self) -> None:
        self.connections, self.frames = Queue[Connection](), Queue[bytes]()

    def state_change(self, connection: Connection) -> None:
        if connection.state == ConnState.CONNECTED:
            connection.register_frame_receiver(self)
            self.connections.put(connection)

    def process_frame(self, frame: bytes) -> None:
        self.frames.put(bytes(frame))


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Monitor]]:
    """A driver that listens in a directory with a long name, where a killed process has left its socket."""
    kit = tmp_path / ("with space & " + "long" * 20) / "kit"
    kit.mkdir(parents=True)
    monkeypatch.chdir(kit)
    monkeypatch.setattr(LocalSocketDriver, "path", kit / "socket" / "jobs")
    (kit / "socket").mkdir(mode=0o777)
    (kit / "socket" / "jobs").touch()
    driver, monitor = LocalSocketDriver(), Monitor()
    thread = run_driver(driver, monitor, Mode.PASSIVE)
    yield kit, monitor
    driver.shutdown()
    thread.join()


def run_driver(driver: LocalSocketDriver, monitor: Monitor, mode: Mode) -> threading.Thread:
    driver.register_conn_monitor(monitor)
    params = parse_url(driver.get_urls("local", {})[mode == Mode.PASSIVE])
    connector = ConnectorInfo("handle", driver, params, mode, 0, 0, False, threading.Event())
    work = driver.listen if mode == Mode.PASSIVE else driver.connect
    thread = threading.Thread(target=work, args=(connector,))
    thread.start()
    return thread


def test_local_socket_carries_frames_and_is_private_to_its_owner(listener: tuple[Path, Monitor]) -> None:
    kit, accepted = listener
    wait_for(Path("socket/jobs"))
    accepted.connections.get(timeout=60)
    near, driver = Monitor(), LocalSocketDriver()
    thread = run_driver(driver, near, Mode.ACTIVE)
    frame = (21).to_bytes(4, "big") + bytes(17)
    near.connections.get(timeout=60).send_frame(frame)
    assert accepted.frames.get(timeout=60) == frame
    assert stat.S_IMODE((kit / "socket").stat().st_mode) == 0o700
    driver.shutdown()
    thread.join()


def wait_for(path: Path) -> None:
    """Connect once, as soon as a process listens."""
    while True:
        with socket.socket(socket.AF_UNIX) as end, contextlib.suppress(OSError):
            end.connect(str(path))
            return


def test_unrequested_end_of_nvflare_is_a_failure_with_one_line(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from nvflare.fuel.f3.mpm import MainProcessMonitor
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.node import _report_errors_of
from fedvisage.nvflare.terminal import Terminal
front = Terminal(print, lambda text: print(text, flush=True))
work = _report_errors_of(lambda args: None, Kit(Path(sys.argv[1]), "site", "bank"), front)
MainProcessMonitor.run(main_func=work, run_dir=sys.argv[1], args=None)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (line,) = done.stdout.splitlines()
    assert "network" in line
    assert str(tmp_path / "log.txt") in line
