"""Tables of one run's report: decisions, error rates, members, adaptation, uploads and failures."""

from __future__ import annotations

import numpy as np

from fedvisage.base.progress import format_count
from fedvisage.federation.record.attendance import failures_of
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import by_video
from fedvisage.metrics.threshold import RATES as RATES_OF_PAPERS
from fedvisage.report.run_files import WHOLE, Row, RunFiles, Uploads, edge_of
from fedvisage.report.tables import Table, percent, size, table


def confusion_table(run: RunFiles) -> Table | None:
    """Return the decisions at the operating point, on faces or on pairs: truth in rows, decisions in columns."""
    return _on_pairs(run) if run.metrics.get("task") == "recognition" else _on_faces(run)


def _on_faces(run: RunFiles) -> Table | None:
    """Count the decisions on bona fide presentations and on each species of attack."""
    scores, metrics = run.target_scores, run.metrics
    if scores is None or not len(scores):
        return None
    level = str(metrics.get("level", "frame"))
    scores = by_video(scores) if level == "video" else scores
    names = np.unique(scores.model).tolist()
    limits = {name: limit for name in names if (limit := threshold_of(metrics, name)) is not None}
    if len(limits) < len(names):
        return None
    live, attack = scores.live >= np.array([limits[name] for name in scores.model.tolist()]), scores.label == 0
    species = np.unique(scores.species[attack]).tolist()
    kinds = {"bona fide": ~attack, **{name or "attack": attack & (scores.species == name) for name in species}}
    kinds |= {"all attacks": attack} if len(species) > 1 else {}
    rows = []
    for name, mask in kinds.items():
        accepted, count = int((live & mask).sum()), int(mask.sum())
        shares = {"live": _share(accepted, count), "attack": _share(count - accepted, count)}
        rows += [{"what": name, **shares, "count": count}] if count else []
    columns = {"what": f"{level}s of", "live": "accepted as live", "attack": "rejected as attack", "count": "total"}
    of_members = " Decisions of all members, each at its own threshold." if len(limits) > 1 else ""
    note = f"BPCER: rejected bona fide {level}s. APCER: accepted attacks.{of_members}"
    return table("Decisions at the threshold", rows, columns, note=note)


def threshold_of(metrics: Metrics, member: str) -> float | None:
    """Return the threshold of a member, or of the only model."""
    own = metrics.number(f"members.{member}.threshold")
    return metrics.number("threshold") if own is None else own


def _on_pairs(run: RunFiles) -> Table | None:
    """Count the decisions on genuine pairs and on impostor pairs."""
    counts, threshold = run.similarities.get(WHOLE), run.metrics.number("threshold")
    if counts is None or threshold is None:
        return None
    edge = edge_of(threshold)
    rows = []
    for name, kind in (("one person", counts[1]), ("two people", counts[0])):
        accepted, count = int(kind[edge:].sum()), int(kind.sum())
        shares = {"one": _share(accepted, count), "two": _share(count - accepted, count)}
        rows += [{"what": name, **shares, "count": count}] if count else []
    columns = {"what": "pairs of", "one": "accepted as one person", "two": "rejected as two", "count": "total"}
    note = "On the benchmark. False matches: accepted pairs of two people; false non-matches: rejected pairs of one."
    return table("Decisions at the threshold", rows, columns, note=note)


def _share(part: int, count: int) -> str:
    return f"{part:,} ({100 * part / count:.2f} %)".replace(",", "\u202f") if count else "0"


HEADLINES = {
    "hter": ("HTER", "mean of the rates of accepted attacks and rejected bona fide, at the threshold"),
    "auc": ("AUC", "chance that a living face scores above an attack"),
    "eer": ("EER", "error rate where both kinds are equal; interpolated"),
    "tpr_at_fpr_1pct": ("TPR at FPR 1 %", "attacks detected with at most 1 % false alarms"),
    "acer": ("ACER", "mean of the worst species' APCER and BPCER"),
}
RATES = {
    "hter": "HTER",
    "eer": "EER",
    "auc": "AUC",
    "tpr_at_fpr_1pct": "TPR at FPR 1 %",
    "apcer_pooled": "APCER, pooled",
    "bpcer": "BPCER",
    "acer": "ACER",
}
KEPT_BACK = {"skipped": "kept back by the gate", "taken_back": "taken back"}
KEPT_FIGURES = {"auc": "AUC %", "eer": "EER %"}
KEPT_MODELS = ("start", "result")
KEPT_FARS = 2
"""The number of false acceptance rates in the table for recognition: the lowest that any site can measure."""
KEPT_NOTES = {
    "average": "both networks, with averaged scores or features; each decision computes both",
    "start": "the start",
    "result": "the result of training",
}
MOST_SITE_ROWS = 40


def levels(metrics: Metrics) -> dict[str, Metrics]:
    """Return the target's figures by level, starting with the level of the headline."""
    if metrics.get("hter") is None and metrics.get("bpcer") is None and not metrics.part("apcer"):
        return {}
    first = str(metrics.get("level", "frame"))
    second = "video" if first == "frame" else "frame"
    other = metrics.part(second)
    return {first: metrics} | ({second: other} if other else {})


def bounds(metrics: Metrics, level: str, figure: str) -> list[float] | None:
    """Return a figure's 95 % interval, if the run computed it."""
    interval = metrics.get(f"intervals.{level}.{figure}")
    return interval if isinstance(interval, list) and len(interval) == 2 else None


def headlines(metrics: Metrics) -> list[dict[str, str]]:
    """Return the figures for the top of the page: name, value, interval, explanation."""
    by_level = levels(metrics)
    if not by_level:
        return []
    level = next(iter(by_level))
    cards = []
    for figure, (name, meaning) in HEADLINES.items():
        if metrics.get(figure) is None:  # a target with one class
            continue
        interval = bounds(metrics, level, figure)
        span = f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else ""
        cards.append({"name": name, "value": percent(metrics.get(figure)), "interval": span, "meaning": meaning})
    return cards


def target_table(metrics: Metrics) -> Table | None:
    """Return the target's figures, one row per figure, with frame and video level side by side."""
    by_level = levels(metrics)
    if not by_level:
        return None
    rows: list[Row] = [
        {"figure": title}
        | {level: percent(figures.get(name), bounds(metrics, level, name)) for level, figures in by_level.items()}
        for name, title in RATES.items()
    ]
    for name, share in (("10pct", "10 %"), ("5pct", "5 %"), ("1pct", "1 %")):
        row = {level: percent(figures.get(f"bpcer_at_apcer.{name}")) for level, figures in by_level.items()}
        rows.append({"figure": f"BPCER at APCER {share}"} | row)
    counts = {level: figures.part("count").values() for level, figures in by_level.items()}
    amounts = {level: " + ".join(f"{count:.0f}" for count in of_level) or None for level, of_level in counts.items()}
    rows.append({"figure": "bona fide + attacks"} | amounts)
    note = "In brackets: 95 % intervals, bootstrapped by subject." if metrics.part("intervals") else ""
    columns = {"figure": "in per cent"} | {level: f"{level}s" for level in by_level}
    return table("At the target", rows, columns, note=note)


def published_table(metrics: Metrics) -> Table | None:
    """Return the figures by the rules of published papers, if the recipe asked for them."""
    figures = metrics.part("published")
    rows: list[Row] = [
        {"figure": title, "value": percent(figures[name])} for name, title in RATES_OF_PAPERS.items() if name in figures
    ]
    note = "Only for comparison with published numbers: two of these rules use labels or training images."
    return (
        table("As papers calculate it", rows, {"figure": "in per cent", "value": "figure"}, note=note) if rows else None
    )


def species_table(metrics: Metrics) -> Table | None:
    """Return APCER of each attack species, at each level."""
    by_level = levels(metrics)
    names = sorted({name for figures in by_level.values() for name in figures.part("apcer")})
    if not names:
        return None
    rows: list[Row] = [
        {"species": name} | {level: percent(figures.get(f"apcer.{name}")) for level, figures in by_level.items()}
        for name in names
    ]
    rows.append(
        {"species": "all, pooled"} | {level: percent(row.get("apcer_pooled")) for level, row in by_level.items()}
    )
    columns = {"species": "species"} | {level: f"APCER %, {level}" for level in by_level}
    return table("Accepted attacks, by species", rows, columns)


def members_table(metrics: Metrics) -> Table | None:
    """Return the figures of each member model, for methods that keep one per site."""
    rows = [
        {"member": name, "threshold": f"{figures['threshold']:+.3f}" if "threshold" in figures else None}
        | {figure: percent(figures.get(figure)) for figure in RATES}
        for name, figures in metrics.parts("members").items()
    ]
    columns = {"member": "model of", **RATES, "threshold": "threshold"}
    return table("Each site's own model, at the target (per cent)", rows, columns) if rows else None


def adaptation_table(metrics: Metrics) -> Table | None:
    """Return the results of adapting each model to the target's images."""
    rows: list[Row] = [
        {"model": name, "adapted": outcome["adapted"]}
        | {
            outcome_kind: "; ".join(f"{count}: {reason}" for reason, count in outcome.part(outcome_kind).items())
            or "none"
            for outcome_kind in KEPT_BACK
        }
        for name, outcome in metrics.parts("adaptation").items()
    ]
    columns = {"model": "model", "adapted": "adapted to", **KEPT_BACK}
    note = "The source model decided where the gate withheld images or reverted an adaptation."
    return table("Test-time adaptation, in images", rows, columns, note=note) if rows else None


def heldout_table(metrics: Metrics) -> Table | None:
    """Return the error rates from the sites' histograms, of held-out subjects or of training subjects."""
    training = metrics.parts("sites_training")
    sites = training or metrics.parts("sites_heldout")
    titles = {"auc": "AUC %", "eer": "EER %", "apcer_pooled": "APCER %, pooled", "bpcer": "BPCER %"}
    own = f"personal.{metrics.get('personal.model')}"
    titles |= {f"{own}.auc": "AUC %, own model", f"{own}.eer": "EER %, own model"}
    titles = {key: title for key, title in titles.items() if any(row.get(key) is not None for row in sites.values())}
    rows = [{"site": name} | {key: percent(row.get(key)) for key in titles} for name, row in sites.items()]
    kind, subjects = ("training", "the training images") if training else ("held-out", "held-out subjects")
    note = f"From histograms of {kind} scores; the scores themselves stay at the sites."
    return table(f"At the sites, on {subjects}", rows, {"site": "site"} | titles, note=note) if rows else None


def kept_table(metrics: Metrics) -> Table | None:
    """Return the held-out metrics of start and result by site, for runs that chose between them."""
    kept = metrics.part("kept")
    if not kept:
        return None
    sites = kept.parts("result")
    lowest = sorted({far for row in sites.values() for far in row.rates("tar")}, key=float)[:KEPT_FARS]
    titles = KEPT_FIGURES | {f"tar@{far}": f"TAR % at FAR {far}" for far in lowest}
    columns = {f"{model}.{figure}": f"{titles[figure]}, {model}" for figure in titles for model in KEPT_MODELS}
    rows = []
    for site in sites:
        names = {column: column.replace(".", f".{site}.", 1) for column in columns}
        rows.append({"site": site} | {column: percent(kept.get(name)) for column, name in names.items()})
    note = f"From histograms of held-out scores. The run kept {KEPT_NOTES[kept['model']]}."
    return table("Start and result at the sites", rows, {"site": "site"} | columns, note=note)


def shortcuts_table(metrics: Metrics) -> Table | None:
    """Return at how many sites each property alone separated the classes; None without ``evaluation.shortcuts``."""
    counts, sites = metrics.part("shortcuts.separates"), metrics.get("shortcuts.sites")
    rows: list[Row] = [{"property": name, "sites": f"{count} of {sites}"} for name, count in counts.items()]
    columns = {"property": "property", "sites": "separates the classes at"}
    note = "The sites were asked before training. A network can learn such a property instead of the presentation."
    return table("Shortcuts in the sites' data", rows, columns, note=note) if rows else None


def uploads_table(uploads: Uploads) -> Table | None:
    """Return the fields that left the sites, one row per declared field."""
    groups: dict[tuple[str, ...], list[list[int]]] = {}
    for names, total in sorted(uploads.fields.items()):
        groups.setdefault(names[:3], []).append(total)
    rows = [
        {
            "field": field,
            "kind": kind,
            "guarantee": guarantee or None,
            "sites": len(totals),
            "messages": sum(messages for messages, _, _ in totals),
            "each": size(max(largest for _, largest, _ in totals)),
            "all": size(sum(total for _, _, total in totals)),
        }
        for (field, kind, guarantee), totals in groups.items()
    ]
    titles = {"field": "field", "kind": "kind", "guarantee": "what is declared of it", "sites": "sites"}
    titles |= {"messages": "messages", "each": "largest", "all": "total"}
    note = (
        f"{format_count(len(uploads.repeated), 'message')} of these ({size(sum(uploads.repeated))}) left the sites "
        "before an interruption, and again when the run was resumed. All of them count here."
    )
    return table("What left the sites", rows, titles, names=3, note=note if uploads.repeated else "") if rows else None


def site_uploads_table(uploads: Uploads) -> Table | None:
    """Return the bytes that left each site, one column per field."""
    fields = sorted({field for field, _, _, _ in uploads.fields})
    sites: dict[str, dict[str, int]] = {}
    for (field, _, _, site), (_, _, total) in uploads.fields.items():
        sums = sites.setdefault(site, dict.fromkeys(fields, 0))
        sums[field] += total
    rows = []
    for site, sums in sorted(sites.items())[:MOST_SITE_ROWS]:
        row: Row = {"site": site} | {f"field {field}": size(total) for field, total in sums.items()}
        rows.append(row | {"all": size(sum(sums.values()))})
    columns = {"site": "site"} | {f"field {field}": field for field in fields} | {"all": "total"}
    rest = len(sites) - len(rows)
    note = f"{rest} more sites are in ledger.jsonl." if rest > 0 else ""
    return table("Bytes that left each site", rows, columns, note=note) if rows else None


def failures_table(rounds: list[Row]) -> Table | None:
    """Return the sites that did not answer in a round, or could not store their state, and why."""
    rows = [
        {"round": str(row.get("round")), "site": site, "reason": reason}
        for row in rounds
        for site, reason in failures_of(row)
    ]
    columns = {"round": "round", "site": "site", "reason": "reason"}
    rest = len(rows) - MOST_SITE_ROWS
    note = f"{rest} more are in rounds.jsonl." if rest > 0 else ""
    return table("Failures of sites", rows[:MOST_SITE_ROWS], columns, names=3, note=note) if rows else None
