"""The data of a run as views of prepared sets: what every task's opening returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.data.crops import CropRecord, clash
from fedvisage.data.integrity import check_bytes
from fedvisage.data.overlap import Places
from fedvisage.data.prepared import PreparedSet, read_manifest
from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import SYNTHETIC, check_source, place_of, resolve, without_part
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.recipe.data import SITE_NAME

# Whether the sets of a run, or a model and a set, were cropped alike: said before anything is trained or judged.


ALLOW = "--allow-mixed-crops"
_FOUND_ASIDE = "of the detector of earlier versions, which lie about 2 % of a face beside today's"


def check_alike(crops: Mapping[str, CropRecord | None], allowed: bool) -> None:
    """Refuse sets, by their places in the recipe, whose crops do not go together; sites are what others differ from."""
    ordered = sorted(crops, key=lambda place: (not place.startswith("data.sites."), place))
    for place, other_place in combinations(ordered, 2):
        one, other = crops[place], crops[other_place]
        if clash(one, other) and not allowed:
            raise UserError(other_place, _otherwise(other, f"those of {place}", one))


def check_for_model(trained: Iterable[CropRecord], crop: CropRecord | None, place: str, allowed: bool) -> None:
    """Refuse a set whose crops do not go with those that a model was trained on."""
    for one in trained:
        if clash(one, crop) and not allowed:
            raise UserError(place, _otherwise(crop, "those that the model was trained on", one))


def notice_of_set(crop: CropRecord | None, place: str) -> list[str]:
    """Return the line about a set whose crops lie aside, if it is one."""
    if crop is None or not crop.outdated:
        return []
    return [f"{place}: has crops {_FOUND_ASIDE}; import it again"]


def notices_of_model(trained: Iterable[CropRecord], entries: Iterable[str], place: str) -> list[str]:
    """Return the line about a model that was trained on crops that lie aside, or may have been.

    Where the model does not say how they were made, the sets of its recipe may: rendered ones were cut exactly, and
    directories that are at hand have records, or were made by something that is not known.
    """
    crops = list(trained)
    if not crops:
        try:
            crops = [crop for entry in entries if (crop := _crop_of(entry)) is not None]
        except UserError:
            unsure = "does not say how its training crops were made, and their sets are not here; it may have been"
            return [f"{place}: {unsure} trained on crops {_FOUND_ASIDE}"]
    return [f"{place}: was trained on crops {_FOUND_ASIDE}"] if any(one.outdated for one in crops) else []


def _crop_of(entry: str) -> CropRecord | None:
    source = without_selection(without_part(entry.strip())[0])[0]
    return None if source.startswith(SYNTHETIC) else read_manifest(Path(source).expanduser()).crops


def _otherwise(crop: CropRecord | None, others: str, other: CropRecord | None) -> str:
    return f"its crops ({crop}) were made otherwise than {others} ({other}); import it alike, or add {ALLOW}"


# What benchmarks are called that are named on the command line.


_NAMED = re.compile(rf"({SITE_NAME.pattern})=(.*)", re.DOTALL)


def named_benchmarks(texts: Iterable[str]) -> dict[str, str]:
    """Read ``lfw=sets/lfw``, or ``sets/lfw`` alone, which is called as its directory is."""
    found: dict[str, str] = {}
    for text in texts:
        named = _NAMED.fullmatch(text.strip())
        name, entry = (named[1], named[2].strip()) if named else (_own_name(text.strip()), text.strip())
        if not entry:
            raise UserError("--benchmark", f"{text!r} names no set; write NAME=SET or SET")
        if name in found:
            raise UserError("--benchmark", f"{found[name]} and {entry} are both called {name}; write NAME=SET")
        found[name] = entry
    return found


def _own_name(entry: str) -> str:
    name = Path(without_part(entry)[0]).name
    if entry.startswith(SYNTHETIC) or not SITE_NAME.fullmatch(name):
        raise UserError("--benchmark", f"{entry!r} needs a name of letters, digits, '-' and '_': write NAME=SET")
    return name


POOLED = "all"
"""The name of the pseudo-site that holds all sites' data, for the baseline that breaks the rules."""


@dataclass(frozen=True)
class SiteData:
    """One site's two splits: what it trains on, and the other subjects that it keeps for choosing.

    Where a model is judged on what it was trained on, both are the same.
    """

    train: View
    heldout: View

    @property
    def all_trains(self) -> bool:
        """Tell whether the site judges on what it trains on."""
        return self.heldout is self.train


@dataclass(frozen=True)
class People:
    """What recognition has besides: public images, whom each site must reject, and the sites as they were to judge."""

    public: View | None
    strangers: dict[str, View | None]
    apart: dict[str, SiteData]
    counted: dict[str, int]


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A further set to judge a recognition model on: its images, and where it lies, with lists beside it."""

    entry: str
    path: Path
    view: View
    crop: CropRecord | None
    digest: str


@dataclass(frozen=True)
class Opened:
    """All data of a run in this process."""

    sites: dict[str, SiteData]
    user: View | None
    digests: dict[str, str]
    people: People | None = None
    first: Message = field(default_factory=dict)
    """Pre-trained parts to start from."""
    crops: dict[str, CropRecord | None] = field(default_factory=dict)
    """How each set was cropped, by its place in the recipe."""
    places: Places = field(default_factory=dict)
    """All pictures, by whose they are; methods that merge the sites have theirs apart here."""
    benchmarks: dict[str, Benchmark] = field(default_factory=dict)
    """Recognition: further sets to judge the model on."""


def open_set(entry: str, place: str, recipe: Recipe, cache: Path, say: Callable[[str], None]) -> PreparedSet:
    """Open the set of a data entry, rendering it into the cache if need be, and check that it fits the recipe."""
    source, _ = without_selection(entry)
    path = resolve(source, cache, workers=recipe.runtime.threads, say=say)
    found = PreparedSet.open(path)
    for line in notice_of_set(found.crop, place):
        say(line)
    check_bytes(path, cache, say=say)
    return _checked(found, place, recipe)


def verify_sets(entries: Sequence[str], cache: Path, say: Callable[[str], None]) -> None:
    """Read every byte of the sets that are there, and refuse one whose digest is not that of its bytes."""
    for source in dict.fromkeys(without_selection(without_part(entry)[0])[0] for entry in entries):
        path = place_of(source, cache)
        if path is not None:
            check_bytes(path, cache, whole=True, say=say)


def check_entries(recipe: Recipe) -> None:
    """Refuse data entries that cannot be opened, each by its key, before the first is opened or rendered."""
    entries: dict[str, str | None] = {f"sites.{name}": entry for name, entry in sorted(recipe.data.sites.items())}
    entries |= {"user": recipe.data.user, "public": recipe.data.public}
    entries |= {f"benchmarks.{name}": entry for name, entry in sorted((recipe.data.benchmarks or {}).items())}
    for key, entry in entries.items():
        if entry is not None:
            check_entry(entry, f"recipe.data.{key}", recipe.input.size)


def check_entry(entry: str, place: str, size: int) -> None:
    """Refuse an entry that cannot be opened, by the place where it stands."""
    try:
        check_source(without_part(without_selection(entry)[0].strip())[0], size)
    except UserError as error:
        said = {"synth": ""}.get(error.place, f"{error.place.removeprefix('synth.')}: ")
        raise UserError(place, f"{said}{error.message}") from error


def _checked(prepared: PreparedSet, place: str, recipe: Recipe) -> PreparedSet:
    if prepared.size != recipe.input.size:
        raise UserError(
            place,
            f"has {prepared.size}×{prepared.size} images, but input.size is {recipe.input.size}; "
            "prepare it at that size",
        )
    return prepared


def merged(sites: dict[str, SiteData]) -> dict[str, SiteData]:
    """Return the one pseudo-site that has all sites' data."""
    train = View.joined([site.train for site in sites.values()])
    return {POOLED: SiteData(train, View.joined([site.heldout for site in sites.values()]))}
