"""A site's own record: its chain and signature, every field that left, and its comparison with the server's ledger."""

import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from nvflare.apis.workspace import Workspace
from tests.distributed.site_owners import FIRST, key_of, prepare_owner, provision_owners, submit
from tests.distributed.test_site_program import NUMBER, Context, order_failure, restore_failure
from tests.refusals import Command, check_output, refused
from tests.toy import Sets

from fedvisage.base.errors import UserError
from fedvisage.base.files import lock_directory
from fedvisage.federation.wire.message import Order
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.node import start_site
from fedvisage.nvflare.outcome import last_failure
from fedvisage.nvflare.owner.commands import SiteFiles, report_page
from fedvisage.nvflare.owner.record import HEAD, SiteRecord, compare_with_ledger
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.site_program import SiteProgram
from fedvisage.nvflare.terminal import Terminal
from fedvisage.nvflare.transport import pack_order, unpack_reply


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


@pytest.fixture
def site(kits: Path, sets: Sets, tmp_path: Path) -> Kit:
    kit = Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit"))
    return prepare_owner(kit, sets["A"], tmp_path / "state", "format: 1\nrounds: 3")


@pytest.fixture
def record(site: Kit, tmp_path: Path) -> SiteRecord:
    """A record of five lines."""
    record = SiteRecord(site.path, tmp_path / "state")
    for number in range(5):
        record.append("refused", run=f"run-{number}", reason="rounds")
    return record


def lines_of(record: SiteRecord) -> list[bytes]:
    return record.path.read_bytes().splitlines(keepends=True)


def test_lines_are_read_back_in_order(record: SiteRecord) -> None:
    assert [(row["number"], row["run"]) for row in record.read()] == [(n + 1, f"run-{n}") for n in range(5)]


@pytest.mark.parametrize("number", range(5))
def test_edited_removed_or_exchanged_line_is_refused_by_name(number: int, record: SiteRecord) -> None:
    whole = lines_of(record)
    edited = [line.replace(b"rounds", b"sounds") if index == number else line for index, line in enumerate(whole)]
    exchanged = [*whole[:number], *whole[number + 1 :], whole[number]]
    for lines in (edited, whole[:number] + whole[number + 1 :], exchanged if number < 4 else whole[::-1]):
        record.path.write_bytes(b"".join(lines))
        with refused("record.jsonl"):
            record.read()


def test_cut_or_missing_record_is_refused_by_name_also_for_the_next_line(record: SiteRecord) -> None:
    record.path.write_bytes(b"".join(lines_of(record)[:3]))
    for use in (record.read, lambda: record.append("refused", run="run", reason="")):
        with refused("record.jsonl", "cut"):
            use()
    record.path.unlink()
    with refused("record.jsonl", "missing"):
        record.read()


def test_record_that_grew_without_line_ends_is_refused(record: SiteRecord) -> None:
    os.truncate(record.path, 1 << 40)
    with refused("record.jsonl", "67,108,864"):
        record.read()


def test_rewritten_record_needs_the_key_of_the_site(record: SiteRecord, kits: Path, tmp_path: Path) -> None:
    """Someone without the key removes the last two lines and writes the head that would match them."""
    short = SiteRecord(kits / "sites" / "B", tmp_path / "other")
    for number in range(3):
        short.append("refused", run=f"run-{number}", reason="rounds")
    record.path.write_bytes(b"".join(lines_of(short)))
    shutil.copy(short.directory / HEAD, record.directory / HEAD)
    with refused(HEAD, "key"):
        record.read()
    (record.directory / HEAD).unlink()
    with refused("record.jsonl", "end"):
        record.read()


def test_check_before_a_line_excludes_other_processes_and_its_refusal_adds_none(record: SiteRecord) -> None:
    def refuse(rows: list[Any]) -> None:
        assert len(rows) == 5
        with refused(".record", "use"), lock_directory(record.directory):
            pass
        raise NotReady

    with pytest.raises(NotReady):
        record.append("accepted", refuse, run="run")
    assert len(record.read()) == 5


@pytest.mark.parametrize("content", ["", "{}", '{"lines": "x", "bytes": 1, "digest": "", "signature": ""}', "[]"])
def test_damaged_head_is_refused_by_name(content: str, record: SiteRecord) -> None:
    (record.directory / HEAD).write_text(content)
    with refused(HEAD):
        record.read()


@pytest.mark.parametrize("tail", [b'{"number": 6', b'{"number": 6}\n'])
def test_line_of_a_process_that_was_killed_before_it_signed_is_replaced(tail: bytes, record: SiteRecord) -> None:
    with record.path.open("ab") as file:
        file.write(tail)
    assert len(record.read()) == 5
    record.append("refused", run="after", reason="")
    assert [row["run"] for row in record.read()][4:] == ["run-4", "after"]


def test_more_lines_after_the_signed_end_are_refused(record: SiteRecord) -> None:
    with record.path.open("ab") as file:
        file.write(b"{}\n{}\n")
    for use in (record.read, lambda: record.append("refused", run="run", reason="")):
        with refused("record.jsonl", "end"):
            use()


def test_site_with_an_edited_record_does_not_start(site: Kit, record: SiteRecord, sets: Sets, tmp_path: Path) -> None:
    record.path.write_bytes(record.path.read_bytes().replace(b"run-3", b"run-9"))
    with refused("record.jsonl", "edited", "5"):
        start_site(site.path, sets["A"], tmp_path / "state", None, Terminal(print, print), verbose=False)


# A site's part of a run.


def begin(site: Kit, kits: Path, sets: Sets, tmp_path: Path, **changes: Any) -> tuple[Context, SiteProgram]:
    """Place a signed job in the kit, as NVFlare does, and return the program of the site."""
    submit(kits, sets, tmp_path / "submitted", federation__quorum=3, **changes)
    config = Path(Workspace(str(site.path), "A").get_app_config_dir(NUMBER))
    shutil.rmtree(config, ignore_errors=True)
    newest = max((tmp_path / "submitted").glob("job-*"), key=lambda path: path.stat().st_mtime_ns)
    shutil.copytree(newest / "app" / "config", config)
    return Context(site.path), SiteProgram()


def train(program: SiteProgram, number: int) -> dict[str, torch.Tensor]:
    """Send a training order, and return the reply as the server receives it."""
    assert program._worker is not None
    accepted = program._worker.workspace.accepted["train"].tensors
    lent = {name: torch.full(tensor.shape, 0.1).to(tensor.dtype) for name, tensor in accepted.items()}
    reply = unpack_reply("A", program.carry_out(pack_order(Order("train", number, lent, 1, "ticket"))))
    assert reply.message is not None, reply.failure
    return dict(reply.message)


def test_record_has_every_field_that_left_and_the_operator(site: Kit, kits: Path, sets: Sets, tmp_path: Path) -> None:
    context, program = begin(site, kits, sets, tmp_path)
    assert restore_failure(program, context) == ""
    replies = [train(program, number) for number in (1, 2)]
    accepted, *sent = SiteFiles(site.path).record.read()
    assert (accepted["event"], accepted["run"], accepted["operator"]) == ("accepted", "run-1", FIRST)
    assert (accepted["key"], accepted["members"]) == (key_of(kits, FIRST), ["A", "B", "C"])
    assert [(row["event"], row["round"], row["call"]) for row in sent] == [("sent", 1, "train"), ("sent", 2, "train")]
    for row, reply in zip(sent, replies, strict=True):
        assert sum(each["bytes"] for each in row["fields"]) == sum(value.nbytes for value in reply.values())
        assert Counter(each["field"] for each in row["fields"]) == Counter(["weights", "examples", "loss"])
    assert sent[0]["fields"][0]["digest"] != sent[1]["fields"][0]["digest"]


def test_run_ends_in_the_middle_of_an_order_when_its_processor_time_is_used_up(
    site: Kit, kits: Path, sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still until the first batch asks, and then is one hour and one second ahead."""
    prepare_owner(site.path, sets["A"], tmp_path / "state", "format: 1\nprocessor_hours: 1")
    context, program = begin(site, kits, sets, tmp_path)
    readings = iter([0.0, 0.0])  # at the acceptance, and before the order
    monkeypatch.setattr(time, "process_time", lambda: next(readings, 3601.0))
    assert restore_failure(program, context) == ""
    assert "rule processor_hours" in order_failure(program, "train", 1)
    assert next(readings, None) is None
    events = [(row["event"], "processor_hours" in str(row)) for row in SiteFiles(site.path).record.read()]
    assert [event for event, _ in events] == ["accepted", "failed"]
    assert events[1][1]


def test_refused_run_reads_no_data_and_the_operator_gets_the_rule(
    site: Kit, kits: Path, sets: Sets, tmp_path: Path
) -> None:
    context, program = begin(site, kits, sets, tmp_path, training__rounds=4)
    for _ in range(2):
        reason = restore_failure(program, context)
        assert "rule rounds" in reason
        assert "3" in reason
    assert "rule rounds" in last_failure(tmp_path / "state" / "run-1", 0)  # what the site prints
    assert "starting point" in order_failure_before_start(program)
    events = [(row["event"], row["run"]) for row in SiteFiles(site.path).record.read()]
    assert events == [("refused", "run-1"), ("refused", "run-1")]  # the rule once, then the order without a start
    assert [path.name for path in (tmp_path / "state" / "run-1").iterdir()] == ["log.jsonl"]


def order_failure_before_start(program: SiteProgram) -> str:
    return unpack_reply("A", program.carry_out(pack_order(Order("train", 1, {}, 1, "ticket")))).failure


def test_nothing_leaves_that_cannot_be_recorded(site: Kit, kits: Path, sets: Sets, tmp_path: Path) -> None:
    context, program = begin(site, kits, sets, tmp_path)
    assert restore_failure(program, context) == ""
    record = SiteFiles(site.path).record
    record.path.write_bytes(record.path.read_bytes()[:-10])
    assert "refused at the site" in order_failure(program, "train", 1)


# The comparison with the ledger.


def row(number: int, field: str, digest: str, size: int = 4) -> dict[str, Any]:
    return {"round": number, "call": "train", "field": field, "bytes": size, "digest": digest}


def entry(number: int, field: str, digest: str, **values: Any) -> dict[str, Any]:
    return {"site": "A", "direction": "up", **row(number, field, digest), **values}


SENT: list[dict[str, Any]] = [
    {"event": "sent", "round": 1, "call": "train", "fields": [row(1, "weights", "aa"), row(1, "loss", "bb")]},
    {"event": "sent", "round": 2, "call": "train", "fields": [row(2, "weights", "cc")]},
    {"event": "failed", "reason": "none"},
]
LEDGER = [entry(1, "weights", "aa"), entry(1, "loss", "bb"), entry(2, "weights", "cc", repeated=True)]


def test_equal_record_and_ledger_have_no_differences() -> None:
    others = [entry(1, "weights", "xx", site="B"), entry(1, "weights", "yy", direction="down")]
    assert list(compare_with_ledger(SENT, [*LEDGER, *others], "A")) == []


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        (LEDGER[1:], [("round 1, train, weights", "aa", "lacks")]),
        ([*LEDGER, LEDGER[0]], [("round 1, train, weights", "aa", "did not leave")]),
        (
            [*LEDGER[:2], entry(2, "weights", "dd")],
            [("round 2, train, weights", "cc", "lacks"), ("round 2, train, weights", "dd", "did not leave")],
        ),
        (
            [LEDGER[0], {**LEDGER[1], "bytes": 8}, LEDGER[2]],
            [("round 1, train, loss: 4", "bb", "lacks"), ("round 1, train, loss: 8", "bb", "did not leave")],
        ),
    ],
)
def test_each_difference_is_named(ledger: list[dict[str, Any]], expected: list[tuple[str, ...]]) -> None:
    lines = list(compare_with_ledger(SENT, ledger, "A"))
    assert len(lines) == len(expected)
    for line, words in zip(lines, expected, strict=True):
        assert all(word in line for word in words)


def test_command_compares_with_a_ledger_and_names_other_files(
    site: Kit, record: SiteRecord, command: Command, tmp_path: Path
) -> None:
    record.append("sent", run="run-1", round=1, call="train", fields=[row(1, "weights", "aa")])
    ledger, kit = tmp_path / "ledger.jsonl", str(site.path)
    ledger.write_text(json.dumps(LEDGER[0]) + "\n")
    assert command("site", "compare", kit, "run-1", str(ledger))[0] == 0
    ledger.write_text(json.dumps(LEDGER[1]) + "\n")
    code, output, _ = command("site", "compare", kit, "run-1", str(ledger))
    assert (code, len(output.splitlines())) == (1, 2)
    ledger.write_text('{"event": 1}\n')
    code, _, error = command("site", "compare", kit, "run-1", str(ledger))
    assert code == 2
    check_output(error, "ledger.jsonl", "ledger")
    code, _, error = command("site", "compare", kit, "another", str(ledger))
    assert code == 2
    check_output(error, "another", "record")


def test_page_for_the_officer_lists_runs_refusals_and_decisions(
    site: Kit, kits: Path, sets: Sets, tmp_path: Path
) -> None:
    hostile = "<script>alert(1)</script>"
    context, program = begin(site, kits, sets, tmp_path, title=hostile)
    assert restore_failure(program, context) == ""
    train(program, 1)
    SiteFiles(site.path).record.append("refused", run="run-2", reason=hostile)
    SiteFiles(site.path).record.append("decided", run="run-3", decision="refused", because=hostile, bound={})
    page = report_page(SiteFiles(site.path))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 3
    for word in (FIRST, "fedpad", "1 of 3", "the server sees each upload", "run-2", "run-3", "A, B, C"):
        assert word in page


def test_log_command_prints_a_line_per_entry_and_refuses_an_edited_record(
    site: Kit, record: SiteRecord, command: Command
) -> None:
    code, output, _ = command("site", "log", str(site.path), "--run", "run-2")
    assert code == 0
    lines = output.splitlines()
    assert len(lines) == len([row for row in record.read() if row["run"] == "run-2"])
    assert all("  run-2  " in line for line in lines)
    record.path.write_bytes(record.path.read_bytes().replace(b"run-3", b"run-9"))
    code, _, error = command("site", "log", str(site.path))
    assert code == 2
    check_output(error, "record.jsonl", "edited", "5")
    with pytest.raises(UserError):
        record.read()
