"""Whether the sets of a run, or a model and a set, were cropped alike: said before anything is trained or judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from fedvisage.data.crops import CropRecord, clash
from fedvisage.data.manifest import read_manifest
from fedvisage.data.selection import without_selection
from fedvisage.datasets.sources import SYNTHETIC, without_part
from fedvisage.errors import UserError

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
