"""The verbs of a site: run it, and decide about runs with its rules, approvals and record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.base.errors import UserError
from fedvisage.base.files import write_atomically
from fedvisage.cli.federation import MemberOptions
from fedvisage.cli.options import (
    App,
    AsJson,
    ProgressOptions,
    Verbs,
    console,
    line_printers,
    print_json,
    recipe_files,
    say,
    with_options,
)
from fedvisage.tasks.checks import Checks

START = "start"


class SiteVerbs(Verbs):
    """The verbs of a site; ``site KIT --data DIR`` is short for ``site start KIT --data DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments, with the verb."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [START, *args]
        return super().parse_args(ctx, args)


app = App()

Kit = Annotated[Path, typer.Argument(help="This site's kit.")]
Run = Annotated[str, typer.Argument(help="The run's name; `site pending` and `site log` list them.")]
Rosters = Annotated[
    list[str] | None,
    typer.Option(
        help="Allow, until the next start, secure sums of these sites (A,B,C) with any settings, or with `plain` runs"
        " without secure sums, on data of other runs: together they can reveal single uploads."
    ),
]


@app.command(START)
@with_options(leave_out=("allow_mixed_crops",))
def start(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This site's prepared set; its path stays here.")],
    allow_roster: Rosters = None,
    require_secure: Annotated[
        bool, typer.Option("--require-secure", help="Refuse runs without federation.secure.")
    ] = False,
    *,
    options: MemberOptions,
    checks: Checks,
    progress: ProgressOptions,
) -> None:
    """Run a site of a federation until stopped; it trains on local data. `site KIT` is short for `site start KIT`."""
    from fedvisage.nvflare.commands import start_site
    from fedvisage.nvflare.terminal import Terminal

    front = Terminal(*line_printers(progress.quiet, progress.log_format))
    start_site(
        kit,
        data,
        options.state,
        options.public,
        front,
        verbose=options.verbose,
        checks=checks,
        weights=options.weights,
        rosters=allow_roster or (),
        require_secure=require_secure,
    )


@app.command()
def policy(
    kit: Kit,
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe: print what it would meet.", autocompletion=recipe_files)
    ] = None,
) -> None:
    """Write commented rules into a kit without any; otherwise check and print them."""
    from fedvisage.methods import read_method
    from fedvisage.nvflare.owner.commands import check_policy, own_key, write_policy
    from fedvisage.recipe import load
    from fedvisage.studies.shipped import locate

    if (written := write_policy(kit)) is not None:
        say(f"{written}: edit it; the next run must meet it")
    print_rows(check_policy(kit, None if recipe is None else load(locate(recipe, verb="run"), (), read_method)))
    say(f"key of this site, for the rules of other sites: {own_key(kit)}")


@app.command()
def pending(kit: Kit, as_json: AsJson = False) -> None:
    """List the runs that wait for the approval of this site's administrator."""
    from fedvisage.nvflare.owner.commands import requests_of

    waiting = [request for request in requests_of(kit).all() if request.decision == "waiting"]
    rows = [{"run": each.run, "operator": each.operator, "asked": each.asked, **each.bound} for each in waiting]
    if as_json:
        print_json(rows)
    else:
        print_rows([{key: row[key] for key in ("run", "operator", "asked")} for row in rows] or [{"run": "none"}])


@app.command()
def review(
    kit: Kit,
    run: Run,
    out: Annotated[Path | None, typer.Option(help="The page; default: RUN.html.", show_default=False)] = None,
) -> None:
    """Write a page about a run that asks for approval: who asks, what is trained, and what leaves."""
    from fedvisage.nvflare.owner.commands import review_page

    _write_page(out or Path(f"{run}.html"), review_page(kit, run))


@app.command()
def approve(kit: Kit, run: Run) -> None:
    """Approve a run with its present recipe, operator, set and version."""
    from fedvisage.nvflare.owner.commands import decide

    request = decide(kit, run, "approved")
    say(f"approved {run} with the recipe {request.bound['recipe'][:16]}; the operator continues it with --resume")


@app.command()
def refuse(
    kit: Kit, run: Run, because: Annotated[str, typer.Option(help="The reason, which the operator reads.")]
) -> None:
    """Refuse a run, or withdraw an approval: the site takes no further part in it."""
    from fedvisage.nvflare.owner.commands import decide

    decide(kit, run, "refused", because)
    say(f"refused {run}")


@app.command()
def log(
    kit: Kit,
    run: Annotated[str, typer.Option(help="Only the lines of this run.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check this site's own record, and print it: accepted and refused runs, decisions, and every field that left."""
    from fedvisage.nvflare.owner.commands import detail_of, read_record

    rows = read_record(kit, run)
    if as_json:
        print_json(rows)
    else:
        print_rows(
            [
                {**{key: row[key] for key in ("number", "time", "event", "run")}, "content": detail_of(row)}
                for row in rows
            ]
            or [{"run": "none"}]
        )


@app.command()
def report(kit: Kit, out: Annotated[Path, typer.Option(help="The page.")] = Path("site-report.html")) -> None:
    """Write a page for the data-protection officer: runs, operators, protections, bytes, refusals and decisions."""
    from fedvisage.nvflare.owner.commands import report_page

    _write_page(out, report_page(kit))


@app.command()
def compare(
    kit: Kit,
    run: Run,
    ledger: Annotated[Path, typer.Argument(help="The server's ledger of the run, ledger.jsonl.")],
) -> None:
    """Compare this site's record with the server's ledger, and name each difference."""
    from fedvisage.nvflare.owner.commands import differences

    lines = list(differences(kit, run, ledger))
    say(*lines)
    if lines:
        raise typer.Exit(1)
    say("the ledger has every field that left this site, and no other")


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; their texts may be hostile."""
    from rich.table import Table
    from rich.text import Text

    from fedvisage.base.errors import plain_line

    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(Text(plain_line(str(value))) for value in row.values()))
    console().print(table)


def _write_page(path: Path, page: str) -> None:
    if path.is_dir():
        raise UserError(str(path), "is a directory; give a file for the page")
    write_atomically(path, page.encode())
    say(str(path))
