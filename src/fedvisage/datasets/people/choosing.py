"""Subsets of a dataset's people and photographs, and FedFR's division of MS1MV2 among clients and the public.

FedFR (Liu et al. 2022) takes 10,000 people with 100 photographs each: 6,000 are public, and 4,000 are at the clients,
which train on 60 photographs of each and test with 40. Here the people with enough photographs are put into a drawn
order, whose first two fifths are for clients; 100 photographs of each are drawn.

The authors' released code divides differently, and can be reproduced only with the original file, because it depends on
the order of people in it. Python's own generator shuffles them from the seed 100. People of the first half with 101 to
109 photographs are at clients, the first 4,000 of them: they test with the first 40 photographs of each and train on
the others. People of the second half with 61 to 79 photographs are public, the first 6,000.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fedvisage.base.errors import UserError
from fedvisage.base.streams import numpy_rng
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.layout import Photograph, PhotographList

PHOTOGRAPHS, TESTED = 100, 40
CLIENTS, PUBLIC = 4000, 6000
SITES = 40
SEED = 100
MS1MV2 = 85_742


def subset_text(options: ImportOptions) -> str:
    """Return the chosen part as written in the source line of a set: empty for everything."""
    values = {"split": options.split, "people": options.people, "most": options.most}
    return "".join(f" {name}={value}" for name, value in values.items() if value)


def choose_subset(listing: PhotographList, options: ImportOptions) -> PhotographList:
    """Return the chosen part of a listing."""
    if options.split:
        return PARTS[options.split](listing, options)
    people = [person for person, count in listing.counts.items() if count >= options.least]
    if options.people:
        people = _take_people(
            _draw_people(people, options.seed), options.people, f"with {options.least} photographs or more"
        )
    if not (options.people or options.most):
        return listing
    return _limit_listing(listing, people, options.most or max(listing.counts.values()), options.seed)


def order_digest(listing: PhotographList) -> str:
    """Return a digest of the order of people and their numbers of photographs, which decides the released division."""
    return hashlib.sha256(repr([*listing.counts.items()]).encode()).hexdigest()[:16]


def _paper_part(listing: PhotographList, options: ImportOptions, clients: bool) -> PhotographList:
    """Return the clients' or the public part of the paper's division: two fifths or three fifths of a drawn order."""
    most = options.most or PHOTOGRAPHS
    order = _draw_people([person for person, count in listing.counts.items() if count >= most], options.seed)
    cut = 2 * len(order) // 5
    part, count = (order[:cut], CLIENTS) if clients else (order[cut:], PUBLIC)
    people = _take_people(part, options.people or count, f"with {most} photographs or more")

    def splits(person: str, count: int) -> list[str]:
        """Draw the test photographs of a client's person: 40 of 100."""
        if not clients:
            return ["train"] * count
        tested = numpy_rng(options.seed, "fedfr", "test", person).permutation(count)[: count * TESTED // PHOTOGRAPHS]
        return ["test" if place in tested else "train" for place in range(count)]

    return replace(_limit_listing(listing, people, most, options.seed), splits=splits)


def _released_part(listing: PhotographList, options: ImportOptions, clients: bool) -> PhotographList:
    """Return the clients' or the public part of the released code's division: of the first or the second half."""
    if not listing.in_order:
        raise UserError("--split", "fedfr-released depends on the order of people in a .rec file; import kind rec")
    order = list(listing.counts)
    random.Random(SEED).shuffle(order)
    half = len(order) // 2
    if clients:
        part, wanted, least, most, place = order[:half], CLIENTS, 101, 109, "first"
    else:
        part, wanted, least, most, place = order[len(order) - half :], PUBLIC, 61, 79, "second"
    fit = [person for person in part if least <= listing.counts[person] <= most]
    people = _take_people(fit, options.people or wanted, f"with {least} to {most} photographs in the {place} half")
    chosen = _limit_listing(listing, people, max(listing.counts.values()), options.seed)
    if len(listing.counts) != MS1MV2:
        people_in_file = f"{len(listing.counts):,}"
        note = (
            f"MS1MV2 has {MS1MV2:,} people, but this file has {people_in_file}: the division differs from the authors'"
        )
        chosen = replace(chosen, notes=(*chosen.notes, note))
    if not clients:
        return replace(chosen, splits=lambda _, count: ["train"] * count)
    named = _rename_people(chosen, people)
    return replace(named, splits=lambda _, count: ["test"] * TESTED + ["train"] * (count - TESTED))


def _draw_people(people: Sequence[str], seed: int) -> list[str]:
    """Put people into a drawn order that does not depend on their original order."""
    names = sorted(people)
    return [names[place] for place in numpy_rng(seed, "import", "people").permutation(len(names)).tolist()]


def _take_people(people: Sequence[str], wanted: int, who: str) -> list[str]:
    if len(people) < wanted:
        raise UserError(
            "--people",
            f"there are {len(people):,} people {who}, and {wanted:,} are requested; choose"
            " fewer, or give the whole dataset",
        )
    return list(people[:wanted])


def _limit_listing(listing: PhotographList, people: Sequence[str], most: int, seed: int) -> PhotographList:
    """Keep these people, with at most `most` photographs of each, which are drawn and stay in order."""

    def photographs(person: str) -> Sequence[Photograph]:
        every, count = listing.photographs(person), listing.counts[person]
        if count <= most:
            return every
        drawn = numpy_rng(seed, "import", "photographs", person).permutation(count)[:most]
        return [every[place] for place in sorted(drawn.tolist())]

    counts = {person: min(listing.counts[person], most) for person in people}
    note = f"{len(people):,} of {len(listing.counts):,} people are used, and {sum(counts.values()):,} photographs"
    return replace(listing, counts=counts, photographs=photographs, expected=None, notes=(*listing.notes, note))


def _rename_people(listing: PhotographList, people: Sequence[str]) -> PhotographList:
    """Put a new number in front of each name: ``part=7/40`` of the set has the people of the seventh client."""
    each, rest = divmod(len(people), SITES)
    earlier = {}
    for rank, person in enumerate(people):
        number = rank if rest else rank % each * SITES + rank // each
        folder, slash, name = person.rpartition("/")
        earlier[f"{folder}{slash}{number:06d}-{name}"] = person

    def photographs(person: str) -> Sequence[Photograph]:
        every, count = listing.photographs(earlier[person]), listing.counts[earlier[person]]
        return [replace(every[place], person=person) for place in range(count)]

    return replace(
        listing, counts={name: listing.counts[person] for name, person in earlier.items()}, photographs=photographs
    )


PARTS: Mapping[str, Callable[[PhotographList, ImportOptions], PhotographList]] = {
    "fedfr-clients": partial(_paper_part, clients=True),
    "fedfr-public": partial(_paper_part, clients=False),
    "fedfr-released-clients": partial(_released_part, clients=True),
    "fedfr-released-public": partial(_released_part, clients=False),
}
"""Known parts of datasets of people, by name."""
