"""Tables of error rates by group, and of their variation between groups."""

from __future__ import annotations

from fedvisage.metrics.recorded import Metrics
from fedvisage.report.tables import Table, percent, table

RATES = {
    "bpcer": "BPCER",
    "apcer_worst": "APCER, worst species",
    "apcer_pooled": "APCER, pooled",
    "fnmr": "FNMR",
    "fmr": "FMR",
}


def tables_by_group(by: Metrics) -> list[Table]:
    """Return the rates of each group, and the worst and best group of each rate; nothing without groups."""
    if not by:
        return []
    groups, variation = by.parts("groups"), by.parts("variation")
    kinds = {kind: title for kind, title in RATES.items() if any(kind in row for row in groups.values())}
    rows = [
        {"group": name, "people": row["people"]}
        | {kind: percent(row[kind], row.get(f"intervals.{kind}")) for kind in kinds}
        for name, row in groups.items()
    ]
    note = (
        "In brackets: 95 % intervals, bootstrapped by person, or Wilson's at 0 and 100 %. A rate needs "
        f"{by['least_people']} people; groups without: {by['too_few']}; without a value: {by['without_value']:,}."
    )
    titles = {"group": by["column"], "people": "people", **kinds}
    tables = [table(f"By {by['column']} (per cent)", rows, titles, note=note)]
    differences = [
        {
            "rate": RATES[kind],
            "worst": row["worst"],
            "best": row["best"],
            "ratio": None if row["ratio"] is None else f"{row['ratio']:.2f}",
            "difference": percent(row["difference"], row.get("interval")),
        }
        for kind, row in variation.items()
    ]
    columns = {name: name for name in ("rate", "worst", "best", "ratio", "difference")}
    note = (
        "Differences in percentage points, with 95 % intervals for two fixed groups of different people. The worst of "
        "several equal groups differs from the best by chance, too."
    )
    if differences:
        tables.append(table(f"Variation over {by['column']}", differences, columns, names=3, note=note))
    return tables
