"""The data of a run as views of prepared sets: what every task's opening returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvisage.data.batches import View
from fedvisage.data.checked import check_bytes
from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import check_source, place_of, resolve, without_part
from fedvisage.errors import UserError
from fedvisage.federation.wire.message import Message
from fedvisage.recipe import Recipe
from fedvisage.tasks.crops import notice_of_set
from fedvisage.tasks.overlap import Places

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
