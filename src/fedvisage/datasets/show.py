"""What a prepared set holds, as a table of counts and as a contact sheet."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE, SPLITS
from fedvisage.datasets.importers.report import shortcomings
from fedvisage.errors import UserError
from fedvisage.streams import numpy_rng

_GAP = 2
_MARGIN = 84
_HEADING = 16
_BACKGROUND = (255, 255, 255)
_EMPTY = (235, 235, 235)
_INK = (20, 20, 20)
_CELL_LIMIT = 256


def describe(found: PreparedSet) -> list[str]:
    """Return a table with the numbers of images, subjects and videos of each split and species, line by line."""
    rows = found.rows
    table = [("split", "species", "images", "subjects", "videos")]
    for split in (part for part in SPLITS if part in rows.split):
        for species in species_of(found):
            here = (rows.split == split) & (rows.species == species)
            if here.any():
                table.append((split, species, *_counts(found, here)))
    table.append(("all", "", *_counts(found, np.ones(len(found), bool))))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(line))
        for line in ([*zip(line, widths, strict=True)] for line in table)
    ]


def warnings_about(found: PreparedSet) -> list[str]:
    """Say what of a set no training can use."""
    live = int((found.rows.label == 1).sum())
    classes = (live, len(found) - live) if found.rows.group is None else (None, None)
    return shortcomings(len(np.unique(found.rows.subject)), *classes)


def contact_sheet(
    found: PreparedSet, *, columns: int = 8, per_species: int = 2, split: str | None = None, seed: int = 0
) -> Image.Image:
    """Draw images of a set: one column per subject, `per_species` rows per species, chosen by the seed.

    Subjects of which most species exist come first; a cell stays grey where a subject has no (further) image of a
    species. Images are shown at their own size up to 256 pixels, so that nothing is smoothed away.
    """
    indices = found.select(split)
    if len(indices) == 0:
        raise UserError(str(found.path), f"has no images in split {split!r}")
    species, subjects = species_of(found), _chosen_subjects(found, indices, columns, seed)
    side = min(found.size, _CELL_LIMIT)
    sheet, draw, font = _empty_sheet(len(subjects), len(species) * per_species, side)
    for column, subject in enumerate(subjects):
        draw.text((_MARGIN + column * (side + _GAP), 1), _fitting(subject, side, font), fill=_INK, font=font)
        for number, name in enumerate(species):
            of_both = (found.rows.subject[indices] == subject) & (found.rows.species[indices] == name)
            chosen = numpy_rng(seed, "contact sheet", subject, name).permutation(indices[of_both])[:per_species]
            for turn, index in enumerate(chosen):
                place = _place(column, number * per_species + turn, side)
                sheet.paste(
                    Image.fromarray(np.array(found.images[index])).resize((side, side), Image.Resampling.BOX), place
                )
    for number, name in enumerate(species):
        _, top = _place(0, number * per_species, side)
        draw.text((_GAP, top + side // 2 - 6), _fitting(name, _MARGIN - 2 * _GAP, font), fill=_INK, font=font)
    return sheet


def species_of(found: PreparedSet) -> list[str]:
    """Return the species of a set, bona fide first."""
    names = {str(name) for name in np.unique(found.rows.species)}
    return sorted(names, key=lambda name: (name != BONA_FIDE, name))


def _counts(prepared: PreparedSet, here: np.ndarray) -> tuple[str, str, str]:
    rows = prepared.rows
    return f"{here.sum():,}", f"{len(np.unique(rows.subject[here])):,}", f"{len(np.unique(rows.video[here])):,}"


def _chosen_subjects(prepared: PreparedSet, indices: np.ndarray, count: int, seed: int) -> list[str]:
    species_by_subject: dict[str, set[str]] = {}
    pairs = zip(prepared.rows.subject[indices].tolist(), prepared.rows.species[indices].tolist(), strict=True)
    for subject, species in pairs:
        species_by_subject.setdefault(subject, set()).add(species)
    subjects = sorted(species_by_subject)
    drawn = [subjects[index] for index in numpy_rng(seed, "contact sheet").permutation(len(subjects))]
    return sorted(drawn, key=lambda subject: -len(species_by_subject[subject]))[:count]


def _empty_sheet(
    columns: int, rows: int, side: int
) -> tuple[Image.Image, ImageDraw.ImageDraw, ImageFont.FreeTypeFont | ImageFont.ImageFont]:
    width, height = _place(columns, rows, side)
    sheet = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for column in range(columns):
        for row in range(rows):
            left, top = _place(column, row, side)
            draw.rectangle((left, top, left + side - 1, top + side - 1), fill=_EMPTY)
    return sheet, draw, ImageFont.load_default(11)


def _place(column: int, row: int, side: int) -> tuple[int, int]:
    return _MARGIN + column * (side + _GAP), _HEADING + row * (side + _GAP)


def _fitting(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return the end of a text that fits: names of subjects differ there."""
    while len(text) > 1 and font.getlength(text) > width:
        text = text[1:]
    return text
