"""The verbs of a site: run it, and decide about runs with its rules, approvals and record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedvisage.base.errors import plain_line
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


class SiteVerbs(Verbs):
    """The verbs of a site; ``site KIT --data DIR`` is short for ``site start KIT --data DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments, with the verb."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = App()

Kit = Annotated[Path, typer.Argument(help="This site's kit.")]
Run = Annotated[str, typer.Argument(help="The run's name; `site pending` and `site log` list them.")]
Asked = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's name, or RUN@DIGEST as `site pending` prints it, of one request."),
]


@app.command()
@with_options(leave_out=("allow_mixed_crops",))
def start(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This site's prepared set; its path stays here.")],
    allow_roster: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow, until the next start, secure sums of these sites (A,B,C) with any settings, or with `plain`"
            " runs without secure sums, on data of other runs: together they can reveal single uploads."
        ),
    ] = None,
    require_secure: Annotated[
        bool, typer.Option("--require-secure", help="Refuse runs without federation.secure.")
    ] = False,
    *,
    options: MemberOptions,
    checks: Checks,
    progress: ProgressOptions,
) -> None:
    """Run a site of a federation until stopped; it trains on local data. `site KIT` is short for `site start KIT`."""
    from fedvisage.nvflare.metrics import serve_metrics
    from fedvisage.nvflare.node import start_site
    from fedvisage.nvflare.terminal import Terminal

    front = Terminal(*line_printers(progress.quiet, progress.log_format))
    with serve_metrics(options.metrics, kit, "site", options.state, front.say):
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
    from rich.table import Table
    from rich.text import Text

    from fedvisage.methods import read_method
    from fedvisage.nvflare.owner.commands import SiteFiles
    from fedvisage.recipe import load
    from fedvisage.studies.shipped import locate

    site = SiteFiles(kit)
    if (written := site.write_policy()) is not None:
        say(f"{written}: edit it; the next run must meet it")
    rows = site.check_policy(None if recipe is None else load(locate(recipe, verb="run"), (), read_method))
    table = Table()
    for title in rows[0]:
        table.add_column(title, overflow="fold")  # keys are compared, so none is cut
    for row in rows:
        table.add_row(*(Text(plain_line(str(value))) for value in row.values()))
    console().print(table)
    say(f"key of this site, for the rules of other sites: {site.key}")


@app.command()
def pending(kit: Kit, as_json: AsJson = False) -> None:
    """List the runs that wait for the approval of this site's administrator."""
    from fedvisage.nvflare.owner.commands import SiteFiles

    waiting = SiteFiles(kit).requests.waiting()
    rows = [
        {"request": request.name, "run": request.run, "asked": request.asked, **request.bound} for request in waiting
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no run waits for approval")
    for row in rows:
        say(*(plain_line(f"{key}: {value}") for key, value in row.items()))


@app.command()
def review(
    kit: Kit,
    run: Asked,
    out: Annotated[Path | None, typer.Option(help="The page; default: RUN.html.", show_default=False)] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="The audit.json of a simulation of this recipe, whose findings the page then has."),
    ] = None,
) -> None:
    """Write a page about a run that asks for approval: who asks, what is trained, and what leaves."""
    from fedvisage.nvflare.owner.commands import SiteFiles, review_page

    page, out = review_page(SiteFiles(kit), run, audit), out or Path(f"{run}.html")
    write_atomically(out, page.encode())
    say(str(out))


@app.command()
def approve(kit: Kit, run: Asked) -> None:
    """Approve a run with the recipe, operator, set and version of its request."""
    from fedvisage.nvflare.owner.commands import SiteFiles

    (request,) = SiteFiles(kit).decide(run, "approved")
    recipe = request.bound["recipe"][:16]
    say(f"approved {request.name} with the recipe {recipe}; the operator continues it with --resume")


@app.command()
def refuse(
    kit: Kit, run: Asked, because: Annotated[str, typer.Option(help="The reason, which the operator reads.")]
) -> None:
    """Refuse all requests of a run, or one: the site takes no further part, also after an approval."""
    from fedvisage.nvflare.owner.commands import SiteFiles

    say(*(f"refused {request.name}" for request in SiteFiles(kit).decide(run, "refused", because)))


@app.command()
def log(
    kit: Kit, run: Annotated[str, typer.Option(help="Only the lines of this run.")] = "", as_json: AsJson = False
) -> None:
    """Check this site's own record, and print it: accepted and refused runs, decisions, and every field that left."""
    from fedvisage.nvflare.owner.commands import SiteFiles, detail_of

    rows = [row for row in SiteFiles(kit).record.read() if run in ("", row["run"])]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        say(plain_line(f"{row['number']}  {row['time']}  {row['event']}  {row['run']}  {detail_of(row)}"))


@app.command()
def report(kit: Kit, out: Annotated[Path, typer.Option(help="The page.")] = Path("site-report.html")) -> None:
    """Write a page for the data-protection officer: runs, operators, protections, bytes, refusals and decisions."""
    from fedvisage.nvflare.owner.commands import SiteFiles, report_page

    write_atomically(out, report_page(SiteFiles(kit)).encode())
    say(str(out))


@app.command()
def compare(
    kit: Kit, run: Run, ledger: Annotated[Path, typer.Argument(help="The server's ledger of the run, ledger.jsonl.")]
) -> None:
    """Compare this site's record with the server's ledger, and name each difference."""
    from fedvisage.nvflare.owner.commands import SiteFiles

    lines = SiteFiles(kit).differences(run, ledger)
    say(*(lines or ["the ledger has every field that left this site, and no other"]))
    if lines:
        raise typer.Exit(1)
