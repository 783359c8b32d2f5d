"""One self-contained HTML page about a run: no scripts, no external resources, no content beyond the run's files."""

import base64
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from fedvisage.base.errors import UserError
from fedvisage.base.files import CACHE, flatten, write_atomically
from fedvisage.data.overlap import SITE, TARGET
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import existing_set
from fedvisage.federation.record.attendance import training_summary
from fedvisage.federation.record.ledger import LEDGER
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import Scores
from fedvisage.metrics.threshold import SOURCE_RULES, warning_of_end
from fedvisage.report import content, figures, privacy, recognition
from fedvisage.report.curves import COLOURS, INK, ON_DARK, QUIET
from fedvisage.report.figures import Figure
from fedvisage.report.groups import tables_by_group
from fedvisage.report.run_files import Row, RunFiles, damaged_files_are_errors, read_run
from fedvisage.report.tables import Table, html, size

NAME = "report.html"
SHOWN = ("method", "rounds", "target", "seed", "level", "ended")


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
    metrics = run.metrics
    recognises = metrics.get("task") == "recognition"
    # A run on merged data counts the rounds of the merged site, which is none of the recipe's.
    trainers = set((metrics.get("attendance") or {}).get("rounds", ()))
    drawings = [*(recognition.figures(run) if recognises else []), *figures.figures(run)]
    return fill_template(
        "page.html.jinja",
        title=str(
            run.recipe.get("title") or f"{metrics.get('method', 'run')}, target {metrics.get('target') or 'none'}"
        ),
        run=run.path.name,
        metrics={name: metrics.get(name) for name in SHOWN},
        has_members=bool(metrics.part("members")),
        has_intervals=bool(metrics.part("intervals")),
        trained_by=training_summary(metrics),
        kept=describe_kept_round(run),
        headlines=recognition.headlines(metrics) if recognises else content.headlines(metrics),
        threshold=recognition.threshold_sentence(metrics) if recognises else threshold_sentence(metrics),
        results=_drop_missing(
            *(recognition.results(metrics) if recognises else ()),
            content.confusion_table(run),
            content.target_table(metrics),
            content.published_table(metrics),
            content.species_table(metrics),
            content.members_table(metrics),
            content.adaptation_table(metrics),
            content.heldout_table(metrics),
            content.kept_table(metrics),
            *tables_by_group(metrics.part("by")),
            content.shortcuts_table(metrics),
        ),
        figures=with_theme(drawings),
        uploads=_drop_missing(content.uploads_table(run.uploads), content.site_uploads_table(run.uploads)),
        unseen=privacy.describe_unseen(run),
        overlaps=privacy.sentences(run),
        lacking=run.lacking,
        nothing_left=nothing_left(run),
        promises=privacy.promises(metrics, run.recipe),
        privacy=privacy.page(run),
        audits=privacy.sections(run),
        failures=_drop_missing(content.failures_table(run.rounds)),
        costs=costs(metrics),
        is_merged=bool(trainers) and not trainers & set(metrics.get("sites", ())),
        has_own_method="method" in run.environment,
        has_scores=run.target_scores is not None,
        noise=metrics.get("privacy", {}).get("noise"),
        recipe=yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True) if run.recipe else "",
        environment=flatten(run.environment),
        worst=worst_images(run, cache, images),
    )


def describe_kept_round(run: RunFiles) -> str:
    """Return a sentence about the round of the model, if the recipe keeps that with the lowest held-out EER."""
    eers = [(row["heldout"]["eer"], row["round"]) for row in run.rounds if "eer" in row.get("heldout", {})]
    if not eers or (run.recipe.get("evaluation") or {}).get("keep") != "best":
        return ""
    eer, number = min(eers)
    return f"The model is that of round {number}, which had the lowest held-out EER ({eer:.2%})."


def fill_template(name: str, /, **values: Any) -> str:
    """Return a page from its template: every text is escaped, and undefined variables are errors."""
    templates = Environment(
        loader=PackageLoader("fedvisage.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["table"] = html
    colours = {"light": _colour_variables(COLOURS), "dark": _colour_variables(ON_DARK)}
    return templates.get_template(name).render(colours=colours, **values)


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
    where = "on the sites' held-out subjects" if rule == "fixed" else "there"
    errors = (
        f"; it accepts {100 * accepts:.2f} % of attacks and rejects {100 * rejects:.2f} % of bona fide {where}"
        if accepts is not None and rejects is not None
        else ""
    )
    errors += warning_of_end(value) if rule in SOURCE_RULES else ""
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


def with_theme(drawings: Iterable[Figure]) -> list[tuple[str, str, Markup]]:
    """Return figures whose drawings, if they have one, are parts of a page."""
    return [(title, meaning, apply_theme(drawing, title)) for title, meaning, drawing in drawings]


def apply_theme(drawing: str, title: str) -> Markup:
    """Make an SVG drawing part of the page: its colours follow the page's theme. No drawing stays empty.

    The texts of the drawing are already escaped; the drawing contains no scripts and no links.
    """
    if not drawing:
        return Markup("")
    head, rest = drawing[drawing.index("<svg") :].split(">", 1)
    body = re.sub(r'\s(width|height)="[^"]*"', "", head) + ">" + rest  # the page sets the width
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[\w.]+">', "<g>", body)  # ids repeat in every drawing, and nothing refers to them
    body = body.replace(INK, "currentColor").replace(QUIET, "var(--quiet)")
    for index, colour in enumerate(COLOURS):
        body = body.replace(colour, f"var(--line{index})")
    label = Markup('<svg role="img" aria-label="{}"').format(title)
    return Markup(body.replace("<svg", label, 1))


def _colour_variables(colours: Sequence[str]) -> Markup:
    """Return the line colours as variables of the style sheet."""
    return Markup(" ".join(f"--line{index}: {colour};" for index, colour in enumerate(colours)))


def _drop_missing(*tables: Table | None) -> list[Table]:
    return [table_or_none for table_or_none in tables if table_or_none is not None]


# The worst-scored faces: bona fide images and attacks of each species, with their scores.
#
# Readers share reports, and faces should not leave their owner with them: a report shows photographs only if the recipe
# or the caller asks for them, and rendered people unless they opt out. The images come from the set of the evaluation,
# identified by its digest. If that set is not on this machine, or the run was a federation's, there are no images.

EACH = 4
SIDE = 128  # pixels: larger images are reduced
RENDERED = "synthetic "
"""Start of the ``source`` of every rendered set."""


@dataclass(frozen=True)
class WorstImage:
    """A face as part of a page, with its score and whether the decision was wrong."""

    address: str
    score: str
    wrong: bool


@dataclass(frozen=True)
class WorstImages:
    """A description of the source set, and the faces of each kind, the worst first."""

    description: str
    kinds: tuple[tuple[str, tuple[WorstImage, ...]], ...]


def worst_images(run: RunFiles, cache: Path, wanted: bool | None = None) -> WorstImages | None:
    """Return the worst images of a simulation's target, if they may be shown and the set is available."""
    section = run.recipe.get("report")
    requested = section.get("images") if isinstance(section, dict) else None
    show = requested if wanted is None else wanted
    scores = run.target_scores
    simulated = any(place.startswith(SITE) for place in run.digests)
    if show is False or scores is None or not simulated:
        return None
    target_set = _set_of(run, cache)
    if target_set is None and show:
        return WorstImages("The set that the run was evaluated on is not available, so its images cannot be shown.", ())
    if target_set is None or (show is None and not target_set.source.startswith(RENDERED)):
        return None
    model = str(np.unique(scores.model)[0])
    model_scores = scores.where(scores.model == model)
    threshold = content.threshold_of(run.metrics, model)
    attacks = model_scores.where(model_scores.label == 0)
    scores_by_kind = [("bona fide", model_scores.where(model_scores.label == 1))]
    for name in np.unique(attacks.species).tolist():
        scores_by_kind.append((name or "attack", attacks.where(attacks.species == name)))
    kinds = tuple(
        (name, pictures)
        for name, kind_scores in scores_by_kind
        if len(kind_scores) and (pictures := _pictures(target_set, kind_scores, threshold))
    )
    return WorstImages(_describe_source(target_set, run.recipe, model), kinds) if kinds else None


def _set_of(run: RunFiles, cache: Path) -> PreparedSet | None:
    """Open the set of the evaluation, if it is on this machine and unchanged."""
    entry = (run.recipe.get("data") or {}).get("target")
    try:
        path = existing_set(split_entry(str(entry))[0], cache) if entry else None
        margin = (run.recipe.get("input") or {}).get("margin")
        target_set = PreparedSet.open(path).at_margin(margin) if path is not None else None
    except UserError:  # the set may have been removed or damaged since, and the report works without it
        return None
    return target_set if target_set is not None and target_set.digest == run.digests.get(TARGET) else None


def worst_of(scores: Scores) -> list[int]:
    """Return the worst scores of one kind, one per subject: bona fide that look like attacks, or the reverse."""
    order = np.argsort(scores.live if scores.label[0] == 1 else -scores.live, kind="stable").tolist()
    chosen: dict[str, int] = {}
    for index in order:
        chosen.setdefault(str(scores.subject[index] or scores.item[index]), index)
    return list(chosen.values())[:EACH]


def _pictures(prepared: PreparedSet, scores: Scores, threshold: float | None) -> tuple[WorstImage, ...]:
    places = {item: index for index, item in enumerate(prepared.rows.item.tolist())}
    pictures = []
    for index in worst_of(scores):
        place, score = places.get(str(scores.item[index])), float(scores.live[index])
        if place is not None:
            wrong = threshold is not None and (score >= threshold) != (scores.label[index] == 1)
            image = Image.fromarray(np.array(prepared.images[place]))
            if max(image.size) > SIDE:
                image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
            file = io.BytesIO()
            image.save(file, format="PNG", optimize=True)
            address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
            pictures.append(WorstImage(address, f"{score:+.2f}", bool(wrong)))
    return tuple(pictures)


def _describe_source(prepared: PreparedSet, recipe: Row, model: str) -> str:
    split = str((recipe.get("data") or {}).get("target_split") or "all")
    kind = (
        "Rendered people" if prepared.source.startswith(RENDERED) else "Photographs: take care who receives this page"
    )
    scale = "at their original size" if prepared.size <= SIDE else f"at {SIDE} × {SIDE}"
    splits = "all splits" if split == "all" else f"split {split}"
    scorer = f", scored by the model of {model}" if model else ""
    return (
        f"Set {prepared.name}, {splits}, images of {prepared.size} × {prepared.size} pixels, {scale}{scorer}. {kind}."
    )
