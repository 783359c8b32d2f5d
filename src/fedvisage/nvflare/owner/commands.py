"""The functions behind the verbs of ``fedvisage site``, except ``start``.

They work beside a running site, and connect to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import flatten, write_atomically
from fedvisage.data.prepared import read_manifest
from fedvisage.datasets.sources import without_part
from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods import find, read_method
from fedvisage.nvflare.certificates import certificates_in, credentials_in, fingerprint_of
from fedvisage.nvflare.kits import Kit, open_kit, own_settings
from fedvisage.nvflare.owner.acceptance import protection_of
from fedvisage.nvflare.owner.policy import policy_path, policy_text, read_policy, rows_of
from fedvisage.nvflare.owner.record import Row, SiteRecord, compare_with_ledger
from fedvisage.nvflare.owner.requests import Request, Requests
from fedvisage.recipe import Recipe
from fedvisage.report.site_page import PageSection, site_page
from fedvisage.report.tables import size, table
from fedvisage.tasks.catalogue import describe

LETTERS = 300


def write_policy(kit: Path) -> Path | None:
    """Write commented rules into a site's kit, and return their path; None if it has rules."""
    opened = open_kit(kit, "site")
    path = policy_path(opened.path)
    if path.exists():
        return None
    write_atomically(path, policy_text().encode())
    return path


def own_key(kit: Path) -> str:
    """Return the fingerprint of a site's key, which other sites pin."""
    credentials = credentials_in(open_kit(kit, "site").path, at_server=False)
    return fingerprint_of(certificates_in(credentials.certificate)[0])


def check_policy(kit: Path, recipe: Recipe | None) -> list[dict[str, Any]]:
    """Return the rules of a site, and for a recipe what it would meet."""
    opened = open_kit(kit, "site")
    policy = read_policy(opened.path, opened.name)
    if policy is None:
        raise UserError(str(policy_path(opened.path)), "does not exist; `fedvisage site policy KIT` writes it")
    if recipe is None:
        rules = policy.model_dump(mode="json", exclude={"format"}).items()
        return [{"rule": rule, "value": _short(value)} for rule, value in rules if value is not None]
    data = own_settings(opened.path).get("data")
    names = [] if data is None else [read_manifest(Path(without_part(data)[0].strip())).name]
    return list(rows_of(policy, recipe, opened.name, names))


def requests_of(kit: Path) -> Requests:
    """Return the requests of a site."""
    return Requests(_state(open_kit(kit, "site")))


def decide(kit: Path, run: str, decision: Literal["approved", "refused"], because: str = "") -> Request:
    """Decide about a run, and record the decision."""
    opened = open_kit(kit, "site")
    request = Requests(_state(opened)).decide(run, decision, because)
    values = {"run": run, "decision": decision, "because": because, "bound": dict(request.bound)}
    SiteRecord(opened.path, _state(opened)).append("decided", **values)
    return request


def read_record(kit: Path, run: str = "") -> list[Row]:
    """Return the lines of a site's record, of one run or of all; refuse one that was cut or edited."""
    opened = open_kit(kit, "site")
    rows = SiteRecord(opened.path, _state(opened)).read()
    return [row for row in rows if run in ("", row["run"])]


def detail_of(row: Row) -> str:
    """Return the content of a line of the record in a few words."""
    if row["event"] == "sent":
        fields = ", ".join(f"{each['field']} {size(each['bytes'])}" for each in row["fields"])
        return plain_line(f"round {row['round']}, {row['call']}: {fields}", LETTERS)
    if row["event"] == "accepted":
        return plain_line(f"{row['operator']}, {row['method']}: {row['protection']}", LETTERS)
    because = f": {row['because']}" if row.get("because") else ""
    return plain_line(row.get("reason") or f"{row.get('decision')}{because}", LETTERS)


def differences(kit: Path, run: str, ledger: Path) -> Iterator[str]:
    """Yield the differences between a site's record and the server's ledger of a run."""
    opened = open_kit(kit, "site")
    rows = SiteRecord(opened.path, _state(opened)).read()
    if not any(row["run"] == run for row in rows):
        raise UserError(run, "is not a run in this site's record; list them with `fedvisage site log KIT`")
    try:
        yield from compare_with_ledger(rows, read_lines(ledger), run, opened.name)
    except (KeyError, TypeError) as error:
        raise UserError(str(ledger), "is not the ledger of a run") from error


def review_page(kit: Path, run: str) -> str:
    """Return the page about a run that asks for approval."""
    opened = open_kit(kit, "site")
    request = Requests(_state(opened)).get(run)
    recipe = recipes.validate(request.recipe, read_method)
    method = describe(find(recipe.method))
    local = recipe.training.local
    facts = {
        "title": recipe.title or None,
        "method": f"{method['title']} ({method['paper']})",
        "task": method["task"],
        "rounds": recipe.training.rounds,
        "work per round": f"{local.epochs} epochs" if local.epochs else f"{local.batches} batches",
        "pixels per side": recipe.input.size,
        "sites": ", ".join(sorted(recipe.data.sites)),
        "sites that your rules do not name": ", ".join(request.added) or "none",
        "sets of this site": request.bound["sets"],
        "versions": request.bound["versions"],
        "digest of the recipe": request.bound["recipe"],
    }
    leaving = [
        {
            "field": each["field"],
            "kind": each["kind"],
            "declared": ", ".join(each.get("parts", ())) or each["guarantee"],
        }
        for each in method["leaves_a_site"]
    ]
    in_sums = recipe.federation.secure is not None and method["sees_in_secure_sums"]
    sees = f"The server sees: {method['sees_in_secure_sums'] if in_sums else method['server_sees']}."
    columns = {"field": "field", "kind": "kind", "declared": "what is declared of it"}
    return site_page(
        opened.name,
        f"Request: run {request.run}",
        [
            PageSection(
                "Who asks",
                [
                    f"{request.bound['operator'].replace(' ', ', with the key ')}. This site verified the signature.",
                    f"Asked at {request.asked}. The request is {request.decision}.",
                ],
            ),
            PageSection("What is trained", (), [_facts(facts)]),
            PageSection(
                "What leaves this site",
                [
                    "No image, label, file name or identity leaves this site. These fields do:",
                    f"Protection: {protection_of(recipe)}. {sees}",
                ],
                [table("", leaving, columns, names=3)],
            ),
            PageSection("What an attacker could learn", list(_risks(recipe, {each["kind"] for each in leaving}))),
            PageSection(
                "Your decision",
                [
                    "An approval holds for this recipe, operator, set and version only.",
                    f"fedvisage site approve KIT {request.run}",
                    f"fedvisage site refuse KIT {request.run} --because REASON",
                ],
            ),
            PageSection("The whole recipe", (), [_facts(dict(flatten(dict(request.recipe))))]),
        ],
    )


def report_page(kit: Path) -> str:
    """Return the page for the data-protection officer: runs, refusals and decisions of this site's record."""
    opened = open_kit(kit, "site")
    rows = SiteRecord(opened.path, _state(opened)).read()
    runs = list(_runs(rows))
    last = rows[-1] if rows else {"number": 0, "time": "never"}
    refusals = [
        {"time": row["time"], "run": row["run"], "reason": row["reason"]} for row in rows if row["event"] == "refused"
    ]
    decisions = [
        {"time": row["time"], "run": row["run"], "decision": detail_of(row)}
        for row in rows
        if row["event"] == "decided"
    ]
    titles = ("run", "began", "operator", "purpose", "method", "protection", "members", "rounds", "sent", "ε so far")
    return site_page(
        opened.name,
        "Record of this site",
        [
            PageSection(
                "The record",
                [
                    f"It has {last['number']} lines, the last of {last['time']}. Each contains the digest of the line "
                    "before it, and this site's key signs the last one; both were verified for this page.",
                    "The administrator of this site has that key, and could rewrite or delete the record as a whole. "
                    "The operators' signatures in it, and the server's ledger (fedvisage site compare), do not depend "
                    "on this site.",
                ],
            ),
            PageSection("Runs", (), [table("", runs, {title: title for title in titles}, names=7)]),
            PageSection("Refusals", (), [table("", refusals, _columns("time", "run", "reason"), names=3)]),
            PageSection("Decisions", (), [table("", decisions, _columns("time", "run", "decision"), names=3)]),
        ],
    )


def _runs(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield one row per run that this site accepted."""
    first: dict[str, Row] = {}
    for row in rows:
        if row["event"] == "accepted":
            first.setdefault(row["run"], row)
    for run, began in first.items():
        sent = [row for row in rows if row["event"] == "sent" and row["run"] == run]
        spent = [row["epsilon"] for row in sent if "epsilon" in row]
        yield {
            "run": run,
            "began": began["time"],
            "operator": began["operator"],
            "purpose": began["title"] or None,
            "method": began["method"],
            "protection": began["protection"],
            "members": ", ".join(began["members"]),
            "rounds": f"{max((row['round'] for row in sent), default=0)} of {began['rounds']}",
            "sent": size(sum(each["bytes"] for row in sent for each in row["fields"])),
            "ε so far": f"{max(spent):.4g}" if spent else None,
        }


def _risks(recipe: Recipe, kinds: set[str]) -> Iterator[str]:
    """Yield what remains possible for an attacker, as the page on limits states it."""
    if recipe.federation.secure is not None:
        yield (
            "The server sees sums of uploads. A hostile server, or an operator with all other sites, can still learn "
            "about this site from many sums; only noise bounds this."
        )
    else:
        yield (
            "The server sees this site's uploads. It can infer properties of the data, and can test whether an image "
            "was trained on. Averaging is not differential privacy."
        )
    if {"activation", "gradient"} & kinds:
        yield "Split learning: gradients show the label of each image to the server, and activations can hold a face."
    dp = recipe.federation.dp
    if dp is None or dp.noise == 0:
        yield "No noise on the sum: the finished model, which every site gets, carries information about this site too."
    yield "No audit of this run exists at this site. `fedvisage audit` attacks a simulation of the recipe."


def _state(kit: Kit) -> Path:
    return Path(own_settings(kit.path).get("state", kit.path / "state"))


def _facts(facts: Mapping[str, Any]) -> Any:
    rows = [{"key": key, "value": _short(value)} for key, value in facts.items() if value is not None]
    return table("", rows, {"key": "key", "value": "value"}, names=2)


def _columns(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _short(value: Any) -> str:
    pairs = (f"{name} {key[:19]}" for name, key in value.items()) if isinstance(value, dict) else value
    return plain_line(", ".join(map(str, pairs)) if isinstance(value, dict | list) else str(value), LETTERS)
