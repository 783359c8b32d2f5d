"""The data of recognition: views of identity sets from a recipe's data entries, and their checks before training.

Each identity must be in one place only. An identity at two sites, or at a site and among public or benchmark images,
would turn genuine pairs into impostor pairs. Identities that the evaluation leaves out are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.crops import CropRecord
from fedvisage.data.overlap import PUBLIC, SITE, TARGET, Places
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.sources import SYNTHETIC, resolve, without_part
from fedvisage.federation.method import Method
from fedvisage.metrics.similarity import require_measurable
from fedvisage.recipe import Recipe
from fedvisage.tasks.opened import RecognitionData, RunData, SiteData, check_keep, merge_sites, open_set
from fedvisage.tasks.recognition.benchmarks import PLACE, open_benchmarks, pairs_among, share_of


def check_recognition(recipe: Recipe, method: Method) -> None:
    """Refuse settings that recognition cannot follow, or that would select a model by its own evaluation data."""
    if recipe.input.colour != "rgb":
        raise UserError(
            "recipe.input.colour",
            f"{method.name} is a method of recognition, which requires rgb, got {recipe.input.colour}; set "
            "input.colour: rgb and name sets of people, or choose a method of attack detection (`fedvisage methods`)",
        )
    if recipe.input.margin is not None:
        raise UserError(
            "recipe.input.margin", "selects crops of attack detection; faces to recognise are aligned; leave it out"
        )
    check_keep(recipe, method)
    if recipe.training.sampling != "shuffled":
        raise UserError("recipe.training.sampling", "balances live faces and attacks; recognition requires shuffled")
    if recipe.evaluation.keep == "best" or recipe.training.early_stop is not None:
        raise UserError(
            "recipe.evaluation.keep",
            "best and early_stop would choose by the sites' test images, on which the personal metrics are "
            "computed; use keep: last",
        )
    if recipe.evaluation.adapt is not None:
        raise UserError("recipe.evaluation.adapt", "is for attack detection; leave it out")
    if recipe.evaluation.published:
        raise UserError(
            "recipe.evaluation.published",
            "is for attack detection; templates of IJB-B and IJB-C in "
            "data.benchmarks are always evaluated as published, too; leave it out",
        )
    poisoned = recipe.federation.poisoned
    if poisoned is not None and poisoned.how == "label-flip":
        raise UserError(
            "recipe.federation.poisoned.how",
            f"label-flip swaps bona fide images and attacks, but {method.name} learns identities; use another attack",
        )


def with_public_identities(recipe: Recipe, cache: Path, say: Say) -> Recipe:
    """Return the recipe with the number of public identities, which the networks depend on."""
    data = recipe.data
    if data.public is None:
        if data.public_identities is not None:
            raise UserError(
                "recipe.data.public_identities", "is given without data.public; name the set or leave it out"
            )
        return recipe
    identities = _public_identities(recipe, data.public, cache, say)
    if data.public_identities not in (None, identities):
        raise UserError(
            "recipe.data.public_identities", f"is {data.public_identities}, but the set has {identities} to train on"
        )
    return recipe.model_copy(update={"data": data.model_copy(update={"public_identities": identities})})


def _public_identities(recipe: Recipe, entry: str, cache: Path, say: Say) -> int:
    """Count the identities to train on, from a ``synth:`` line if possible, because a directory has to be opened."""
    name, part = without_part(entry.strip())
    line = name.removeprefix(SYNTHETIC).split()
    if part is None and name.startswith(SYNTHETIC) and line[:1] == ["people"]:
        from fedvisage.render.identities import parse_identities  # imported late, as it loads the renderer

        return parse_identities(line[1:]).trained_on
    view = View.of(PreparedSet.open(resolve(name, cache, workers=recipe.runtime.threads, say=say)), "train")
    return len(share_of(view, part).identities)


def open_data(recipe: Recipe, method: Method, cache: Path, say: Say) -> RunData:
    """Open or render the identity sets of a recipe, and check them against the recipe and each other."""
    opened: dict[str, PreparedSet] = {}  # by entry without the share, as several sites may use shares of one set

    def view(entry: str, place: str, split: str | None) -> View:
        name, part = without_part(entry.strip())
        if name not in opened:
            opened[name] = open_set(name, place, recipe, cache, say)
        if opened[name].rows.group is None:
            raise UserError(
                place, "is not an identity set; make one with `fedvisage data people` or `data import identities`"
            )
        return share_of(View.of(opened[name], split), part)

    places = {f"{SITE}{name}": entry for name, entry in sorted(recipe.data.sites.items())}
    compared = recipe.training.keep is not None
    sites = {
        place: SiteData(
            view(entry, place, "train"), view(entry, place, "test"), view(entry, place, "heldout") if compared else None
        )
        for place, entry in places.items()
    }
    target = None
    if recipe.data.target is not None:
        split = None if recipe.data.target_split == "all" else recipe.data.target_split
        target = view(recipe.data.target, TARGET, split)
        if not len(target):
            raise UserError(
                "data.target_split", f"the target's data has no images in split {recipe.data.target_split!r}"
            )
    public, heldout = None, None
    if recipe.data.public is not None:
        public, heldout = view(recipe.data.public, PUBLIC, "train"), view(recipe.data.public, PUBLIC, "heldout")
    all_places = _places(sites, public, heldout, target)
    _check_nobody_twice(all_places)
    benchmarks = open_benchmarks(recipe.data.benchmarks, recipe, cache, say)
    for name, benchmark in benchmarks.items():
        trained_on = {place: views for place, views in all_places.items() if place != TARGET}
        _check_nobody_twice({**trained_on, f"{PLACE}{name}": (benchmark.view,)})
    # Fail before training if a requested rate needs more pairs than a site or the target has.
    checked = [_check_site(site, place, recipe, method) for place, site in sites.items()]
    counted = {
        name: sum(row[name] for row in checked) for name in ("without_test_images", "with_one_test_image")
    }  # of no site on an operator's machine
    site_data = {place.removeprefix(SITE): site for place, site in sites.items()}
    strangers = _strangers(recipe, site_data, heldout)
    _check_rates(recipe, site_data, strangers)
    if target is not None:
        _check_generic_rates(recipe, target)
    digests, crops = dict[str, str](), dict[str, CropRecord | None]()
    for place, named_set in {**places, TARGET: recipe.data.target, PUBLIC: recipe.data.public}.items():
        if named_set is not None:
            name, part = without_part(named_set.strip())
            digests[place] = opened[name].digest + (f" {part}" if part else "")
            crops[place] = opened[name].crop
    digests |= {f"{PLACE}{name}": benchmark.digest for name, benchmark in benchmarks.items()}
    people = RecognitionData(public, strangers, site_data, counted)
    sites = merge_sites(site_data) if method.pooled else site_data
    return RunData(sites, target, digests, people, crops=crops, places=all_places, benchmarks=benchmarks)


def _places(sites: Mapping[str, SiteData], public: View | None, heldout: View | None, target: View | None) -> Places:
    places: dict[str, Sequence[View]] = {
        place: [view for view in (site.train, site.heldout, site.unseen) if view is not None]
        for place, site in sites.items()
    }
    places[PUBLIC] = [view for view in (public, heldout) if view is not None]
    places[TARGET] = [] if target is None else [target]
    return {place: views for place, views in places.items() if views}


def _check_nobody_twice(places: Places) -> None:
    """Refuse an identity that appears in two places."""
    first_place: dict[str, str] = {}
    for place, views in places.items():
        for name in sorted({str(name) for view in views for name in view.identities}):
            if name in first_place:
                raise UserError(
                    place,
                    f"has identity {name!r}, who is also in {first_place[name]}; each identity must be in one place",
                )
            first_place[name] = place


def _check_site(site: SiteData, place: str, recipe: Recipe, method: Method) -> dict[str, int]:
    """Refuse a site with too little data to train or to evaluate; count identities with no or one test image."""
    if len(site.train) < 2:
        raise UserError(place, f"has {len(site.train)} images to train on; at least 2 are needed")
    people, least = len(site.train.identities), method.least_identities(recipe)
    if people < least and least > 2:
        raise UserError(
            place,
            f"has {people} identities, but {method.name} requires {least} at each site; lower method.minimum, or "
            "give the site more",
        )
    if people < least:
        raise UserError(
            place,
            f"has {people} identity, and the loss of {method.name} has no gradient with fewer than {least}: "
            "choose fedfr or fedface, or give the site more identities",
        )
    unknown = sorted(set(site.heldout.identities.tolist()) - set(site.train.identities.tolist()))
    if unknown:
        raise UserError(
            place, f"{len(unknown)} identities have test images but no enrolment images, such as {unknown[0]!r}"
        )
    tested, images = np.unique(site.heldout.subjects, return_counts=True)
    return {"without_test_images": people - len(tested), "with_one_test_image": int((images == 1).sum())}


def _strangers(recipe: Recipe, sites: Mapping[str, SiteData], heldout: View | None) -> dict[str, View | None]:
    """Return the images that each site's model must reject, the impostors."""
    settings = recipe.evaluation.people
    if settings.impostors == "pooled":
        if len(sites) < 2:
            raise UserError("recipe.evaluation.recognition.impostors", "pooled needs a second site")
        return {name: View.join([data.heldout for site, data in sites.items() if site != name]) for name in sites}
    if heldout is not None and not len(heldout):
        raise UserError(
            PUBLIC,
            "has no held-out identities, which are the impostors for thresholds and personal metrics: prepare it "
            "with a share held out",
        )
    return dict.fromkeys(sites, heldout)


def _check_generic_rates(recipe: Recipe, target: View) -> None:
    """Refuse rates that need more pairs or probes than the benchmark has, and a list of pairs for another set."""
    settings, place = recipe.evaluation.people, "recipe.evaluation.recognition"
    _, images = np.unique(target.subjects, return_counts=True)
    impostors = (len(target) ** 2 - int((images**2).sum())) // 2
    probes = sum(int((part.set.rows.split[part.indices] == "test").sum()) for part in target.slices)
    require_measurable(settings.far, impostors, f"{place}.far", "impostor pairs of the benchmark")
    require_measurable(settings.fpir, probes, f"{place}.fpir", "probes of the benchmark")
    if settings.pairs is not None:
        pairs_among(target, settings.pairs)


def _check_rates(recipe: Recipe, sites: Mapping[str, SiteData], strangers: Mapping[str, View | None]) -> None:
    """Refuse requested rates that need more pairs than a site has, before training."""
    settings = recipe.evaluation.people
    place = "recipe.evaluation.recognition"
    for name, site in sites.items():
        others = strangers[name]
        if others is None:
            if settings.personal_far or settings.personal_fpir:
                raise UserError(f"{place}.personal_far", "needs impostors; name data.public")
            continue
        description = f"impostor pairs of site {name}"
        require_measurable(settings.personal_far, len(site.heldout) * len(others), f"{place}.personal_far", description)
        searches = len(others) + (len(site.heldout) if settings.counting == "published" else 0)
        require_measurable(settings.personal_fpir, searches, f"{place}.personal_fpir", f"searches at site {name}")
