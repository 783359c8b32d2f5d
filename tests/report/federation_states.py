"""States of a federation for tests of the console: a usual one, and one with hostile text."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fedvisage.report.federation_page import FederationState

NOW = datetime(2026, 11, 23, 9, 30, 5, tzinfo=UTC)
EVIL = '<script>alert(1)</script><img src="http://evil.example/x">\x1b[2J"onload="x'


def row(number: int, failed: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a round's line, with three sites of 4 MB each."""
    failed = failed or {}
    here = [site for site in ("bank", "border", "phone") if site not in failed]
    return {
        "round": number,
        "seconds": 20.0,
        "loss": dict.fromkeys(here, 0.5 + number / 100),
        "asked": ["bank", "border", "phone"],
        "replied": here,
        "failed": failed,
        "bytes_up": 4_000_000 * len(here),
        "bytes_down": 12_000_000,
        "heldout": {"auc": 0.98, "eer": 0.061},
    }


def usual() -> FederationState:
    """Return a federation with two sites, a run that goes on under a budget, and one that waits."""
    late = "did not answer within 600 s; sits out until round 9"
    rows = [*(row(number) for number in range(1, 7)), row(7, {"phone": late})]
    going = {
        "run": "faces-0a1b2c3d4e5f",
        "round": 7,
        "rounds": 30,
        "without": ("phone",),
        "bytes_up": 80_000_000,
        "bytes_down": 84_000_000,
        "state": "running",
        "job": "1",
    }
    waiting = going | {"run": "second-99aa", "state": "waiting", "rounds": 0, "round": 0, "without": (), "job": "2"}
    sites = [
        {"name": name, "last_seen": "2026-11-23T09:30:00+00:00", "seconds_ago": ago}
        for name, ago in (("bank", 4.1), ("border", 9.8))
    ]
    sites.append({"name": "phone", "last_seen": "2026-11-23T09:20:00+00:00", "seconds_ago": 600.0, "stale": True})
    until = [
        {"name": name, "until": f"{date}T00:00:00+00:00", "days_left": left}
        for name, date, left in (("bank", "2027-08-01", 251.0), ("border", "2026-12-05", 12.0))
    ]
    log = [
        {"time": f"2026-11-23T09:2{number}:00.000+00:00", "message": f"20.0 s  loss bank 0.5{number} border 0.5"}
        for number in range(1, 8)
    ]
    details = {
        "rounds": rows,
        "of": 30,
        "method": "FedAvg of ResNet-18",
        "log": log,
        "spent": {"epsilon": 2.4, "delta": 1e-6, "site": "each"},
        "budget": {"epsilon": 8.0, "delta": 1e-5},
    }
    status = {"sites": sites, "runs": [going, waiting], "certificates": until}
    return FederationState("fed.example.org:8002", status, {str(going["run"]): details}, NOW - timedelta(seconds=3))


def hostile() -> FederationState:
    """Return a state in which every foreign text attacks a page or a terminal."""
    harmless = usual()
    status, details = dict(harmless.status), dict(next(iter(harmless.details.values())))
    (run, *_), word = status["runs"], EVIL
    status["sites"] = [{"name": word, "last_seen": word, "seconds_ago": 1.0}]
    status["runs"] = [run | {"run": word, "without": (word,), "state": word}]
    status["certificates"] = [{"name": word, "until": word, "days_left": 3.0}]
    details["rounds"] = [row(7) | {"failed": {word: word * 50}, "asked": [word, "x" * 5000], "loss": {word: 0.1}}]
    details |= {"method": word, "log": [{"time": word, "message": word}]}
    return replace(harmless, federation=word, status=status, details={word: details}, trouble=word)
