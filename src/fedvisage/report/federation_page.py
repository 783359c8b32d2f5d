"""The operator's page about a federation: one file without scripts, which the browser reloads by itself.

Names, reasons and log lines come from sites and from the server: each is escaped and cut to a maximum length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from fedvisage.base.errors import plain_line
from fedvisage.base.progress import duration_in_words, format_count
from fedvisage.federation.record.attendance import failures_of
from fedvisage.report.page import fill_template
from fedvisage.report.run_files import Row
from fedvisage.report.tables import Table, size, table

RECENT = 6
"""Rounds of a run that the page lists."""
FAILURES = 20
LETTERS = 160
SOON = 30.0
"""Days before the end of a certificate from which the page warns."""


@dataclass(frozen=True)
class FederationState:
    """The state of a federation at the last answer of its server."""

    federation: str
    """The server's address."""
    status: Row
    """Sites, runs and certificates, as ``status --json`` prints them."""
    details: Mapping[str, Row]
    """By run: the lines of its rounds, its method, spent budget, budget and log."""
    asked: datetime | None = None
    """Time of the server's last answer."""
    trouble: str = ""
    """The reason why the server has not answered since."""


def page(standing: FederationState, every: float, now: datetime | None = None) -> str:
    """Return the page; a browser reloads it every ``every`` seconds."""
    try:
        return _page(standing, every, now or datetime.now(UTC))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"The server's answer cannot be read ({type(error).__name__}: {error}); does it run another version?"
        return _page(FederationState(standing.federation, {}, {}, trouble=why), every, now or datetime.now(UTC))


def _page(standing: FederationState, every: float, now: datetime) -> str:
    sites, runs = standing.status.get("sites") or [], standing.status.get("runs") or []
    failures = sum(
        len(list(failures_of(row)))
        for run_details in standing.details.values()
        for row in run_details.get("rounds") or []
    )
    return fill_template(
        "console.html.jinja",
        every=max(1, round(every)),
        federation=_short(standing.federation),
        asked=f"{standing.asked:%Y-%m-%d %H:%M:%S} UTC" if standing.asked else "",
        ago=duration_in_words(max(0.0, (now - standing.asked).total_seconds())) if standing.asked else "",
        trouble=_short(standing.trouble, 2 * LETTERS),
        cards=[
            ("connected", str(len(_connected(sites))), "sites"),
            ("under way", str(len(runs)), "runs"),
            ("failed", str(failures), "uploads of these runs that did not come"),
        ],
        sites=_sites(standing.status),
        ending=[
            *(
                f"The certificate of {_short(certificate['name'])} ends on {str(certificate['until'])[:10]}, "
                f"in {format_count(round(certificate['days_left']), 'day')}."
                for certificate in standing.status.get("certificates") or []
                if float(certificate["days_left"]) < SOON
            ),
            *map(_short, standing.status.get("differences") or []),
        ],
        runs=[_run(run, standing.details.get(str(run["run"]), {}), sites) for run in runs],
    )


def _sites(status: Row) -> Table | None:
    certificates = {certificate["name"]: certificate for certificate in status.get("certificates") or []}
    rows = [
        {
            "site": _short(site["name"]),
            "seen": f"{duration_in_words(float(site['seconds_ago']))} ago{' (stale)' if site.get('stale') else ''}",
            "until": str(certificates[site["name"]]["until"])[:10] if site["name"] in certificates else None,
        }
        for site in status.get("sites") or []
    ]
    columns = {"site": "site", "seen": "last seen", "until": "certificate until"}
    return table("", rows, columns) if rows else None


def _connected(sites: Sequence[Row]) -> set[str]:
    """Return the sites with recent contact."""
    return {str(site["name"]) for site in sites if not site.get("stale")}


def _run(run: Row, details: Row, sites: Sequence[Row]) -> dict[str, Any]:
    """Return the template's values for a run."""
    rows, connected = list(details.get("rounds") or []), _connected(sites)
    done, total = int(run["round"]), int(run["rounds"])
    last, recent = rows[-1] if rows else {}, [float(row["seconds"]) for row in rows[-RECENT:]]
    lost = sorted(map(str, set(last.get("asked") or ()) - connected))
    return {
        "name": _short(run["run"]),
        "method": _short(details.get("method") or ""),
        "state": _short(run["state"]),
        "done": done,
        "of": total,
        "left": f"about {duration_in_words((total - done) * fmean(recent))} left" if recent and total > done else "",
        "facts": [
            ("left the sites", size(float(run["bytes_up"]))),
            ("came to the sites", size(float(run["bytes_down"]))),
            ("last round without", _short(", ".join(map(str, run["without"])) or "nobody")),
            ("expected but not connected", _short(", ".join(lost) or "nobody")),
        ],
        "budget": _budget(details),
        "tables": [content for content in (_failures(rows), _rounds(rows)) if content is not None],
        "log": [
            (str(line["time"])[:19].replace("T", " "), _short(line["message"], 300))
            for line in details.get("log") or []
        ],
    }


def _budget(details: Row) -> tuple[str, float] | None:
    """Return the spent budget as a sentence, and its share of the budget."""
    spent, budget = details.get("spent") or {}, details.get("budget") or {}
    if not spent and not budget:
        return None
    epsilon, limit = float(spent.get("epsilon") or 0.0), budget.get("epsilon")
    words = f"ε {epsilon:.4g}, δ {float(spent.get('delta') or 0.0):.3g}"
    if limit is None:
        return f"{words} spent; the recipe does not set a budget", 0.0
    return f"{words} spent of ε {float(limit):.4g}, δ {float(budget['delta']):.3g}", min(1.0, epsilon / float(limit))


def _rounds(rows: Sequence[Row]) -> Table | None:
    cells = [
        {
            "round": int(row["round"]),
            "seconds": f"{float(row['seconds']):.1f}",
            "loss": _mean(row.get("loss") or {}),
            "eer": f"{100 * float(row['heldout']['eer']):.2f}" if row.get("heldout") else None,
            "replied": f"{len(row.get('replied') or ())} of {len(row.get('asked') or ())}",
            "up": size(float(row["bytes_up"])),
            "down": size(float(row["bytes_down"])),
        }
        for row in reversed(rows[-RECENT:])
    ]
    columns = {
        "round": "round",
        "replied": "sites",
        "loss": "mean loss",
        "eer": "held-out EER %",
        "up": "up",
        "down": "down",
        "seconds": "seconds",
    }
    if not any(row["eer"] for row in cells):
        del columns["eer"]
    return table("The last rounds", cells, columns) if cells else None


def _failures(rows: Sequence[Row]) -> Table | None:
    """Count the failures of each site by reason."""
    counts: Counter[tuple[str, str]] = Counter()
    when: dict[tuple[str, str], int] = {}
    for row in rows:
        for name, reason in failures_of(row):
            key = _short(name), _short(reason)
            counts[key] += 1
            when[key] = int(row["round"])
    listed = sorted(counts, key=lambda key: (-when[key], key))[:FAILURES]
    cells = [{"site": key[0], "reason": key[1], "rounds": counts[key], "last": when[key]} for key in listed]
    columns = {"site": "site", "reason": "reason", "rounds": "rounds", "last": "last in round"}
    more = len(counts) - len(listed)
    note = f"and {format_count(more, 'more reason')}" if more > 0 else ""
    return table("Failures", cells, columns, names=2, note=note) if cells else None


def _mean(losses: Mapping[str, Any]) -> str | None:
    values = [float(value) for value in losses.values() if value is not None]
    return f"{sum(values) / len(values):.4f}" if values else None


def _short(text: Any, most: int = LETTERS) -> str:
    return plain_line(str(text), most)
