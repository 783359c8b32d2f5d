"""A site whose data cannot be opened: it reports the reason for every order, and rejoins once the data is repaired."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
import torch
from nvflare.apis.workspace import Workspace
from tests.distributed.federations import make_kits, small_files
from tests.refusals import failed
from tests.toy import SITES, Sets, make_set, recipe_of, tree

from fedvisage.base.errors import NoRoom
from fedvisage.base.files import write_json
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import SiteStore, write_sealed
from fedvisage.federation.wire.message import Order
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.kits import OWN, Kit
from fedvisage.nvflare.outcome import RunLog
from fedvisage.nvflare.server_program import train_job
from fedvisage.nvflare.site_program import SiteProgram
from fedvisage.nvflare.transport import pack_order, unpack_reply
from fedvisage.nvflare.watching import RunRecord

NUMBER = "1234"


class Context:
    """NVFlare's context of a job's process: the workspace of the kit, the site's name, the number of the job."""

    def __init__(self, kit: Path) -> None:
        self.kit = kit

    def get_workspace(self) -> Workspace:
        return Workspace(str(self.kit), "A")

    def get_identity_name(self) -> str:
        return "A"

    def get_job_id(self) -> str:
        return NUMBER

    def get_engine(self) -> Self:
        return self

    def get_cell(self) -> None:
        return None  # there is no network


@cache
def site_credentials() -> dict[str, bytes]:
    """Return the key and certificates of a provisioned site, by file; every site reads them when it opens its data."""
    with TemporaryDirectory() as place:
        startup = make_kits(Path(place) / "kits") / "sites/bank/startup"
        return {name: (startup / name).read_bytes() for name in ("client.key", "client.crt", "rootCA.pem")}


def prepare_job(sets: Sets, data: Path, place: Path) -> Context:
    """Write a site's kit with a job in it, as NVFlare does."""
    kit = place / "kit"
    for folder in (kit / "local", kit / "startup", place / "state"):
        folder.mkdir(parents=True)
    for name, content in site_credentials().items():
        (kit / "startup" / name).write_bytes(content)
    write_json(kit / "local" / OWN, {"data": str(data), "state": str(place / "state"), "rehearsal": "yes"})
    job = place / "job"
    write_job(job, Job("run-1", without_local_parts(recipe_of(tree(sets, "fedpad")))), SITES)
    shutil.copytree(job / "app" / "config", Path(Workspace(str(kit), "A").get_app_config_dir(NUMBER)))
    return Context(kit)


def restore_failure(program: SiteProgram, context: Any, generation: int = 0) -> str:
    """Restore a generation, as the published call does, and return the reason for a failure."""
    return unpack_reply("A", program._answer(lambda: program._restore(context, generation))).failure


def test_site_with_a_wrong_set_reports_it_and_rejoins_after_a_repair(
    sets: Sets, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("fedvisage.nvflare.site_program.PATIENCE", 0.0)  # no other process holds the run
    data = make_set(tmp_path / "data", "A", 0, size=16)
    context, program = prepare_job(sets, data, tmp_path), SiteProgram()
    first = restore_failure(program, context)
    assert first.startswith(("recipe", "data."))
    assert restore_failure(program, context) == first
    shutil.rmtree(data)
    shutil.copytree(sets["A"], data)
    assert restore_failure(program, context) == ""


def test_run_held_by_another_process_is_reported(sets: Sets, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedvisage.nvflare.site_program.PATIENCE", 0.0)
    context = prepare_job(sets, sets["A"], tmp_path)
    holder, late = SiteProgram(), SiteProgram()
    assert restore_failure(holder, context) == ""
    assert "earlier job" in restore_failure(late, context)
    holder._held.close()
    assert restore_failure(late, context) == ""


def order_failure(program: SiteProgram, call: str, number: int) -> str:
    """Send the site an order of a round, and return the reason for a refusal."""
    assert program._worker is not None
    accepted = program._worker.workspace.accepted[call].tensors
    lent = {name: torch.full(tensor.shape, 0.1).to(tensor.dtype) for name, tensor in accepted.items()}
    return unpack_reply("A", program.carry_out(pack_order(Order(call, number, lent, 1, "ticket")))).failure


def test_change_of_the_set_during_a_job_ends_the_sites_part(sets: Sets, tmp_path: Path) -> None:
    data = Path(shutil.copytree(sets["A"], tmp_path / "data"))
    context, program = prepare_job(sets, data, tmp_path), SiteProgram()
    assert restore_failure(program, context) == ""
    assert order_failure(program, "train", 1) == ""
    assert unpack_reply("A", program.commit(1)).failure == ""
    content = (data / "images.npy").read_bytes()
    (data / "images.npy").write_bytes(content[:-100] + bytes(100))
    for reason in (
        order_failure(program, "train", 2),
        order_failure(program, "heldout", 2),
        unpack_reply("A", program.commit(2)).failure,
    ):
        assert "images.npy" in reason
        assert "changed" in reason
        assert str(tmp_path) not in reason


def test_change_of_the_set_during_a_round_is_detected_at_its_commit(sets: Sets, tmp_path: Path) -> None:
    data = Path(shutil.copytree(sets["A"], tmp_path / "data"))
    context, program = prepare_job(sets, data, tmp_path), SiteProgram()
    assert restore_failure(program, context) == ""
    assert order_failure(program, "train", 1) == ""
    (data / "rows.csv").write_text((data / "rows.csv").read_text() + "\n")
    assert "rows.csv" in unpack_reply("A", program.commit(1)).failure
    assert "rows.csv" in order_failure(program, "heldout", 1)


def test_site_records_the_start_and_end_of_a_run(sets: Sets, tmp_path: Path) -> None:
    context, program, lines = prepare_job(sets, sets["A"], tmp_path), SiteProgram(), list[str]()
    record = RunRecord(Kit(context.kit, "site", "A"), lines.append)
    record.start({"job_id": NUMBER, "submitter_name": "operator@example.org"})
    assert restore_failure(program, context) == ""
    assert order_failure(program, "train", 1) == ""
    record.end(NUMBER)
    shutil.rmtree(context.kit)  # as NVFlare's folders of old jobs are deleted
    first, last = read_lines(tmp_path / "state" / "runs.jsonl")
    assert (first["event"], first["run"], first["submitter"]) == ("started", "run-1", "operator@example.org")
    assert (first["method"], first["recipe"]["training"]["rounds"]) == ("fedpad", last["rounds"])
    assert (last["event"], last["run"], last["job"], last["round"]) == ("ended", "run-1", NUMBER, 1)
    assert ["run-1" in line for line in lines] == [True, True]
    assert "operator@example.org" in lines[0]


def test_site_prints_the_reason_for_a_failure_once_per_job(sets: Sets, tmp_path: Path) -> None:
    data, lines = Path(shutil.copytree(sets["A"], tmp_path / "data")), list[str]()
    context, program = prepare_job(sets, data, tmp_path), SiteProgram()
    assert restore_failure(program, context) == ""
    record = RunRecord(Kit(context.kit, "site", "A"), lines.append)
    record.start({"job_id": NUMBER})
    (data / "rows.csv").write_text((data / "rows.csv").read_text() + "\n")
    assert "rows.csv" in order_failure(program, "train", 1)
    for _ in range(2):
        record.report_failures()
    record.end(NUMBER)
    assert ["rows.csv" in line for line in lines] == [False, True, False]
    log = tmp_path / "state" / "run-1" / "log.jsonl"  # written by a clock that was set back since
    log.write_text(re.sub(r'"time":\s*"\d+', '"time":"9999', log.read_text()))
    record.start({"job_id": NUMBER})
    record.end(NUMBER)
    assert ["rows.csv" in line for line in lines[3:]] == [False, False]


def test_site_reports_later_failures_although_a_full_disk_tore_its_log(sets: Sets, tmp_path: Path) -> None:
    context, lines = prepare_job(sets, sets["A"], tmp_path), list[str]()
    record = RunRecord(Kit(context.kit, "site", "A"), lines.append)
    path = tmp_path / "state" / "run-1" / "log.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    log = RunLog(path.parent, "run-1")
    log.note("failed", "first reason")
    record.start({"job_id": NUMBER})
    with path.open("a") as file:
        file.write('{"time": "20')
    record.report_failures()
    log.note("failed", "second reason")
    record.end(NUMBER)
    assert ["first" in line for line in lines] == [False, False, False]
    assert ["second" in line for line in lines] == [False, True, False]
    assert [row["event"] for row in read_lines(tmp_path / "state" / "runs.jsonl")] == ["started", "ended"]


def test_site_without_space_for_a_commit_reports_a_full_disk(sets: Sets, tmp_path: Path) -> None:
    context, program = prepare_job(sets, sets["A"], tmp_path), SiteProgram()
    assert restore_failure(program, context) == ""
    assert order_failure(program, "train", 1) == ""
    with small_files():
        assert unpack_reply("A", program.commit(1)).failure == "its disk is full; see its log"


def test_damaged_job_is_not_recorded(sets: Sets, tmp_path: Path) -> None:
    record = RunRecord(Kit(prepare_job(sets, sets["A"], tmp_path).kit, "site", "A"), lambda text: None)
    record.start({"job_id": "another", "submitter_name": "operator@example.org"})
    record.end("another")
    assert not (tmp_path / "state" / "runs.jsonl").exists()


def test_server_without_disk_space_advises_to_resume(sets: Sets, tmp_path: Path) -> None:
    job = Job("run-1", recipe_of(tree(sets, "fedpad")))
    with small_files(), failed(NoRoom, "recipe.yaml", "continue with --resume"):
        train_job(job, {}, tmp_path, [], lambda: False, None)


def test_state_of_another_run_or_round_is_refused_at_the_site(
    sets: Sets, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedvisage.nvflare.site_program.PATIENCE", 0.0)
    context, program = prepare_job(sets, sets["A"], tmp_path), SiteProgram()
    assert restore_failure(program, context) == ""
    assert program._worker is not None
    store = program._worker.store
    for number in (1, 2):
        store.save({"number": torch.tensor(number)})
        assert unpack_reply("A", program.commit(number)).failure == ""
    program._held.close()

    own = store.directory / "generation-000002.safetensors"
    content = own.read_bytes()
    other = SiteStore(tmp_path / "other", owner=replace(store.owner, run="run-2"))
    other.save({"number": torch.tensor(2)})
    other.commit(2)
    write_sealed(tmp_path / "unnamed", {"number": torch.tensor(2)}, {})
    for changed, keyword in (
        (content, ""),
        ((tmp_path / "other" / own.name).read_bytes(), "run run-2"),
        ((store.directory / "generation-000001.safetensors").read_bytes(), "generation 000001"),
        ((tmp_path / "unnamed").read_bytes(), "earlier version"),
    ):
        own.write_bytes(changed)
        resumed = SiteProgram()
        failure = restore_failure(resumed, context, 2)
        resumed._held.close()
        assert ("a file was refused at the site" in failure) == bool(keyword)
        assert own.name not in failure
        assert not keyword or (own.name in caplog.text and keyword in caplog.text)

    data_file = json.loads((store.directory / "data.json").read_text())
    del data_file["recipe"]
    write_json(store.directory / "data.json", data_file)  # as an earlier version began the run, without names
    earlier = SiteProgram()
    assert restore_failure(earlier, context, 2) == ""
