"""Secure sums over real kits: signed by all sites, and no second sum without a site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.federations import run_through
from tests.refusals import failed
from tests.toy import SITES, Sets, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.base.files import write_json
from fedvisage.federation.record.ledger import read_lines
from fedvisage.nvflare.kits import REQUIRE_SECURE, ROSTERS, own_settings
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture
def fresh_federation(sets: Sets, tmp_path: Path) -> Iterator[Rehearsal]:
    """A federation of its own: its sites remember the rosters of this test."""
    with rehearsal(tmp_path / "federation", {name: str(sets[name]) for name in SITES}) as members:
        yield members


def content(sets: Sets, sites: str) -> dict[str, Any]:
    own = {name: str(sets[name]) for name in sites}
    changes: dict[str, Any] = {"training__rounds": 1, "federation__secure": True, "federation__give_up_after": 1}
    return tree(sets, data__sites=own, **changes)


def ledger_rows(run: Path) -> list[tuple[Any, ...]]:
    keys = ("round", "site", "direction", "call", "field", "kind", "bytes")
    return [tuple(row[key] for key in keys) for row in read_lines(run / "ledger.jsonl")]


def count_signatures(run: Path) -> int:
    rows = read_lines(run / "ledger.jsonl")
    return len({row["digest"] for row in rows if row["direction"] == "up" and row["field"] == "signature"})


def _set_all(federation: Rehearsal, names: str, key: str, value: str) -> None:
    """Change a setting of sites, as their administrators do by starting them with an option."""
    for name in names:
        kit = federation.sites[name]
        write_json(kit.own, own_settings(kit.path) | {key: value})


def test_plain_runs_are_refused_after_a_sum_and_where_secure_sums_are_required(
    fresh_federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    plain = content(sets, "AB") | {"federation": {"give_up_after": 1}}
    run_through(fresh_federation, content(sets, "ABC"), tmp_path / "sum")
    with failed(RunFailed, "federation.secure", "--allow-roster plain"):
        run_through(fresh_federation, plain, tmp_path / "refused")
    _set_all(fresh_federation, "AB", ROSTERS, "plain")
    _set_all(fresh_federation, "A", REQUIRE_SECURE, "yes")
    run_through(fresh_federation, plain, tmp_path / "allowed")
    (row,) = read_lines(tmp_path / "allowed" / "rounds.jsonl")
    assert "--require-secure" in row["failed"]["A"]
    uploads = [line for line in read_lines(tmp_path / "allowed" / "ledger.jsonl") if line["direction"] == "up"]
    assert {line["site"] for line in uploads} == {"B"}


def test_second_sum_without_a_site_needs_the_administrators(
    fresh_federation: Rehearsal, sets: Sets, tmp_path: Path
) -> None:
    run_toy(content(sets, "ABC"), tmp_path / "here")
    run_through(fresh_federation, content(sets, "ABC"), tmp_path / "with")
    assert weights(tmp_path / "with") == weights(tmp_path / "here")
    assert ledger_rows(tmp_path / "with") == ledger_rows(tmp_path / "here")
    assert count_signatures(tmp_path / "here") == 1, "zeros"
    assert count_signatures(tmp_path / "with") == 6, "of each site's keys, and of each site's survivors"
    with failed(RunFailed, "C", "--allow-roster A,B"):
        run_through(fresh_federation, content(sets, "AB"), tmp_path / "without")
    _set_all(fresh_federation, "AB", ROSTERS, "A,B")
    run_through(fresh_federation, content(sets, "AB"), tmp_path / "allowed")
    assert {row["site"] for row in read_lines(tmp_path / "allowed" / "ledger.jsonl")} == {"A", "B"}
