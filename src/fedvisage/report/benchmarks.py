"""The tables of a recognition run's further benchmarks: lists of pairs, templates, and sets without a list."""

from __future__ import annotations

from fedvisage.report.run_files import Row
from fedvisage.report.tables import MISSING, Table, percent, table

KINDS = {"tar_at_far": "TAR at FAR", "tpir_at_fpir": "TPIR at FPIR", "rank": "rank"}


def benchmark_tables(metrics: Row) -> list[Table | None]:
    """Return the tables of all benchmarks; none where there are none."""
    judged = metrics.get("benchmarks") or {}
    return [pairs_table(judged), spread_table(judged), rates_table(judged)]


def pairs_table(judged: Row) -> Table | None:
    """Return accuracy and TAR on each list of pairs."""
    rows = []
    for name, one in judged.items():
        for which, listed in (one.get("lists") or {}).items():
            deviation = percent(listed.get("accuracy_std"))
            rows.append({
                "benchmark": name, "list": which, "accuracy": percent(listed.get("accuracy")), "std": deviation,
                "folds": listed.get("folds"), "pairs": listed.get("pairs"), "left_out": listed.get("left_out"),
            } | _cells({"tar_at_far": listed.get("tar_at_far")}))  # fmt: skip
    titles = {"benchmark": "benchmark", "list": "list", "accuracy": "accuracy", "std": "standard deviation",
              "folds": "folds", **_titles(rows), "pairs": "pairs", "left_out": "left out"}  # fmt: skip
    note = "Each fold is judged at the others\u2019 best threshold. Pairs without an image in the set are left out."
    return table("Further benchmarks: lists of pairs (per cent)", rows, titles, names=2, note=note) if rows else None


def spread_table(judged: Row) -> Table | None:
    """Return how far the accuracies of groups lie apart."""
    rows = [
        {
            "benchmark": name,
            "mean": percent(one["spread"].get("mean")),
            "std": percent(one["spread"].get("std")),
            "ratio": MISSING if (ratio := one["spread"].get("skewed_error_ratio")) is None else f"{ratio:.2f}",
        }
        for name, one in judged.items()
        if one.get("spread")
    ]
    titles = {"benchmark": "benchmark", "mean": "mean", "std": "standard deviation", "ratio": "skewed error ratio"}
    note = "The ratio is the highest group\u2019s error over the lowest; one is best."
    return table("Accuracy over groups of people (per cent)", rows, titles, note=note) if rows else None


def rates_table(judged: Row) -> Table | None:
    """Return rates on templates, in both readings, and on sets that have no list."""
    rows = []
    for name, one in judged.items():
        tables = dict(one.get("readings") or {})
        tables |= {"all images": one["generic"]} if one.get("generic") else {}
        rows += [{"benchmark": name, "reading": reading} | _cells(rates) for reading, rates in tables.items()]
    titles = {"benchmark": "benchmark", "reading": "reading", **_titles(rows)}
    note = (
        "Templates: published counts as released code does, by length and detector\u2019s score, at the nearest FAR,"
        " and joins the galleries; conservative takes unit features, the largest FAR not above it, and each gallery."
    )
    return table("Further benchmarks: rates (per cent)", rows, titles, names=2, note=note) if rows else None


def _cells(rates: Row) -> Row:
    return {
        f"{kind} {rate}": percent(value) for kind in KINDS for rate, value in (rates.get(kind) or {}).items()
        if value is not None
    }  # fmt: skip


def _titles(rows: list[Row]) -> dict[str, str]:
    """Return a title for each rate that some row has, from the strictest on."""
    known = {key for row in rows for key in row if key.split(" ")[0] in KINDS}
    return {key: f"{KINDS[key.split(' ')[0]]} {key.split(' ')[1]}" for key in sorted(known, key=_place)}


def _place(key: str) -> tuple[int, float, str]:
    """Return what rates are ordered by; a file may have anything for one."""
    kind, _, rate = key.partition(" ")
    try:
        return list(KINDS).index(kind), float(rate), rate
    except ValueError:
        return list(KINDS).index(kind), float("inf"), rate
