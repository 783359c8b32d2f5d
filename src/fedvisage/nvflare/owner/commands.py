"""The functions behind the verbs of ``fedvisage site``, except ``start``; they work beside a running site.

The two pages have no script. Names, titles and recipes come from other organisations, and every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import flatten, read_json, write_atomically
from fedvisage.data.prepared import read_manifest
from fedvisage.datasets.sources import without_part
from fedvisage.federation.protections.compatible import check_protection
from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods import find, read_method
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of
from fedvisage.nvflare.kits import open_kit, own_settings
from fedvisage.nvflare.owner.acceptance import protection_of
from fedvisage.nvflare.owner.policy import policy_path, policy_text, read_policy, results_of
from fedvisage.nvflare.owner.record import Row, SiteRecord, compare_with_ledger
from fedvisage.nvflare.owner.requests import Request, Requests
from fedvisage.recipe import Recipe
from fedvisage.report.page import fill_template
from fedvisage.report.tables import Table, size, table
from fedvisage.tasks.catalogue import describe


class SiteFiles:
    """A site's kit, with its requests and its record."""

    def __init__(self, kit: Path) -> None:
        opened = open_kit(kit, "site")
        self.kit, self.name, settings = opened.path, opened.name, own_settings(opened.path)
        self.data, state = settings.get("data"), Path(settings.get("state", opened.path / "state"))
        self.requests, self.record = Requests(state), SiteRecord(opened.path, state)

    @property
    def key(self) -> str:
        """The fingerprint of the site's key, which other sites pin."""
        return fingerprint_of(certificates_in(credentials_in(self.kit, at_server=False).certificate)[0])

    def write_policy(self) -> Path | None:
        """Write commented rules, and return their path; None if the kit has rules."""
        path = policy_path(self.kit)
        if path.exists():
            return None
        write_atomically(path, policy_text().encode())
        return path

    def check_policy(self, recipe: Recipe | None) -> list[dict[str, Any]]:
        """Return the rules of the site, and for a recipe what it would meet."""
        policy = read_policy(self.kit, self.name)
        assert policy is not None
        rows = [{"rule": rule, "value": _short(value)} for rule, value in policy if value is not None]
        if recipe is None:
            return rows
        check_protection(recipe, find(recipe.method))
        names = [] if self.data is None else [read_manifest(Path(without_part(self.data)[0].strip())).name]
        results = results_of(policy, recipe, self.name, names)
        return [row | {"result": results.get(row["rule"], "met")} for row in rows]

    def decide(self, name: str, decision: Literal["approved", "refused"], because: str = "") -> list[Request]:
        """Decide about a request, or refuse all requests of a run, and record each decision."""
        decided = self.requests.decide(name, decision, because)
        for request in decided:
            bound = dict(request.bound)
            self.record.append("decided", run=request.run, decision=decision, because=because, bound=bound)
        return decided

    def differences(self, run: str, ledger: Path) -> list[str]:
        """Return the differences between the record and the server's ledger of a run."""
        rows = [row for row in self.record.read() if row["run"] == run]
        if not rows:
            raise UserError(run, "is not a run in this site's record; list them with `fedvisage site log KIT`")
        try:
            return list(compare_with_ledger(rows, read_lines(ledger), self.name))
        except (KeyError, TypeError) as error:
            raise UserError(str(ledger), "is not the ledger of a run") from error


def detail_of(row: Row) -> str:
    """Return the content of a line of the record in a few words."""
    if row["event"] == "sent":
        fields = ", ".join(f"{each['field']} {size(each['bytes'])}" for each in row["fields"])
        return _short(f"round {row['round']}, {row['call']}: {fields}")
    if row["event"] == "accepted":
        return _short(f"{row['operator']}, {row['method']}: {row['protection']}")
    because = f": {row['because']}" if row.get("because") else ""
    return _short(row.get("reason") or f"{row.get('decision')}{because}")


def review_page(site: SiteFiles, name: str, audit: Path | None = None) -> str:
    """Return the page about a run that asks for approval, with the findings of an audit."""
    request = site.requests.get(name)
    recipe = recipes.validate(request.recipe, read_method)
    method, local = describe(find(recipe.method)), recipe.training.local
    facts = {
        "title": recipe.title,
        "method": f"{method['title']} ({method['paper']})",
        "rounds": recipe.training.rounds,
        "work per round": f"{local.epochs} epochs" if local.epochs else f"{local.batches} batches",
        "pixels per side": recipe.input.size,
        "sites": sorted(recipe.data.sites),
        "sites that your rules do not name": list(request.added) or "none",
        **{f"bound: {key}": value for key, value in request.bound.items()},
    }
    leaving = [
        {key: each[key] for key in ("field", "kind")} | {"declared": ", ".join(each.get("parts", [each["guarantee"]]))}
        for each in method["leaves_a_site"]
    ]
    return fill_template(
        "site_request.html.jinja",
        site=site.name,
        request=request,
        facts=_pairs(facts),
        leaving=_table(leaving, "field", "kind", "declared"),
        protection=protection_of(recipe),
        sees=(recipe.federation.secure and method["sees_in_secure_sums"]) or method["server_sees"],
        kinds={each["kind"] for each in leaving},
        findings=None if audit is None else _findings(audit),
        federation=recipe.federation,
        recipe=_pairs(dict(flatten(request.recipe))),
    )


def _findings(audit: Path) -> list[dict[str, str]]:
    """Return title and result of each attack in the file that ``fedvisage audit`` writes."""
    remedy = "`fedvisage audit RUN` writes RUN/audit/audit.json"
    try:
        applied = [each for each in read_json(audit, remedy)["audits"] if each["applies"]]
        return [{key: _short(each[key]) for key in ("title", "says")} for each in applied]
    except (KeyError, TypeError) as error:
        raise UserError(str(audit), f"is not an audit; {remedy}") from error


def report_page(site: SiteFiles) -> str:
    """Return the page for the data-protection officer: runs, refusals and decisions of the site's record."""
    rows, tables = site.record.read(), {}
    for event in ("refused", "decided"):
        chosen = (row for row in rows if row["event"] == event)
        listed = [{"time": row["time"], "run": row["run"], "content": detail_of(row)} for row in chosen]
        tables[event] = _table(listed, "time", "run", "content")
    titles = ("run", "began", "operator", "purpose", "method", "protection", "members", "rounds", "sent", "ε so far")
    tables["runs"] = _table(list(_runs(rows)), *titles)
    return fill_template("site_record.html.jinja", site=site.name, lines=len(rows), **tables)


def _runs(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield one row per run that the site accepted."""
    first: dict[str, Row] = {}
    for row in rows:
        if row["event"] == "accepted":
            first.setdefault(row["run"], row)
    for run, began in first.items():
        sent = [row for row in rows if row["event"] == "sent" and row["run"] == run]
        spent = [row["epsilon"] for row in sent if "epsilon" in row]
        yield {
            **{key: _short(began[key]) for key in ("run", "operator", "method", "protection", "members")},
            "began": began["time"],
            "purpose": _short(began["title"]) or None,
            "rounds": f"{max((row['round'] for row in sent), default=0)} of {began['rounds']}",
            "sent": size(sum(each["bytes"] for row in sent for each in row["fields"])),
            "ε so far": f"{max(spent):.4g}" if spent else None,
        }


def _pairs(facts: Mapping[str, Any]) -> Table:
    return _table([{"key": key, "value": _short(value)} for key, value in facts.items()], "key", "value")


def _table(rows: Sequence[Mapping[str, Any]], *columns: str) -> Table:
    return table("", rows, {name: name for name in columns}, names=len(columns))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = [f"{name} {key}" for name, key in value.items()]
    return plain_line(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
