"""A report on attack detection and recognition together, in the terms of ISO/IEC 30107-3: text and an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist

from fedvisage.metrics.presentations import Point, Presentations, figures
from fedvisage.metrics.recorded import Metrics
from fedvisage.metrics.scores import Scores, from_columns
from fedvisage.report.curves import canvas, curve_of_scores, det, figure_style, key, line_style, mark_threshold, svg
from fedvisage.report.groups import tables_by_group
from fedvisage.report.page import fill_template, with_theme
from fedvisage.report.run_files import Row
from fedvisage.report.tables import MISSING, Table, markdown, table

STEPS = 120
TARGETS = {"10pct": "10 %", "5pct": "5 %", "1pct": "1 %"}
CARDS = (
    (("pad", "apcer_max"), "APCER, worst species", "attacks of the most successful species taken as bona fide"),
    (("pad", "bona_fide", "bpcer"), "BPCER", "bona fide presentations rejected as attacks"),
    (("system", "frr"), "FRR", "genuine attempts not accepted, for any reason"),
    (("system", "far"), "FAR", "comparisons with another person that were accepted"),
    (("system", "iapar_max"), "IAPAR, worst species", "attacks on enrolled people accepted as that person"),
    (("system", "riapar_max"), "RIAPAR, worst species", "FRR + IAPAR: the cost of rejecting attacks"),
)
PARTS = {"recognition": ("Recognition alone", "fnmr", "fmr"), "system": ("The whole system", "frr", "far")}
NAMES = {"fnmr": "FNMR", "fmr": "FMR", "frr": "FRR", "far": "FAR"}


def lines(values: Row) -> list[str]:
    """Return the figures as text lines."""
    test, pad = values["test"], values["pad"]
    report = [f"{test['presentations']} presentations of {test['subjects']} people ({test['data']})"]
    silent = ", ".join(f"{reason} ({count})" for reason, count in test["no_response"].items())
    report.append(f"no response: {sum(test['no_response'].values())}{f': {silent}' if silent else ''}")
    report.append(f"left out: {test['unreadable']} unreadable")
    for name, row in pad.get("species", {}).items():
        report.append(f"{name}: APCER {rate(row['apcer'])}, no response {rate(row['apnrr'])}, of {row['presented']}")
    if "bona_fide" in pad:
        row = pad["bona_fide"]
        report.append(f"bona fide: BPCER {rate(row['bpcer'])}, no response {rate(row['bpnrr'])}, of {row['presented']}")
    operating_rates = [
        f"{share}: {rate(pad['bpcer_at_apcer'][name])}"
        for name, share in TARGETS.items()
        if name in pad.get("bpcer_at_apcer", {})
    ]
    report += [f"BPCER at APCER {', '.join(operating_rates)}"] if operating_rates else []
    for part, (title, missed, false) in PARTS.items():
        if part in values:
            row = values[part]
            worst = f"; IAPAR at worst {rate(row.get('iapar_max'))}, RIAPAR {rate(row.get('riapar_max'))}"
            report.append(f"{title}: {NAMES[missed]} {rate(row[missed])}, {NAMES[false]} {rate(row[false])}{worst}")
    return [*report, *map(markdown, tables_by_group(Metrics.of(values.get("by", {}))))]


def page(values: Row, presentations: Presentations, at: Point) -> str:
    """Return the report as one page without scripts, external resources or names of people."""
    tables = (_bona_fide(values), _species(values), _targets(values), *_people(values))
    conditions = {
        name: ", ".join(f"{value} ({count})" for value, count in counts.items())
        for name, counts in values["test"]["conditions"].items()
    }
    return fill_template(
        "iso30107.html.jinja",
        test=values["test"],
        pipeline=values["pipeline"],
        cards=list(_cards(values)),
        tables=[*filter(None, tables), *tables_by_group(Metrics.of(values.get("by", {})))],
        figures=with_theme(_drawings(presentations, at)),
        conditions=list(conditions.items()),
    )


def rate(entry: Mapping[str, Any] | None) -> str:
    """Return a rate in per cent with its interval, or a dash."""
    if entry is None or entry.get("value") is None:
        return MISSING
    return f"{100 * entry['value']:.2f} %{_interval(entry, ' [{} to {}]')}"


def _interval(entry: Mapping[str, Any], form: str) -> str:
    bounds = [f"{100 * bound:.2f}" for bound in entry.get("interval", ()) if bound is not None]
    return form.format(*bounds) if len(bounds) == 2 else ""


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry.get("value") is None:
        return MISSING
    return f"{100 * entry['value']:.2f}{_interval(entry, ' [{}, {}]')}"


def _cards(values: Row) -> Iterator[Row]:
    for (*path, last), name, meaning in CARDS:
        entry: Any = values
        for part in (*path, last):
            entry = (entry or {}).get(part)
        if entry is not None and entry["value"] is not None:
            yield {
                "name": name,
                "value": f"{100 * entry['value']:.2f}",
                "interval": _interval(entry, "{} to {}"),
                "meaning": meaning,
            }


def _bona_fide(values: Row) -> Table | None:
    row = values["pad"].get("bona_fide")
    if row is None:
        return None
    rates = {"error": _cell(row["bpcer"]), "silent": _cell(row["bpnrr"])}
    cells = [{"what": "bona fide", "presented": row["presented"], **rates}]
    columns = {"what": "attack detection", "presented": "presentations", "error": "BPCER %", "silent": "BPNRR %"}
    return table("Bona fide presentations", cells, columns)


def _species(values: Row) -> Table | None:
    species = values["pad"].get("species", {})
    if not species:
        return None
    cells: list[Row] = [
        {"what": name, "presented": row["presented"], "error": _cell(row["apcer"]), "silent": _cell(row["apnrr"])}
        for name, row in species.items()
    ]
    cells.append({"what": "highest", "error": _cell(values["pad"].get("apcer_max"))})
    columns = {"what": "species", "presented": "presentations", "error": "APCER %", "silent": "APNRR %"}
    note = "Species are never pooled, because an attacker uses the one that works."
    return table("Attack presentations, by species of instrument", cells, columns, note=note)


def _targets(values: Row) -> Table | None:
    by_share = values["pad"].get("bpcer_at_apcer", {})
    cells = [
        {"at": f"APCER of every species at most {share}", "bpcer": _cell(by_share[name])}
        for name, share in TARGETS.items()
        if name in by_share
    ]
    note = (
        "At thresholds chosen on this very data, for comparison with other reports; a deployed system cannot "
        "choose them this way."
    )
    return table("BPCER at fixed APCER", cells, {"at": "where", "bpcer": "BPCER %"}, note=note) if cells else None


def _people(values: Row) -> Iterator[Table]:
    for part, (title, missed, false) in PARTS.items():
        if part not in values:
            continue
        row = values[part]
        cells: list[Row] = [
            {"what": NAMES[name], "count": row[count], "accepted": _cell(row[name])}
            for name, count in ((missed, "mated"), (false, "non_mated"))
        ]
        yield table(f"{title}: people", cells, {"what": "rate", "count": "comparisons", "accepted": "%"})
        attacks: list[Row] = [
            {
                "what": name,
                "count": attack["presented"],
                "iapar": _cell(attack["iapar"]),
                "riapar": _cell(attack.get("riapar")),
            }
            for name, attack in row.get("species", {}).items()
        ]
        if attacks:
            highest = {"what": "highest", "iapar": _cell(row.get("iapar_max")), "riapar": _cell(row.get("riapar_max"))}
            columns = {"what": "species", "count": "attacks on enrolled", "iapar": "IAPAR %", "riapar": "RIAPAR %"}
            yield table(f"{title}: attacks", [*attacks, highest], columns, note=f"RIAPAR = {NAMES[missed]} + IAPAR.")


def _drawings(presentations: Presentations, at: Point) -> Iterator[tuple[str, str, str]]:
    groups = _groups(presentations)
    if groups:
        explanation = (
            "Errors of attack detection at every threshold, one line per species; below and to the left is better."
        )
        lines = {name: curve_of_scores(scores, at.pad) for name, scores in groups.items()}
        labels = ("attacks accepted, APCER of the species (%)", "bona fide rejected, BPCER (%)")
        yield "DET of attack detection", explanation, det(lines, labels)
    if at.recognition is not None and np.isfinite(presentations.similarity).any():
        explanation = "Rates at other similarity thresholds, with the pipeline's attack detection unchanged."
        yield "Acceptance at every similarity", explanation, over_similarity(presentations, at)


def _groups(presentations: Presentations) -> dict[str, Scores]:
    """Return the answered bona fide presentations together with the attacks of each species."""
    groups = {}
    for name in presentations.kinds:
        answered = np.isfinite(presentations.live) & (presentations.bona_fide | (presentations.species == name))
        label = presentations.bona_fide[answered].astype(np.int64)
        if len(np.unique(label)) == 2:
            groups[name] = from_columns(
                presentations.live[answered],
                label,
                item=presentations.item[answered].tolist(),
                video=presentations.item[answered].tolist(),
                subject=presentations.subject[answered].tolist(),
                species=presentations.species[answered].tolist(),
            )
    return groups


def over_similarity(presentations: Presentations, at: Point) -> str:
    """Draw the rates of recognition and of the system over the similarity threshold."""
    assert at.recognition is not None
    compared = presentations.similarity[np.isfinite(presentations.similarity)]
    # The axis covers all similarities and the threshold, with a margin.
    ends = (min(float(compared.min()), at.recognition) - 0.02, max(float(compared.max()), at.recognition) + 0.02)
    thresholds = np.linspace(*ends, STEPS)
    weights = np.ones((1, 1 + max(int(part.max(initial=0)) for part in presentations.clusters)))
    rows = [figures(presentations, Point(at.pad, float(threshold)), weights) for threshold in thresholds]
    series = {
        "FNMR": ("recognition", "fnmr"),
        "FMR": ("recognition", "fmr"),
        "IAPAR, alone": ("recognition", "iapar_max"),
        "IAPAR, system": ("system", "iapar_max"),
        "RIAPAR, system": ("system", "riapar_max"),
    }
    with figure_style():
        figure, axes = canvas()
        drawn = {name: path for name, path in series.items() if path in rows[0]}
        handles: list[Artist] = []
        for index, path in enumerate(drawn.values()):
            handles += axes.plot(thresholds, [100 * float(row[path][0]) for row in rows], **line_style(index))
        mark_threshold(axes, at.recognition, ends)
        axes.set(xlabel="similarity threshold", ylabel="rate (%)", xlim=ends, ylim=(0, None))
        key(figure, handles, list(drawn))
        return svg(figure, "over-similarity")
