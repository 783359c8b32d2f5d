"""Tables and figures of a recognition run's report: rates, benchmarks, ROC, DET and similarities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.threshold import BINS, Histogram
from fedvisage.report import curves
from fedvisage.report.figures import Figure
from fedvisage.report.run_files import WHOLE, Row, RunFiles, edge_of
from fedvisage.report.tables import MISSING, Table, percent, table

# Tables of further benchmarks: lists of pairs, templates, and sets without a list.

KINDS = {"tar": "TAR at FAR", "tpir": "TPIR at FPIR", "rank": "rank"}
Benchmarks = dict[str, Metrics]


def pairs_table(benchmarks: Benchmarks) -> Table | None:
    """Return accuracy and TAR on each list of pairs."""
    rows = []
    for name, benchmark in benchmarks.items():
        for which, listed in benchmark.parts("lists").items():
            row = {
                "benchmark": name,
                "list": which,
                "accuracy": percent(listed.get("accuracy")),
                "std": percent(listed.get("accuracy_std")),
                "folds": listed.get("folds"),
                "pairs": listed.get("pairs"),
                "left_out": listed.get("left_out"),
            }
            rows.append(row | _cells(listed))
    titles = {
        "benchmark": "benchmark",
        "list": "list",
        "accuracy": "accuracy",
        "std": "standard deviation",
        "folds": "folds",
        **_benchmark_titles(rows),
        "pairs": "pairs",
        "left_out": "left out",
    }
    note = "Each fold is evaluated at the others\u2019 best threshold. Pairs without an image in the set are left out."
    return table("Further benchmarks: lists of pairs (per cent)", rows, titles, names=2, note=note) if rows else None


def spread_table(benchmarks: Benchmarks) -> Table | None:
    """Return the spread of accuracy over groups of people."""
    rows = [
        {
            "benchmark": name,
            "mean": percent(spread.get("mean")),
            "std": percent(spread.get("std")),
            "ratio": MISSING if (ratio := spread.number("skewed_error_ratio")) is None else f"{ratio:.2f}",
        }
        for name, benchmark in benchmarks.items()
        if (spread := benchmark.part("spread"))
    ]
    titles = {"benchmark": "benchmark", "mean": "mean", "std": "standard deviation", "ratio": "skewed error ratio"}
    note = "The ratio is the highest group\u2019s error over the lowest; one is best."
    return table("Accuracy over groups of people (per cent)", rows, titles, note=note) if rows else None


def rates_table(benchmarks: Benchmarks) -> Table | None:
    """Return rates on templates, in both readings, and on sets without a list."""
    rows = []
    for name, benchmark in benchmarks.items():
        generic = benchmark.part("generic")
        tables = benchmark.parts("readings") | ({"all images": generic} if generic else {})
        rows += [{"benchmark": name, "reading": reading} | _cells(rates) for reading, rates in tables.items()]
    titles = {"benchmark": "benchmark", "reading": "reading", **_benchmark_titles(rows)}
    note = (
        "Templates: published counts as released code does, by length and detector\u2019s score, at the nearest FAR,"
        " and joins the galleries; conservative takes unit features, the largest FAR not above it, and each gallery."
    )
    return table("Further benchmarks: rates (per cent)", rows, titles, names=2, note=note) if rows else None


def _cells(rates: Metrics) -> Row:
    """Return the measured rates by their columns."""
    return {
        f"{kind}@{rate}": percent(value)
        for kind in KINDS
        for rate, value in rates.rates(kind).items()
        if value is not None
    }


def _benchmark_titles(rows: list[Row]) -> dict[str, str]:
    """Return a title for each rate in the rows, from the strictest on."""
    rates = {key.partition("@")[::2] for row in rows for key in row if "@" in key}
    ordered = sorted(rates, key=lambda name: (list(KINDS).index(name[0]), float(name[1])))
    return {f"{kind}@{rate}": f"{KINDS[kind]} {rate}" for kind, rate in ordered}


# Figures, from the counts of pairs by similarity.

SHOWN_BINS = 50  # between the ends of the axis
MANY = 8


def figures(run: RunFiles) -> list[Figure]:
    """Return the drawings: title, explanation, SVG text."""
    counts, threshold = run.similarities, run.metrics.number("threshold")
    drawings: list[Figure] = []
    if counts:
        edge = None if threshold is None else edge_of(threshold)
        groups = {
            "all pairs" if name == WHOLE else name: curves.curve_of_counts([pairs], edge, marked=name == WHOLE)
            for name, pairs in list(counts.items())[:MANY]
            if (pairs.sum(axis=1) > 0).all()
        }
        note = "Counts of pairs do not record the people, so there is no interval by person here."
        note += curves.note_undrawn(len(counts), MANY, "groups of pairs")
        explanation = "Every threshold at once; FAR on a logarithmic axis. Up is better."
        drawings.append(("ROC", f"{explanation} {note}", curves.roc_of_pairs(groups, impostors_of(counts))))
        explanation = "The same, on axes that magnify small errors; down is better."
        explanation += curves.note_undrawn(len(counts), MANY, "groups of pairs")
        drawings.append(("DET", explanation, curves.det(groups, curves.DET_OF_PAIRS, 1e-4)))
    if (all_pairs := counts.get(WHOLE)) is not None:
        first, last, _ = ends(all_pairs, threshold)
        outside = int(all_pairs.sum() - all_pairs[:, first:last].sum())
        excess = f" {outside:,} of {int(all_pairs.sum()):,} lie beyond the axis." if outside else ""
        explanation = f"Pairs right of the threshold are taken as one person.{excess}"
        drawings.append(("Similarities", explanation, similarities(all_pairs, threshold)))
    sites = {name: pairs for name, pairs in run.heldout.items() if (pairs.sum(axis=1) > 0).all()}
    if sites:
        explanation = "The finished model on each site's own people and impostors, from the site's histogram."
        drawn = {name: curves.curve_of_counts([pairs]) for name, pairs in list(sites.items())[:MANY]}
        explanation += curves.note_undrawn(len(sites), MANY, "sites")
        drawings.append(("ROC by site", explanation, curves.roc_of_pairs(drawn, impostors_of(sites), "roc-sites")))
    return drawings


def impostors_of(counts: Mapping[str, Histogram]) -> int:
    """Return the largest number of impostor pairs of a histogram."""
    return max(int(histogram[0].sum()) for histogram in counts.values())


def similarities(counts: Histogram, threshold: float | None) -> str:
    """Draw the similarities of genuine and of impostor pairs."""
    first, last, width = ends(counts, threshold)
    edges = np.linspace(-1, 1, BINS + 1)[first : last + 1 : width]
    shares = {
        name: 100 * row[first:last].reshape(-1, width).sum(axis=1) / max(1, row.sum())
        for name, row in (("one person", counts[1]), ("two people", counts[0]))
    }
    labels = ("similarity (cosine)", "share of the pairs (%)")
    return curves.histogram(shares, edges, threshold, labels, "similarities")


def ends(counts: Histogram, threshold: float | None) -> tuple[int, int, int]:
    """Return the first bin of an axis, the bin after its last, and the number of bins drawn as one.

    The axis covers 98 % of the pairs of either kind, a margin, and the threshold.
    """
    shares = [np.cumsum(row) / row.sum() for row in counts if row.sum()]
    places = [int(np.searchsorted(share, part)) for share in shares for part in (0.01, 0.99)] or [0, BINS - 1]
    if threshold is not None:
        places.append(min(BINS - 1, edge_of(threshold)))
    low, high = min(places), max(places) + 1
    air = max(1, round(curves.AIR * (high - low)))
    low, high = max(0, low - air), min(BINS, high + air)
    width = max(1, -(-(high - low) // SHOWN_BINS))
    bars = min(BINS // width, -(-(high - low) // width))
    low = min(low, BINS - bars * width)
    return low, low + bars * width, width


# Tables of the target and of the sites' own people.

IMPOSTORS = {
    "public": "Impostors are held-out public people.",
    "pooled": "Impostors are the other sites' people: the papers' protocol, possible only in a simulation.",
}
MODELS = {"generic": "generic model Θ_g", "local": "local model Θ_l", "own": "customised model [Θ_l, Π_l]"}


def headlines(metrics: Metrics) -> list[dict[str, str]]:
    """Return the figures for the top of the page."""
    generic, personal = metrics.part("generic"), metrics.part("personal")
    cards = []
    for model, figures, meaning in (
        ("generic", generic, "pairs of the benchmark's people accepted where one impostor pair in {} is"),
        ("personal", personal, "the sites' own people accepted by their own models where one impostor in {} is"),
    ):
        measured = [(rate, value) for rate, value in figures.rates("tar").items() if value is not None]
        if measured:
            rate, value = measured[0]
            name, explanation = f"{model} TAR at FAR {rate}", meaning.format(f"{1 / float(rate):,.0f}")
            cards.append({"name": name, "value": percent(value), "interval": "", "meaning": explanation})
    if generic.get("accuracy") is not None:
        explanation = "fixed pairs classified correctly, each fold at the others' best threshold"
        accuracy = percent(generic["accuracy"])
        cards.append({"name": "ten folds", "value": accuracy, "interval": "", "meaning": explanation})
    return cards


def threshold_sentence(metrics: Metrics) -> str:
    """Describe the threshold of verification, and its errors on the data of its choice."""
    value = metrics.number("threshold")
    if value is None:
        return "The sites have too few impostor pairs for a threshold at the requested false match rate."
    missed = metrics.number("threshold_source.fnmr")
    misses = f" and misses {100 * missed:.2f} % of genuine pairs" if missed is not None else ""
    return (
        f"Two faces are taken as one person from similarity {value:+.4f}, rule "
        f"{metrics.get('threshold_rule')}: chosen on counts of the sites' pairs, without any image of the "
        f"target; it accepts {100 * metrics['threshold_source.fmr']:.4f} % of impostor pairs there{misses}."
    )


def results(metrics: Metrics) -> list[Table | None]:
    """Return the tables of results."""
    benchmarks = metrics.parts("benchmarks")
    return [
        generic_table(metrics),
        pairs_table(benchmarks),
        spread_table(benchmarks),
        rates_table(benchmarks),
        personal_table(metrics),
        group_table(metrics),
        site_table(metrics),
        left_out_table(metrics),
    ]


def generic_table(metrics: Metrics) -> Table | None:
    """Return the generic model's rates on the benchmark."""
    generic = metrics.part("generic")
    rows = [
        {"what": f"{search} {KINDS[kind]} {rate}", "value": percent(value)}
        for search, kind in (("1:1", "tar"), ("1:N", "tpir"))
        for rate, value in generic.rates(kind).items()
    ]
    if listed := generic.part("listed_pairs"):
        description = f"accuracy on {listed['folds']} folds of {listed['list']}: {listed['pairs']:,} pairs"
        description += (
            f", {listed['left_out']:,} left out because their images are missing" if listed["left_out"] else ""
        )
        rows.append({"what": description, "value": percent(listed["accuracy"])})
    rows += [
        {"what": name, "value": percent(generic[f"decision.{short}"])}
        for short, name in (("fmr", "false matches at the sites' threshold"), ("fnmr", "false non-matches there"))
        if generic.get(f"decision.{short}") is not None
    ]
    note = (
        f"{generic.get('genuine_pairs', 0):,} genuine and {generic.get('impostor_pairs', 0):,} impostor pairs "
        f"of {generic.get('images', 0):,} images of {generic.get('identities', 0):,} people, who were not "
        "trained on."
    )
    return (
        table("The generic model, on the benchmark (per cent)", rows, {"what": "", "value": "value"}, note=note)
        if rows
        else None
    )


def personal_table(metrics: Metrics) -> Table | None:
    """Return the means over sites for each kind of model that a site may use for its own people."""
    personal = metrics.part("personal")
    models = personal.parts("models")
    rows = [{"model": MODELS.get(name, name)} | _cells(figures) for name, figures in models.items()]
    columns, remark = _measured_columns(list(models.values()))
    note = f"Means over sites. {IMPOSTORS.get(str(personal.get('impostors')), '')}{remark}"
    titles = {"model": "model"} | columns
    return table("The sites' own people (per cent)", rows, titles, note=note) if rows else None


def site_table(metrics: Metrics) -> Table | None:
    """Return each site's figures with the model that the method chooses."""
    personal = metrics.part("personal")
    sites = personal.parts("sites")
    rows = [
        {"site": name, "pairs": f"{row.get('genuine_pairs')} / {row.get('impostor_pairs')}"} | _cells(row)
        for name, row in sites.items()
    ]
    columns, note = _measured_columns(list(sites.values()))
    titles = {"site": "site"} | columns | {"pairs": "genuine / impostor pairs"}
    caption = f"Each site's own people, by its {MODELS.get(str(personal.get('model')), 'model')} (per cent)"
    return table(caption, rows, titles, note=note.strip()) if rows else None


def group_table(metrics: Metrics) -> Table | None:
    """Return the generic model's figures within each group of people."""
    groups = metrics.parts("generic.groups")
    rows = [
        {
            "group": name,
            "people": figures.get("identities"),
            "fmr": percent(figures.get("fmr")),
            "fnmr": percent(figures.get("fnmr")),
        }
        | _cells(figures)
        for name, figures in groups.items()
    ]
    titles = {"group": "group", "people": "people"}
    for figures in groups.values():
        titles |= _rate_titles(figures)
    titles |= {"fmr": "false matches", "fnmr": "false non-matches"}
    note = "Pairs within a group only; the last two columns are at the sites' one threshold."
    return table("The generic model by group (per cent)", rows, titles, note=note) if rows else None


def left_out_table(metrics: Metrics) -> Table | None:
    """Return the people left out of figures, by reason."""
    names = {
        "without_test_images": "identities at sites without test images, so without personal metrics",
        "with_one_test_image": "identities at sites with one test image, so no genuine pair",
        "identities_without_pairs": "people of the benchmark with one image, so no genuine pair",
        "identities_not_searched": "people of the benchmark without images of both kinds, not in 1:N",
    }
    counts = {**metrics.part("counted"), **metrics.part("generic")}
    rows = [{"what": reason, "count": counts[name]} for name, reason in names.items() if counts.get(name)]
    return table("Left out of some metrics", rows, {"what": "what", "count": "how many"}) if rows else None


def _rate_titles(rates: Metrics) -> Row:
    return {f"{kind}@{rate}": f"{title} {rate}" for kind, title in KINDS.items() for rate in rates.rates(kind)}


def _measured_columns(rows: Sequence[Metrics]) -> tuple[Row, str]:
    """Return the columns with a figure in any row, and a sentence on the columns left out for lack of pairs."""
    titles = _rate_titles(rows[0] if rows else Metrics())
    columns = {key: title for key, title in titles.items() if any(key in _cells(row) for row in rows)}
    note = " Stricter rates are left out: no site has enough pairs for them." if len(columns) < len(titles) else ""
    return columns, note
