"""Whether the sets of a run, or a model and a set, were cropped alike: said before anything is trained or judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from fedvisage.data.crops import CropRecord, clash
from fedvisage.errors import UserError

ALLOW = "--allow-mixed-crops"


def check_alike(crops: Mapping[str, CropRecord | None], allowed: bool) -> None:
    """Refuse sets, by their places in the recipe, whose crops do not go together."""
    for (place, one), (other_place, other) in combinations(sorted(crops.items()), 2):
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
    return [f"{place}: {OUTDATED}; import it again"]


def notices_of_model(trained: Iterable[CropRecord] | None, entries: Iterable[str], place: str) -> list[str]:
    """Return the line about a model that was trained on crops that lie aside, or, from before it was said, may have.

    ``entries`` are the sets of its recipe: rendered ones were cut exactly.
    """
    if trained is not None:
        return [f"{place}: was trained on crops {_FOUND_ASIDE}"] if any(one.outdated for one in trained) else []
    if all(entry.strip().startswith("synth:") for entry in entries):
        return []
    return [f"{place}: does not say how its training crops were made; it may have been trained on crops {_FOUND_ASIDE}"]


_FOUND_ASIDE = "of the detector of earlier versions, which lie about 2 % of a face beside today's"
OUTDATED = f"has crops {_FOUND_ASIDE}"


def _otherwise(crop: CropRecord | None, others: str, other: CropRecord | None) -> str:
    return f"its crops ({crop}) were made otherwise than {others} ({other}); import it alike, or add {ALLOW}"
