"""One self-contained HTML page about a run: no scripts, no external resources, no content beyond the run's files."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedvisage.base.files import CACHE, flatten, write_atomically
from fedvisage.federation.record.attendance import training_summary
from fedvisage.federation.record.ledger import LEDGER
from fedvisage.metrics.recorded import Metrics
from fedvisage.report import content, figures, privacy, recognition, worst
from fedvisage.report.curves import COLOURS, INK, ON_DARK, QUIET
from fedvisage.report.privacy import promises
from fedvisage.report.run_files import RunFiles, damaged_files_are_errors, read_run
from fedvisage.report.tables import Table, html, size

NAME = "report.html"
SHOWN = ("method", "rounds", "target", "seed", "level")


def write_report(run: Path, cache: Path = CACHE, images: bool | None = None) -> Path:
    """Write the report of a finished run from its files, and return its path.

    ``images`` decides whether the report shows faces of the target's set. If it is None, the recipe decides; without
    that key, the report shows rendered faces only.
    """
    with damaged_files_are_errors(run):
        page = render(read_run(run), cache, images)
    write_atomically(run / NAME, page.encode("utf-8", "replace"))
    return run / NAME


def render(run: RunFiles, cache: Path = CACHE, images: bool | None = None) -> str:
    """Return the page's HTML."""
    return (
        environment()
        .get_template("page.html.jinja")
        .render({**context(run), "worst": worst.images_of(run, cache, images)})
    )


def environment() -> Environment:
    """Return the template environment: every text is escaped, and undefined variables are errors."""
    templates = Environment(
        loader=PackageLoader("fedvisage.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["table"] = html
    return templates


def colours() -> dict[str, Markup]:
    """Return the line colours for the style sheet, for light and for dark paper."""
    return {"light": Markup(_colour_variables(COLOURS)), "dark": Markup(_colour_variables(ON_DARK))}


def context(run: RunFiles) -> dict[str, Any]:
    """Return the values for the template."""
    metrics = run.metrics
    recognises = metrics.get("task") == "recognition"
    drawings = [*(recognition.figures(run) if recognises else []), *figures.figures(run)]
    return {
        "title": str(
            run.recipe.get("title") or f"{metrics.get('method', 'run')}, target {metrics.get('target') or 'none'}"
        ),
        "run": run.path.name,
        "colours": colours(),
        "metrics": {name: metrics.get(name) for name in SHOWN},
        "has_members": bool(metrics.part("members")),
        "has_intervals": bool(metrics.part("intervals")),
        "trained_by": training_summary(metrics),
        "headlines": recognition.headlines(metrics) if recognises else content.headlines(metrics),
        "threshold": recognition.threshold_sentence(metrics) if recognises else threshold_sentence(metrics),
        "results": _drop_missing(
            *(recognition.results(metrics) if recognises else ()),
            content.confusion_table(run),
            content.target_table(metrics),
            content.published_table(metrics),
            content.species_table(metrics),
            content.members_table(metrics),
            content.adaptation_table(metrics),
            content.heldout_table(metrics),
            content.kept_table(metrics),
        ),
        "figures": [
            (title, meaning, apply_theme(drawing, title) if drawing else "") for title, meaning, drawing in drawings
        ],
        "uploads": _drop_missing(content.uploads_table(run.uploads), content.site_uploads_table(run.uploads)),
        "unseen": privacy.describe_unseen(run),
        "overlaps": privacy.sentences(run),
        "lacking": run.lacking,
        "nothing_left": nothing_left(run),
        "promises": promises(metrics, run.recipe),
        "privacy": privacy.page(run),
        "audits": privacy.sections(run),
        "failures": _drop_missing(content.failures_table(run.rounds)),
        "costs": costs(metrics),
        "recipe": yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True) if run.recipe else "",
        "environment": flatten(run.environment),
    }


def threshold_sentence(metrics: Metrics) -> str:
    """Describe the threshold, the rule that chose it, and its errors on the data of that choice."""
    rule, value = metrics.get("threshold_rule"), metrics.get("threshold")
    if rule is None or value is None:
        return ""
    origin = {
        "fixed": "fixed beforehand",
        "target-eer": "chosen with the target's own labels, so HTER is an oracle value",
        "source-train-eer": "chosen on the images that the sites trained on, without any data of the target",
    }
    choice = origin.get(str(rule), "chosen on the sites' held-out subjects, without any data of the target")
    subject = "mean threshold of the sites' models" if metrics.part("members") else "threshold"
    accepts, rejects = (metrics.number(f"threshold_source.{kind}") for kind in ("far", "frr"))
    errors = (
        f"; it accepts {100 * accepts:.2f} % of attacks and rejects {100 * rejects:.2f} % of bona fide there"
        if accepts is not None and rejects is not None
        else ""
    )
    return f"{subject.capitalize()} {value:+.3f} (logit), rule {rule}: {choice}{errors}."


def nothing_left(run: RunFiles) -> str:
    """Explain the missing table of uploads: nothing left the sites, or the ledger is incomplete."""
    if any(LEDGER in sentence for sentence in run.lacking):
        return "Without a complete ledger.jsonl it is unknown what left the sites."
    if run.metrics.get("bytes_up") or any(row.get("replied") for row in run.rounds):
        return (
            "ledger.jsonl is empty, although sites replied: its lines are lost, so it is unknown what left the sites."
        )
    return "The ledger is empty: nothing left a site."


def costs(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the run's traffic, time and memory."""
    seconds, memory = metrics.get("seconds"), metrics.get("peak_rss_mb")
    rows = [
        ("left the sites", size(metrics.get("bytes_up"))),
        ("came to the sites", size(metrics.get("bytes_down"))),
        ("time in rounds", f"{seconds:,.0f} s" if seconds is not None else "–"),
        ("peak memory", f"{memory:,.0f} MB" if memory is not None else "–"),
    ]
    return [(name, value) for name, value in rows if value != "–"]


def apply_theme(drawing: str, title: str) -> Markup:
    """Make an SVG drawing part of the page: its colours follow the page's theme.

    The texts of the drawing are already escaped; the drawing contains no scripts and no links.
    """
    head, rest = drawing[drawing.index("<svg") :].split(">", 1)
    body = re.sub(r'\s(width|height)="[^"]*"', "", head) + ">" + rest  # the page sets the width
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[\w.]+">', "<g>", body)  # ids repeat in every drawing, and nothing refers to them
    body = body.replace(INK, "currentColor").replace(QUIET, "var(--quiet)")
    for index, colour in enumerate(COLOURS):
        body = body.replace(colour, f"var(--line{index})")
    label = Markup('<svg role="img" aria-label="{}"').format(title)
    return Markup(body.replace("<svg", label, 1))


def _colour_variables(colours: Sequence[str]) -> str:
    """Return the line colours as variables of the style sheet."""
    return " ".join(f"--line{index}: {colour};" for index, colour in enumerate(colours))


def _drop_missing(*tables: Table | None) -> list[Table]:
    return [table_or_none for table_or_none in tables if table_or_none is not None]
