"""Limits on messages of other organisations, with NVFlare's own coder and decoder."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
from nvflare.fuel.f3.cellnet import cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import dots, lobs
from nvflare.fuel.utils.fobs.decomposer import DataClassDecomposer
from nvflare.fuel.utils.fobs.fobs import FOBS_DATA, FOBS_DECOMPOSER, FOBS_TYPE
from safetensors.torch import save
from tests.distributed.federations import run_through
from tests.toy import SITES, Sets, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.wire.schema import MessageLimits
from fedvisage.nvflare import bounds
from fedvisage.nvflare.bounds import BoundedTensors, CountingConsumer, LimitExceeded, check_body
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

DATA_CLASS = f"{DataClassDecomposer.__module__}.{DataClassDecomposer.__name__}"
FRAME = {fobs.FOBSContextKey.MESSAGE: Message({MessageHeaderKey.ORIGIN: "B.job"})}


@pytest.fixture
def job_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the limits of a job's process, and remove them after the test."""
    monkeypatch.setattr(lobs, "deserialize", lobs.deserialize)
    monkeypatch.setattr(lobs, "get_datum_dir", lobs.get_datum_dir)
    monkeypatch.setattr(cell, "_is_server_job_cell", cell._is_server_job_cell)
    bounds.install()
    yield
    bounds.refusal("B")


def nested_body(depth: int) -> bytes:
    return b"\x91" * depth + b"\x90"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (nested_body(20_000), "64 deep"),
        (msgpack.packb([[]] * 300_000), "200000 values"),
        (b"\xdd\xff\xff\xff\xff", "200000 values"),
        (b"\xdf\xff\xff\xff\xff", "200000 values"),
        (msgpack.packb({"a": [1, 2, 3]})[:-2], "early"),
    ],
)
def test_body_with_too_many_values_is_refused_before_decoding(body: bytes, reason: str) -> None:
    with pytest.raises(LimitExceeded, match=reason):
        check_body(body)


VALUES: list[Any] = [
    None,
    True,
    0,
    127,
    128,
    2**15,
    2**31,
    2**63,
    -1,
    -32,
    -33,
    -(2**15),
    -(2**31),
    -(2**63),
    1.5,
    *("x" * size for size in (0, 1, 31, 32, 255, 256, 65_536)),
    *(b"x" * size for size in (0, 1, 255, 256, 65_536)),
    *([0] * size for size in (0, 15, 16, 65_536)),
    *(dict.fromkeys(range(size)) for size in (0, 15, 16, 65_536)),
    *(msgpack.ExtType(5, b"x" * size) for size in (1, 2, 3, 4, 8, 16, 17, 256, 65_536)),
    [[{"a": [1, {"b": 2}]}]],
]


def values_in(value: Any) -> int:
    """Count a value and those inside it."""
    if isinstance(value, dict):
        return 1 + sum(values_in(key) + values_in(inside) for key, inside in value.items())
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:20])
def test_every_type_of_msgpack_is_counted(value: Any) -> None:
    """A wrong length of one value would hide the following ones."""
    whole = [value, "end", 7]
    check_body(msgpack.packb(whole), objects=values_in(whole))
    with pytest.raises(LimitExceeded):
        check_body(msgpack.packb(whole), objects=values_in(whole) - 1)


def test_nvflares_decoder_refuses_a_deep_body_and_records_its_sender(job_limits: None) -> None:
    whole = fobs.dumps({"words": {"ticket": "t"}})
    assert fobs.loads(whole, fobs_ctx=dict(FRAME)) == {"words": {"ticket": "t"}}
    header = lobs._Header(lobs.MARKER_MAIN, 0, 20_001).to_bytes()
    with pytest.raises(LimitExceeded):
        fobs.loads(header + nested_body(20_000), fobs_ctx=dict(FRAME))
    assert bounds.refusal("B") == "a message is nested more than 64 deep"
    assert bounds.refusal("B") is None


def test_object_of_a_foreign_class_is_refused_with_the_cause(job_limits: None) -> None:
    """NVFlare's encoder sends any object by the name of its class; the decoder never loads that class."""
    parts = {FOBS_TYPE: "subprocess.Popen", FOBS_DATA: {"args": "true"}, FOBS_DECOMPOSER: DATA_CLASS}
    body = msgpack.packb({"words": {"ticket": "t"}, "tensors": {"a": parts}})
    with pytest.raises(ValueError, match="subprocess"):
        fobs.loads(lobs._Header(lobs.MARKER_MAIN, 0, len(body)).to_bytes() + body, fobs_ctx=dict(FRAME))
    assert bounds.refusal("B") == "a message cannot be decoded (Type 'subprocess.Popen' is not allowed)"


def datum(marker: int, dot: int, value: bytes) -> bytes:
    return bytes(lobs._Header(marker, dot, 16 + len(value)).to_bytes()) + uuid.UUID(int=7).bytes + value


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (datum(lobs.MARKER_DATUM_FILE, 0, b"x"), "file"),
        (datum(lobs.MARKER_DATUM_TEXT, dots.TENSOR_DOWNLOAD, b'{"fqcn": "A.job", "ref_id": "1"}'), "outside it"),
    ],
)
def test_message_with_a_file_or_with_tensors_of_others_is_refused(job_limits: None, tail: bytes, reason: str) -> None:
    body = msgpack.packb({})
    whole = lobs._Header(lobs.MARKER_MAIN, 0, len(body)).to_bytes() + body + tail
    with pytest.raises(LimitExceeded, match=reason):
        fobs.loads(whole, fobs_ctx=dict(FRAME))


def test_tensors_are_counted_before_they_are_read() -> None:
    limits = MessageLimits(tensors=3, size=1000, largest=400)
    item = save({"T0": torch.zeros(25)})
    consumer = CountingConsumer("B.job", limits)
    assert set(consumer.consume_items([item], None)) == {"T0"}
    for items, reason in (
        ([item] * 4, "3 tensors"),
        ([save({"T0": torch.zeros(10_000)})], "1000 bytes"),
        ([(1 << 40).to_bytes(8, "little") + b"{"], "header"),
        ([save({f"name-{number}": torch.zeros(0) for number in range(200)})], "header"),
        ([b""], "header"),
    ):
        with pytest.raises(LimitExceeded, match=reason):
            CountingConsumer("B.job", limits).consume_items(items, None)
        assert reason in str(bounds.refusal("B"))


def test_tensor_in_the_body_is_refused(job_limits: None) -> None:
    with pytest.raises(LimitExceeded, match="body"):
        BoundedTensors().native_recompose(save({"t": torch.zeros(2)}))


HOSTILE = """
import os
if os.environ.get("HOSTILE"):
    import torch, types
    from fedvisage.nvflare import transport
    honest, asked = transport.pack_reply, []
    def hostile(message, ticket):
        parcel = honest(message, ticket)
        if not ticket.startswith("round") or "train" not in ticket:
            return parcel
        asked.append(ticket)
        if ticket.startswith("round 1,"):
            parcel["tensors"]["more"] = torch.zeros(30_000_000)
        elif ticket.startswith("round 2,"):
            parcel["tensors"] |= {f"more-{number}": torch.zeros(1) for number in range(20_000)}
        elif ticket.startswith("round 3,"):
            parcel["words"]["more"] = "words"
        elif ticket.startswith("round 4,"):
            parcel["tensors"]["more"] = types.SimpleNamespace(more=1)
        return parcel
    transport.pack_reply = hostile
"""


@pytest.fixture
def federation(sets: Sets, tmp_path: Path) -> Iterator[Rehearsal]:
    """Start a federation whose site B sends more than it declares."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HOSTILE)
    with rehearsal(tmp_path / "federation", {name: str(sets[name]) for name in SITES}) as members:
        members.kill("B")
        os.environ |= {"HOSTILE": "yes", "PYTHONPATH": str(tmp_path / "site")}
        try:
            members.start("B")
        finally:
            del os.environ["HOSTILE"], os.environ["PYTHONPATH"]
        yield members


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_site_that_sends_too_much_is_refused_and_the_others_continue(
    federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    content = tree(sets, "fedpad", training__rounds=5, federation__deadline=120.0)
    run_through(federation, content, tmp_path / "run")
    rows = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert [row["counted"] for row in rows] == [["A", "C"]] * 4 + [["A", "B", "C"]]
    for number, what in enumerate(("bytes", "tensors")):
        assert "refused: a message has more than" in rows[number]["failed"]["B"]
        assert rows[number]["failed"]["B"].endswith(what)
    assert "unknown word 'more'" in rows[2]["failed"]["B"]
    assert "refused: a message cannot be decoded (Type 'types.SimpleNamespace'" in rows[3]["failed"]["B"]
