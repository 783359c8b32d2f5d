"""The tables of a recognition run's report, worked out from its files."""

from collections.abc import Sequence

from fedvisage.report.benchmarks import benchmark_tables
from fedvisage.report.run_files import Row
from fedvisage.report.tables import MISSING, Table, percent, table

IMPOSTORS = {
    "public": "Impostors are held-out public people.",
    "pooled": "Impostors are the other sites' people: the papers' protocol, which only a simulation can follow.",
}
MODELS = {"generic": "generic model Θ_g", "local": "local model Θ_l", "own": "customised model [Θ_l, Π_l]"}


def headlines(metrics: Row) -> list[dict[str, str]]:
    """Return the figures for the top of the page."""
    generic, personal = metrics.get("generic") or {}, metrics.get("personalised") or {}
    cards = []
    for who, figures, meaning in (
        ("generic", generic, "pairs of the benchmark's people accepted where one impostor pair in {} is"),
        ("personal", personal, "the sites' own people accepted by their own models where one impostor in {} is"),
    ):
        known = [(rate, value) for rate, value in (figures.get("tar_at_far") or {}).items() if value is not None]
        if known:
            rate, value = known[0]
            name, said = f"{who} TAR at FAR {rate}", meaning.format(f"{1 / float(rate):,.0f}")
            cards.append({"name": name, "value": percent(value), "interval": "", "meaning": said})
    if generic.get("accuracy_on_ten_folds") is not None:
        said = "fixed pairs called rightly, each fold at the others' best threshold"
        cards.append(
            {"name": "ten folds", "value": percent(generic["accuracy_on_ten_folds"]), "interval": "", "meaning": said}
        )
    return cards


def threshold_sentence(metrics: Row) -> str:
    """Say which threshold a yes or no has, and what errors it made where it was chosen."""
    value, source = metrics.get("threshold"), metrics.get("threshold_source") or {}
    if value is None:
        return "The sites have too few impostor pairs for a threshold at the false match rate that was asked for."
    missed = source.get("fnmr")
    there = f" and misses {100 * missed:.2f} % of genuine pairs" if missed is not None else ""
    return (
        f"Two faces are called one person from similarity {value:+.4f} on, rule {metrics.get('threshold_rule')}: "
        f"chosen on counts of the sites' pairs, without any image of the user; it accepts {100 * source['fmr']:.4f} % "
        f"of impostor pairs there{there}."
    )


def results(metrics: Row) -> list[Table | None]:
    """Return the tables of results."""
    return [
        generic_table(metrics),
        *benchmark_tables(metrics),
        personal_table(metrics),
        group_table(metrics),
        site_table(metrics),
        counted(metrics),
    ]


def generic_table(metrics: Row) -> Table | None:
    """Return the generic model's rates on the benchmark."""
    generic = metrics.get("generic") or {}
    rows = [{"what": f"1:1 TAR at FAR {rate}", "value": percent(value)}
            for rate, value in (generic.get("tar_at_far") or {}).items()]  # fmt: skip
    rows += [{"what": f"1:N TPIR at FPIR {rate}", "value": percent(value)}
             for rate, value in (generic.get("tpir_at_fpir") or {}).items()]  # fmt: skip
    decision = generic.get("decision") or {}
    if (listed := generic.get("listed_pairs")) is not None:
        said = f"accuracy on {listed['folds']} folds of {listed['list']}: {listed['pairs']:,} pairs"
        said += f", {listed['left_out']:,} left out for want of their images" if listed["left_out"] else ""
        rows.append({"what": said, "value": percent(listed["accuracy"])})
    rows += [{"what": name, "value": percent(decision.get(short))}
             for short, name in (("fmr", "false matches at the sites' threshold"), ("fnmr", "false non-matches there"))
             if decision.get(short) is not None]  # fmt: skip
    note = (
        f"{generic.get('genuine_pairs', 0):,} genuine and {generic.get('impostor_pairs', 0):,} impostor pairs of "
        f"{generic.get('images', 0):,} images of {generic.get('identities', 0):,} people, who took no part in training."
    )
    return (
        table("The generic model, on the benchmark (per cent)", rows, {"what": "", "value": "value"}, note=note)
        if rows
        else None
    )


def personal_table(metrics: Row) -> Table | None:
    """Return the means over sites for each model by which a site can know its people."""
    personal = metrics.get("personalised") or {}
    models = personal.get("models") or {}
    rows = [{"model": MODELS.get(name, name)} | _columns(figures) for name, figures in models.items()]
    shown, few = _shown(list(models.values()))
    note = f"Means over sites. {IMPOSTORS.get(str(personal.get('impostors')), '')}{few}"
    titles = {"model": "model"} | shown
    return table("The sites' own people (per cent)", rows, titles, note=note) if rows else None


def site_table(metrics: Row) -> Table | None:
    """Return each site's figures by the method's choice of model."""
    personal = metrics.get("personalised") or {}
    sites = personal.get("sites") or {}
    rows = [{"site": name, "pairs": f"{own.get('genuine_pairs')} / {own.get('impostor_pairs')}"} | _columns(own)
            for name, own in sites.items()]  # fmt: skip
    shown, few = _shown(list(sites.values()))
    titles = {"site": "site"} | shown | {"pairs": "genuine / impostor pairs"}
    caption = f"Each site's own people, by its {MODELS.get(str(personal.get('model')), 'model')} (per cent)"
    return table(caption, rows, titles, note=few.strip()) if rows else None


def group_table(metrics: Row) -> Table | None:
    """Return the generic model's figures within each group of people."""
    groups = (metrics.get("generic") or {}).get("groups") or {}
    rows = [
        {
            "group": name,
            "people": figures.get("identities"),
            "fmr": percent(figures.get("fmr")),
            "fnmr": percent(figures.get("fnmr")),
        }
        | _columns({"tar_at_far": figures.get("tar_at_far")})
        for name, figures in groups.items()
    ]
    titles = {"group": "group", "people": "people"}
    for figures in groups.values():
        titles |= _titles({"tar_at_far": figures.get("tar_at_far")})
    titles |= {"fmr": "false matches", "fnmr": "false non-matches"}
    note = "Pairs within a group only; the last two columns are at the sites' one threshold."
    return table("The generic model by group (per cent)", rows, titles, note=note) if rows else None


def counted(metrics: Row) -> Table | None:
    """Return what took no part in a figure, and how much of it there was."""
    names = {"without_test_images": "identities at sites that have no test images, so no personal figures",
             "with_one_test_image": "identities at sites with one test image, so no genuine pair",
             "identities_without_pairs": "people of the benchmark with one image, so no genuine pair",
             "identities_not_searched": "people of the benchmark without images of both kinds, not in 1:N"}  # fmt: skip
    counts = {**(metrics.get("counted") or {}), **(metrics.get("generic") or {})}
    rows = [{"what": said, "count": counts[name]} for name, said in names.items() if counts.get(name)]
    return table("Left out of some figures", rows, {"what": "what", "count": "how many"}) if rows else None


def _columns(rates: Row) -> Row:
    return {f"{kind} {rate}": percent(value)
            for kind in ("tar_at_far", "tpir_at_fpir") for rate, value in (rates.get(kind) or {}).items()}  # fmt: skip


def _titles(rates: Row) -> Row:
    names = {"tar_at_far": "TAR at FAR", "tpir_at_fpir": "TPIR at FPIR"}
    return {f"{kind} {rate}": f"{name} {rate}" for kind, name in names.items() for rate in rates.get(kind) or {}}


def _shown(rows: Sequence[Row]) -> tuple[Row, str]:
    """Return the columns in which any row has a figure, and a sentence on those that nobody has enough pairs for."""
    titles = _titles(next(iter(rows), {}))
    shown = {key: title for key, title in titles.items() if any(_columns(row).get(key) != MISSING for row in rows)}
    few = " Stricter rates are left out: no site has pairs enough to show them." if len(shown) < len(titles) else ""
    return shown, few
