"""The privacy part of a report, for data-protection officers: protections, releases with costs, overlaps and audits.

All costs come from the ledger: each field of kind ``dp`` has its own cost and the running total of its site.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedvisage.base.progress import format_count
from fedvisage.data.overlap import TARGET, Overlap
from fedvisage.federation.privacy.accountant import PROTECTED_UNIT
from fedvisage.metrics.recorded import Metrics
from fedvisage.report.run_files import AUDIT, Row, RunFiles
from fedvisage.report.tables import Table, size, table

# Results of audits, as sections of a report.

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 4_000_000


def sections(run: RunFiles) -> list[dict[str, Any]]:
    """Return a section for each audit: title, sentence, tables, pictures as (caption, data address)."""
    return [
        {
            "title": str(record.get("title", "")),
            "says": str(record.get("says") if record.get("applies") else f"Does not apply: {record.get('why')}."),
            "tables": _tables(record),
            "pictures": _pictures(record, (run.path / AUDIT).parent),
        }
        for record in run.audits
    ]


def _tables(record: Row) -> list[Table]:
    rows = [{key: _figure(value) for key, value in row.items()} for row in record.get("rows") or []]
    numbers = [{"figure": key, "value": _figure(value)} for key, value in (record.get("numbers") or {}).items()]
    tables = [table("", numbers, {"figure": "figure", "value": "value"})] if numbers else []
    return tables + ([table("", rows, {key: key for key in rows[0]})] if rows else [])


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pictures(record: Row, folder: Path) -> list[tuple[str, str]]:
    pictures = []
    for entry in record.get("pictures") or []:
        name = str(entry.get("file", ""))
        path = folder / name
        if Path(name).name != name or not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue  # reads no file outside the folder, and no huge one
        data = path.read_bytes()
        if data.startswith(SIGNATURE):
            address = f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
            pictures.append((str(entry.get("caption", "")), address))
    return pictures


# Images that appear in several places of a run.

UNSEEN = "whose images were not trained on"


def describe_unseen(run: RunFiles) -> str:
    """Describe how many of the target's images took part in training."""
    overlap = Overlap.from_json(run.overlap)
    counts = overlap.anywhere.get(TARGET)
    if overlap.about(TARGET).named:
        return "some of whose people were trained on"
    if counts is None or not counts.exact + counts.near:
        return UNSEEN
    return f"{counts.exact + counts.near} of whose {counts.of} images were trained on"


def sentences(run: RunFiles) -> list[str]:
    """Describe the images that several places share; empty if the run did not check for them."""
    if not run.overlap:
        return []
    overlap = Overlap.from_json(run.overlap)
    lines = overlap.sentences(str(run.metrics.get("target") or ""))
    if not lines:
        count = sum(place.of for place in overlap.anywhere.values())
        return [f"None of the run's {count:,} images was found in two of its places, by equal bytes or similar hashes."]
    return [f"{line[0].upper()}{line[1:]}." for line in lines]


# Guarantees of a run's protections: noise, secure and robust aggregation, simulated attacks.

SIMULATED = "The noise is derived from the run's seed and can be repeated: this is a simulation, which protects nobody."


def promises(metrics: Metrics, recipe: Row) -> list[str]:
    """Return a sentence for each protection of the run."""
    sentences = list(_of_noise(metrics.get("privacy", {}), _steps(recipe)))
    federation = recipe.get("federation") or {}
    secure, poisoned = federation.get("secure"), federation.get("poisoned")
    rule = (federation.get("combine") or {}).get("rule", "mean")
    if secure and secure.get("entropy") == "derived":
        sentences.append(
            "Secure aggregation in a simulation: masks are derived from the run's seed, and anybody who knows it "
            "can remove them."
        )
    elif secure:
        sentences.append(
            "Secure aggregation: the server saw the sum of the sites' weights and losses, but no single upload."
        )
    if rule != "mean":
        sentences.append(
            f"Robust aggregation: uploads were combined by {rule}, which limits the influence of hostile sites "
            "but sees every upload."
        )
    if poisoned:
        attackers = ", ".join(poisoned["sites"])
        sentences.append(f"Simulated attack: {attackers} sent a {poisoned['how']} deliberately.")
    return sentences


def _steps(recipe: Row) -> str:
    """Describe the steps of training with privacy of people; empty without."""
    training = recipe.get("training") or {}
    settings = training.get("privacy")
    if not settings:
        return ""
    return (
        f"Each of the {training['local']['batches']} steps of a round drew people with probability "
        f"{settings['rate']:g}, clipped the gradient of each to {settings['clip']:g}, and added noise to their sum."
    )


def _of_noise(privacy: Row, people: str = "") -> Iterator[str]:
    if not privacy:
        return
    relation = " and ".join(str(PROTECTED_UNIT.get(name, name)) for name in privacy["relation"])
    if "models" in privacy:  # the joint account first, because it holds for both mechanisms together
        yield (
            f"Noise on the models and noise on what sites released, together: ε {privacy['tight_epsilon']:.4g} at δ "
            f"{privacy['at_delta']:.3g} (ε {privacy['epsilon']:.4g} at δ {privacy['delta']:.3g} by the sum of all "
            f"parts), for {relation}."
        )
        for part in (privacy["models"], privacy["releases"]):
            yield from _of_noise({**part, "noise": ""})
        if privacy["noise"] == "derived":
            yield SIMULATED
        return
    tight_cost = f"ε {privacy['tight_epsilon']:.4g} at δ {privacy['at_delta']:.3g}"
    if "noise_multiplier" in privacy:
        yield (
            f"Differential privacy of sites: {tight_cost}, for {relation}. Updates were clipped to "
            f"{privacy['clip']:g}, and noise of {privacy['noise_multiplier']:.4g} times that was added to "
            f"{format_count(privacy['releases'], 'sum')}. It covers the models that the server sent, with the "
            "statistics of BatchNorm, but not the sites' losses, numbers of images, and counts of held-out scores."
        )
    else:
        yield (
            f"What site {privacy['site']} released under differential privacy, the most of any: "
            f"ε {privacy['epsilon']:.4g} at δ {privacy['delta']:.3g} by the sum of its parts, {tight_cost} tightly; "
            f"for {relation}."
        )
        if people:
            yield f"{people} {NOT_COVERED_OF_PEOPLE}"
    if privacy.get("noise") == "derived":
        yield SIMULATED


NOT_COVERED = (
    "Not covered: the weights of the model, which were trained on all images; people whose images are at two sites or "
    "in two runs, for whom costs add up; and values that were not released this way. The guarantee covers one class "
    "centre, given the model: each person's images also shaped the model."
)
NOT_COVERED_OF_IMAGES = (
    "The guarantee covers one training image with its label, over everything that a site sends. Not covered: held-out "
    "images, whose score counts are sent; and people with several images, at two sites or in two runs, for whom costs "
    "add up."
)
NOT_COVERED_OF_PEOPLE = (
    "Not covered: held-out people, whose scores give counts, thresholds and error rates without noise; and people "
    "whose images are at two sites, in two runs or under two names, for whom costs add up."
)
NOT_END_TO_END = (
    "This is the mechanism as published. Its ε does not hold end to end: clusters are chosen without noise, and a "
    "single person can decide the choice. Do not rely on this figure; that of method.clustering: private holds."
)


def page(run: RunFiles) -> dict[str, Any] | None:
    """Return sentences and tables, or None if no site released anything under differential privacy."""
    lines = run.uploads.releases
    if not lines:
        return None
    tables = [_sites(run, lines), _releases(lines)]
    if (joint := _joint(run)) is not None:
        tables.append(_account(joint))
    return {"sentences": list(_sentences(run, lines)), "tables": tables}


def _sentences(run: RunFiles, lines: list[Row]) -> Iterator[str]:
    joint = _joint(run)
    fields = sorted({str(line["field"]) for line in lines})
    largest = size(max(int(line["bytes"]) for line in lines))
    yield (
        f"Sites sent the server, and through it each other, {', '.join(fields)}: {len(lines)} messages of at "
        f"most {largest}. Random noise was added at the site. Whatever they show is at most e^ε times as probable with "
        "a given record as without it, plus δ (e^ε: 1 at ε 0, 2.7 at ε 1, 2,981 at ε 8). A large ε, or a δ that is "
        "not far below one divided by the number of people, protects little."
    )
    relations = sorted({release["relation"] for line in lines for release in line["cost"]["releases"]})
    if relations:
        yield f"What one record is, here: {'; '.join(PROTECTED_UNIT.get(name, name) for name in relations)}."
    if "paper" in relations:
        yield NOT_END_TO_END
    if steps := _steps(run.recipe):
        yield f"{steps} {NOT_COVERED_OF_PEOPLE}"
    elif relations == ["image"]:
        yield NOT_COVERED_OF_IMAGES
    else:
        yield NOT_COVERED if joint is None else _together(joint)
    yield from _of_the_budget(run)
    if lines[-1]["cost"]["noise"] == "derived":
        yield (
            "The noise is derived from the run's seed and can be repeated: this is a rehearsal, which protects nobody."
        )
    else:
        yield "The noise came from the operating system of each site, and nobody knows it."


def _joint(run: RunFiles) -> Row | None:
    """Return the joint account of noise on the models and of releases, if the run has both."""
    account: Row = run.metrics.get("privacy", {})
    return account if "models" in account else None


def _together(joint: Row) -> str:
    """Describe the joint account: the protected change of the data, the adversaries, and the gaps."""
    relation = "; ".join(PROTECTED_UNIT.get(name, name) for name in joint["relation"])
    return (
        "Noise was also added to the mean of the models. Together, all releases of the sites and all models "
        f"cost ε {joint['tight_epsilon']:.4g} at δ {joint['at_delta']:.3g}, or ε {joint['epsilon']:.4g} at δ "
        f"{joint['delta']:.3g} summed, for this change of the data: {relation}. It holds against users and "
        "other sites. The server adds the noise and sees each site's weights without it. Not covered: "
        "training losses, numbers of images and of people, counts and figures of held-out images, the sites' "
        "own models, and people whose images are at two sites or in two runs, for whom costs add up."
    )


def _account(joint: Row) -> Table:
    """Return one row per mechanism of the joint account."""
    rows = [
        {
            "release": part["release"],
            "mechanism": f"{part['mechanism']} × {part['times']}",
            "sensitivity": f"{part['sensitivity']:.4g}",
            "sigma": f"{part['sigma']:.4g}" if part["sigma"] else "–",
            "epsilon": f"{part['epsilon']:.4g}",
            "delta": f"{part['delta']:.3g}",
        }
        for part in joint["account"]
    ]
    titles = {"release": "what", "mechanism": "mechanism", "sensitivity": "sensitivity Δ", "sigma": "noise σ"}
    note = "For the site with the most rounds. A person changes a site's clipped update by up to twice the clip."
    return table("Models and releases in one account", rows, titles | {"epsilon": "ε", "delta": "δ"}, 2, note)


def _of_the_budget(run: RunFiles) -> Iterator[str]:
    budget = (run.recipe.get("training") or {}).get("privacy") or run.recipe.get("privacy") or {}
    if budget.get("epsilon") is None:
        return
    is_tight = "clip" in budget or budget.get("count") == "tight"
    counted = "the tight figure" if is_tight else "the sum over all releases"
    yield (
        f"A site's budget for the whole run was ε {budget['epsilon']:g} at δ {budget['delta']:g}, by "
        f"{counted}; each release was charged before its noise was drawn, and never sent with a second draw."
    )
    if run.metrics.get("ended", {}).get("cause") == "budget":
        done, planned = run.metrics.get("rounds"), (run.recipe.get("training") or {}).get("rounds")
        yield f"The run ended after round {done} of {planned}, because another release would have exceeded the budget."


def _sites(run: RunFiles, lines: list[Row]) -> Table:
    rows = []
    for site in sorted({str(line["site"]) for line in lines}):
        site_lines = [line for line in lines if line["site"] == site]
        total = max((line["cost"]["total"] for line in site_lines), key=lambda cost: float(cost["epsilon"]))
        rows.append(
            {
                "site": site,
                "messages": len(site_lines),
                "sum": f"ε {total['epsilon']:.4g}, δ {total['delta']:.3g}",
                "tight": f"ε {total['tight_epsilon']:.4g} at δ {total['at_delta']:.3g}",
            }
        )
    titles = {"site": "site", "messages": "messages", "sum": "cost, summed", "tight": "cost, tight"}
    return table(
        "What each site has spent",
        rows,
        titles,
        names=4,
        note="Summed is the paper's account. Tight is the lowest provable cost of the same releases together; it "
        "is equally valid.",
    )


def _releases(lines: list[Row]) -> Table:
    """Return one row per round, mechanism and size of noise."""
    # Sites with equal releases share a row, which gives their number.
    groups: dict[tuple[Any, ...], set[str]] = {}
    for line in lines:
        for release in line["cost"]["releases"]:
            if not release["times"]:  # a batch of split learning, which the charge of its pass in the same line covers
                continue
            kind = (
                int(line["round"]),
                " of people drawn at rate ".join(map(str, filter(None, (release["mechanism"], release.get("rate"))))),
                int(release["times"]),
                float(release["sensitivity"]),
                float(release["sigma"]),
                float(release["epsilon"]),
                float(release["delta"]),
            )
            groups.setdefault(kind, set()).add(str(line["site"]))
    rows = [
        {
            "round": str(number),
            "sites": len(sites),
            "mechanism": f"{mechanism} × {times}",
            "sensitivity": f"{sensitivity:.4g}",
            "sigma": f"{sigma:.4g}" if sigma else "–",
            "epsilon": f"{epsilon:.4g}",
            "delta": f"{delta:.3g}",
        }
        for (number, mechanism, times, sensitivity, sigma, epsilon, delta), sites in sorted(groups.items())
    ]
    titles = {"round": "round", "sites": "sites", "mechanism": "mechanism", "sensitivity": "sensitivity Δ"}
    titles |= {"sigma": "noise σ", "epsilon": "ε", "delta": "δ"}
    return table("Every release", rows, titles, names=1)
