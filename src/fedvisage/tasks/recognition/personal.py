"""How well the sites' own models know the sites' own people: asked of the sites, or of merged data apart again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.federation.server import Server
from fedvisage.federation.wire.message import Message
from fedvisage.metrics.personalised import OfSite, figures_of_site
from fedvisage.recipe import Recipe
from fedvisage.tasks.asking import ask_about
from fedvisage.tasks.opened import People
from fedvisage.tasks.recognition.heldout import PERSONAL, UNMEASURED, faces_of, models_of, rates
from fedvisage.tasks.recognition.rates import mean_of, rates_of
from fedvisage.tasks.scoring import Scorer


def collect_personal(server: Server, finished: Message) -> dict[str, dict[str, OfSite]]:
    """Ask the sites how well their own models know their own people: figures by model and site."""
    fars, fpirs = rates(server.recipe)
    figures: dict[str, dict[str, OfSite]] = {name: {} for name in models_of(server.method)}
    for site, reply in sorted(ask_about(server, PERSONAL, finished).items()):
        counts = tuple(int(value) for value in reply["pairs"])
        for model, row in zip(figures, reply["figures"].tolist(), strict=True):
            values = [None if value == UNMEASURED else float(value) for value in row]
            tar, tpir = dict(zip(fars, values, strict=False)), dict(zip(fpirs, values[len(fars) :], strict=True))
            figures[model][site] = OfSite(tar, tpir, counts)  # type: ignore[arg-type]
    return figures


def personal_of_merged(scorer: Scorer, finished: Message, people: People) -> dict[str, dict[str, OfSite]]:
    """Judge a model that was trained on merged data on each site's people, apart again: a simulation anyway."""
    own = {name: faces_of(scorer, finished, site.train, site.heldout, others)
           for name, site in people.apart.items() if (others := people.strangers[name]) is not None}  # fmt: skip
    settings, asked = scorer.recipe.evaluation.people, rates(scorer.recipe)
    unit_length = settings.gallery != "raw"
    return {"generic": {name: figures_of_site(*faces, *asked, settings.counting, unit_length=unit_length)
                        for name, faces in own.items()}}  # fmt: skip


def personal_figures(recipe: Recipe, found: Mapping[str, Mapping[str, OfSite]]) -> dict[str, Any] | None:
    """Return what metrics.json says of the sites' own models; the last model is the headline."""
    if not found or not any(found.values()):
        return None
    models = {model: _mean_of_sites(sites) for model, sites in found.items()}
    chosen = list(found)[-1]
    names = ("genuine_pairs", "impostor_pairs", "probes_of_own_people", "probes_of_strangers")
    sites = {
        name: {**rates_of(one.tar, one.tpir), **dict(zip(names, one.counts, strict=True))}
        for name, one in found[chosen].items()
    }
    return {
        **models[chosen],
        "model": chosen,
        "impostors": recipe.evaluation.people.impostors,
        "models": models,
        "sites": sites,
    }


def _mean_of_sites(sites: Mapping[str, OfSite]) -> dict[str, Any]:
    """Average over the sites that can show a rate; how many those are stands beside the means."""
    tables = [rates_of(one.tar, one.tpir) for one in sites.values()]
    mean: dict[str, Any] = {
        kind: {rate: mean_of([table[kind][rate] for table in tables]) for rate in tables[0][kind]}
        for kind in ("tar_at_far", "tpir_at_fpir")
    }
    measured = [sum(table["tar_at_far"][rate] is not None for table in tables) for rate in tables[0]["tar_at_far"]]
    return {**mean, "sites_measured": dict(zip(tables[0]["tar_at_far"], measured, strict=True))}
