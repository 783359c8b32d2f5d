"""The data of a run as views of datasets, and checks of data entries and crops before training or evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_tensors
from fedvisage.base.progress import Say
from fedvisage.data.batches import View
from fedvisage.data.crops import CropRecord, are_incompatible
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import SITE, TARGET, Places
from fedvisage.data.prepared import PreparedSet, read_manifest
from fedvisage.data.selection import split_entry
from fedvisage.datasets.sources import SYNTHETIC, check_source, existing_set, resolve, without_part
from fedvisage.federation.method import Method
from fedvisage.metrics.threshold import ON_TRAINING
from fedvisage.recipe import Recipe
from fedvisage.recipe.data import SITE_NAME
from fedvisage.starts.start import origin_of

# Checks that sets, or a model and a set, have crops of the same kind.

ALLOW = "--allow-mixed-crops"
_FOUND_ASIDE = "from the detector of earlier versions, which are about 2 % of a face away from today's"


def check_same_crops(crops: Mapping[str, CropRecord | None], allowed: bool) -> None:
    """Refuse sets whose crops are incompatible; errors name the place in the recipe and compare it with a site."""
    first_places: dict[CropRecord | None, str] = {}
    for place in sorted(crops, key=lambda place: (not place.startswith(SITE), place)):
        first_places.setdefault(crops[place], place)
    for place, other_place in combinations(first_places.values(), 2):
        crop, other_crop = crops[place], crops[other_place]
        if are_incompatible(crop, other_crop) and not allowed:
            fault = f"its crops ({other_crop}) differ from those of {place} ({crop})"
            raise UserError(other_place, f"{fault}; import it the same way, or add {ALLOW}")


def check_for_model(trained: Iterable[CropRecord], crop: CropRecord | None, place: str, allowed: bool | None) -> None:
    """Refuse a set whose crops are incompatible with all those of a model's training data.

    ``allowed`` is None for commands without an option that allows it.
    """
    records = list(trained)
    if not allowed and records and all(are_incompatible(record, crop) for record in records):
        fault = f"its crops ({crop}) differ from those that the model was trained on ({' or '.join(map(str, records))})"
        raise UserError(place, f"{fault}; import it the same way{f', or add {ALLOW}' if allowed is False else ''}")


def check_for_start(file: Path, crops: Mapping[str, CropRecord | None], allowed: bool) -> None:
    """Refuse a converted start whose network was made with crops of another margin than a set has."""
    _, about = read_tensors(file)
    origin = origin_of(about)
    margin = None if origin is None or not isinstance(origin.get("input"), Mapping) else origin["input"].get("margin")
    if margin is None or allowed:
        return
    for place, crop in sorted(crops.items()):
        if crop is not None and crop.margin not in (None, margin):
            raise UserError(
                place,
                f"its crops ({crop}) differ from those of {file} ({margin:g} times the face box); set input.margin: "
                f"{margin:g} if the set has such crops, import it with --margin {margin:g}, or add {ALLOW}",
            )


def check_margin(prepared: PreparedSet, margin: float | None, place: str) -> None:
    """Refuse a set without the crops of the recipe's margin."""
    crop = prepared.crop
    if crop is None or margin is None or crop.margin in (None, margin):
        return
    further = "".join(f" or {other:g}" for other in prepared.by_margin if other != crop.margin)
    raise UserError(
        place,
        f"has crops of {crop.margin:g}{further} times the face box, but input.margin is {margin:g}; import it with "
        f"--margin {margin:g}",
    )


def notice_of_set(crop: CropRecord | None, place: str) -> list[str]:
    """Return a notice about a set with crops of the earlier detector, or nothing."""
    if crop is None or not crop.outdated:
        return []
    return [f"{place}: has crops {_FOUND_ASIDE}; import it again"]


def notices_of_model(trained: Iterable[CropRecord], entries: Iterable[str], place: str) -> list[str]:
    """Return a notice about a model whose training crops come, or may come, from the earlier detector.

    If the model has no crop records, the sets of its recipe are examined: rendered sets have exact crops, and available
    directories have records or come from an unknown source.
    """
    crops = list(trained)
    if not crops:
        try:
            sources = [split_entry(without_part(entry.strip())[0])[0] for entry in entries]
            paths = [Path(source).expanduser() for source in sources if not source.startswith(SYNTHETIC)]
            crops = [crop for path in paths if (crop := read_manifest(path).crops) is not None]
        except UserError:
            unsure = (
                "does not record how its training crops were made, and their sets are not available; it may have been"
            )
            return [f"{place}: {unsure} trained on crops {_FOUND_ASIDE}"]
    return [f"{place}: was trained on crops {_FOUND_ASIDE}"] if any(crop.outdated for crop in crops) else []


# Names of benchmarks from the command line.

_NAMED = re.compile(rf"({SITE_NAME.pattern})=(.*)", re.DOTALL)


def named_benchmarks(texts: Iterable[str]) -> dict[str, str]:
    """Parse entries such as ``lfw=sets/lfw``, or ``sets/lfw`` alone, which takes the name of its directory."""
    entries: dict[str, str] = {}
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        if named:
            name, entry = named[1], named[2].strip()
        else:  # the name of its directory
            entry = text.strip()
            name = Path(without_part(entry)[0]).name
            if entry.startswith(SYNTHETIC) or not SITE_NAME.fullmatch(name):
                fault = f"{entry!r} needs a name of letters, digits, '-' and '_': write NAME=SET"
                raise UserError("--benchmark", fault)
        if not entry:
            raise UserError("--benchmark", f"{text!r} does not name a set; write NAME=SET or SET")
        if name in entries:
            raise UserError("--benchmark", f"{entries[name]} and {entry} both have the name {name}; write NAME=SET")
        entries[name] = entry
    return entries


POOLED = "all"
"""The name of the pseudo-site with the data of all sites, for the baseline that pools them."""


@dataclass(frozen=True)
class SiteData:
    """A site's two splits: training images, and held-out subjects for the choice of thresholds and models.

    If the recipe evaluates a model on its training images, both are the same view.
    """

    train: View
    heldout: View
    unseen: View | None = None
    """Recognition with ``training.keep``: held-out people, for the comparison of start and result."""

    @property
    def all_trains(self) -> bool:
        """Return whether the site evaluates on its training images."""
        return self.heldout is self.train


@dataclass(frozen=True)
class RecognitionData:
    """Additional data of recognition: public images, the impostors of each site, the unmerged sites, and counts."""

    public: View | None
    strangers: dict[str, View | None]
    apart: dict[str, SiteData]
    counted: dict[str, int]


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A further set for the evaluation of a recognition model: its images, and its directory with the lists."""

    entry: str
    path: Path
    view: View
    crop: CropRecord | None
    digest: str


@dataclass(frozen=True)
class RunData:
    """All data of a run in this process."""

    sites: dict[str, SiteData]
    target: View | None
    digests: dict[str, str]
    people: RecognitionData | None = None
    crops: dict[str, CropRecord | None] = field(default_factory=dict)
    """The crop record of each set, by its place in the recipe."""
    places: Places = field(default_factory=dict)
    """All images by owner; here the sites stay separate, also for methods that merge them."""
    benchmarks: dict[str, Benchmark] = field(default_factory=dict)
    """Recognition: further sets for the evaluation."""

    @property
    def training_crops(self) -> tuple[CropRecord, ...]:
        """The distinct crop records of the training data."""
        records = [self.crops[place] for place in sorted(self.crops) if place != TARGET]
        return tuple(dict.fromkeys(record for record in records if record is not None))


def open_set(entry: str, place: str, recipe: Recipe, cache: Path, say: Say) -> PreparedSet:
    """Open the set of a data entry, render it into the cache if necessary, and check that it fits the recipe."""
    source, _ = split_entry(entry)
    path = resolve(source, cache, workers=recipe.runtime.threads, say=say)
    prepared = PreparedSet.open(path).at_margin(recipe.input.margin)
    check_margin(prepared, recipe.input.margin, place)
    for line in notice_of_set(prepared.crop, place):
        say(line)
    check_bytes(path, cache, say=say)
    if prepared.size != recipe.input.size:
        raise UserError(
            place,
            f"has {prepared.size}×{prepared.size} images, but input.size is {recipe.input.size}; prepare it at "
            "that size",
        )
    return prepared


def verify_sets(entries: Sequence[str], cache: Path, say: Say) -> None:
    """Read every byte of the available sets, and refuse a set whose bytes do not match its digest."""
    for source in dict.fromkeys(split_entry(without_part(entry)[0])[0] for entry in entries):
        path = existing_set(source, cache)
        if path is not None:
            check_bytes(path, cache, whole=True, say=say)


def check_entries(recipe: Recipe) -> None:
    """Refuse unreadable data entries before the first is opened or rendered; errors name the recipe key."""
    entries: dict[str, str | None] = {f"sites.{name}": entry for name, entry in sorted(recipe.data.sites.items())}
    entries |= {"target": recipe.data.target, "public": recipe.data.public}
    entries |= {f"benchmarks.{name}": entry for name, entry in sorted((recipe.data.benchmarks or {}).items())}
    for key, entry in entries.items():
        if entry is not None:
            check_entry(entry, f"recipe.data.{key}", recipe.input.size)
    for name, entry in recipe.data.sites.items() if recipe.evaluation.threshold != ON_TRAINING else ():
        if entry.startswith(SYNTHETIC) and "subjects=1" in entry.split():
            place = f"recipe.data.sites.{name}"
            raise UserError(place, "has one subject, and none to hold out for the threshold; set subjects=2 or more")


def check_entry(entry: str, place: str, size: int) -> None:
    """Refuse an unreadable entry; the error names its place."""
    try:
        check_source(without_part(split_entry(entry)[0].strip())[0], size)
    except UserError as error:
        location = {"synth": ""}.get(error.place, f"{error.place.removeprefix('synth.')}: ")
        raise UserError(place, f"{location}{error.message}") from error


def merge_sites(sites: dict[str, SiteData]) -> dict[str, SiteData]:
    """Return one pseudo-site with the data of all sites."""
    train = View.join([site.train for site in sites.values()])
    unseen = [site.unseen for site in sites.values() if site.unseen is not None]
    heldout = View.join([site.heldout for site in sites.values()])
    return {POOLED: SiteData(train, heldout, View.join(unseen) if unseen else None)}


def check_keep(recipe: Recipe, method: Method) -> None:
    """Refuse a choice between start and result for one model per site."""
    if recipe.training.keep is not None and method.several_models:
        raise UserError(
            "recipe.training.keep",
            f"compares one model with its start, and {method.name} trains one per site; leave it out",
        )
