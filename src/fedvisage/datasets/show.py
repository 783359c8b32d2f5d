"""Show the contents of a prepared set, as a table of counts, as a contact sheet, and as a measurement of shortcuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from fedvisage.base.errors import UserError
from fedvisage.base.progress import format_count
from fedvisage.base.streams import numpy_rng
from fedvisage.data.left_out import read_left_out
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import BONA_FIDE, SPLITS, Texts
from fedvisage.datasets.report import shortcomings
from fedvisage.faces.cues import NAMES, OF_A_CAMERA, cues

# The shortcut meter.

WARN = 0.75
"""A single number, or the linear model, with at least this AUC is a shortcut that a network will learn."""
MOST = 600
"""Maximum number of images measured per species, drawn once."""
LEAST = 20
"""Minimum number of images per class for an AUC."""
FOLDS = 5
ANY = "any attack"
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shortcuts:
    """AUC of each cue for each species, and of the linear model: on all cues, and on camera cues.

    A number that depends on the camera (sharpness, noise, colour balance and so on) should reveal almost nothing about
    the class. If one does, a network can score well by it without using the presentation, and fails with the next
    camera. The linear model uses all numbers at once and is evaluated on subjects outside its training data.

    Values are AUCs of the bona fide images: below 0.5, attacks have higher values of the cue.
    """

    cues: dict[str, dict[str, float]]
    linear: dict[str, tuple[float, float]]
    images: dict[str, int]

    def lines(self) -> list[str]:
        """Return a table, then warnings."""
        if not self.cues:
            return [f"shortcuts: too few images; needs {LEAST} bona fide images and {LEAST} of one attack species"]
        heads = [*self.cues]
        singles = {(name, kind): self.cues[kind][name] for name in NAMES for kind in heads}
        shown_singles = {key: f"{max(auc, 1 - auc):.2f}{'-' if auc < 0.5 else ' '}" for key, auc in singles.items()}
        rows = [(name, *(shown_singles[name, kind] for kind in heads)) for name in NAMES]
        rows += [("linear, all", *(_format_plain_auc(self.linear[kind][0]) for kind in heads))]
        rows += [("linear, camera", *(_format_plain_auc(self.linear[kind][1]) for kind in heads))]
        counts = ", ".join(f"{count:,} {name}" for name, count in self.images.items())
        head = f"shortcuts: AUC of single numbers over {counts}; 0.50 means no difference, - means more in attacks"
        return [head, *align_columns([("cue", *heads), *rows]), *self.warnings()]

    def warnings(self) -> list[str]:
        """Return warnings about cues that separate the classes so well that a network will learn them."""
        strong = [
            (max(auc, 1 - auc), name, kind)
            for kind, aucs in self.cues.items()
            for name, auc in aucs.items()
            if max(auc, 1 - auc) >= WARN and name in OF_A_CAMERA
        ]
        linear = [(camera, kind) for kind, (_, camera) in self.linear.items() if camera >= WARN]
        if strong:
            auc, name, kind = max(strong)
            count = len({cue for _, cue, _ in strong})
            more = f" ({count} cues reach {WARN})" if count > 1 else ""
            return [
                f"warning: {name} alone separates bona fide images from {kind} with an AUC of {auc:.2f}{more}: a model"
                " can learn the camera instead of the presentation; record both classes with the same cameras and light"
            ]
        if linear:
            auc, kind = max(linear)
            return [
                f"warning: camera properties together separate bona fide images from {kind} with an AUC of "
                f"{auc:.2f}, although no single one does; record both classes with the same cameras and light"
            ]
        return []


def shortcuts_of(prepared: PreparedSet) -> Shortcuts:
    """Measure a set of attacks: a table for each species, and one for all species together if there are several."""
    rows = prepared.rows
    if rows.group is not None:
        raise UserError(
            str(prepared.path), "is an identity set without attacks; --shortcuts is for sets with both classes"
        )
    chosen = {
        kind: draw_indices(prepared, kind) for kind in (BONA_FIDE, *sorted({*rows.species.tolist()} - {BONA_FIDE}))
    }
    images = {kind: len(indices) for kind, indices in chosen.items()}
    attacks = [kind for kind in chosen if kind != BONA_FIDE and images[kind] >= LEAST]
    if images[BONA_FIDE] < LEAST or not attacks:
        return Shortcuts({}, {}, images)
    tables = {kind: measure_cues(prepared, indices) for kind, indices in chosen.items()}
    groups: dict[str, Sequence[str]] = {kind: [kind] for kind in attacks}
    if len(attacks) > 1:
        groups[ANY] = attacks
    singles, linear = {}, {}
    for name, kinds in groups.items():
        values = np.concatenate([tables[BONA_FIDE], *(tables[kind] for kind in kinds)])
        label = np.arange(len(values)) < images[BONA_FIDE]
        subjects = rows.subject[np.concatenate([chosen[BONA_FIDE], *(chosen[kind] for kind in kinds)])]
        singles[name] = {cue: auc_of(values[:, column], label) for column, cue in enumerate(NAMES)}
        camera = values[:, [column for column, cue in enumerate(NAMES) if cue in OF_A_CAMERA]]
        linear[name] = linear_auc(values, label, subjects), linear_auc(camera, label, subjects)
    return Shortcuts(singles, linear, images)


def auc_of(values: Array, label: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a bona fide image has more of a cue than an attack, ties counting half.

    This is the statistic of Mann and Whitney.
    """
    live, attacks = int(label.sum()), int((~label).sum())
    from scipy.stats import rankdata  # loads for a second, which imports in many processes need not

    return float((rankdata(values)[label].sum() - live * (live + 1) / 2) / (live * attacks))


def linear_auc(values: Array, label: npt.NDArray[np.bool_], subjects: Texts) -> float:
    """Return the AUC of a logistic regression on subjects outside its training folds.

    It is NaN with one subject, or if a training fold lacks a class.
    """
    people = len(np.unique(subjects))
    if people < 2:
        return float("nan")
    # scikit-learn loads for seconds, which imports in many processes need not.
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = GroupKFold(min(FOLDS, people), shuffle=True, random_state=0)
    if any(len(np.unique(label[train])) < 2 for train, _ in folds.split(values, label, subjects)):
        return float("nan")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, class_weight="balanced"))
    scores = cross_val_predict(model, values, label, groups=subjects, cv=folds, method="decision_function")
    return auc_of(scores, label)


def draw_indices(prepared: PreparedSet, species: str) -> npt.NDArray[np.int64]:
    """Draw at most ``MOST`` images of a species, or of all attacks, always the same."""
    names = prepared.rows.species
    indices = np.flatnonzero(names != BONA_FIDE if species == ANY else names == species)
    order = numpy_rng(0, "shortcuts", species).permutation(len(indices))[:MOST]
    return indices[np.sort(order)].astype(np.int64)


def measure_cues(prepared: PreparedSet, indices: npt.NDArray[np.int64]) -> Array:
    """Return a row of cues for each image, in the order of ``NAMES``."""
    measured: list[Mapping[str, float]] = [cues(np.ascontiguousarray(prepared.images[index])) for index in indices]
    return np.array([[values[name] for name in NAMES] for values in measured], np.float64)


def align_columns(table: Sequence[Sequence[str]], names: int = 1) -> list[str]:
    """Return the rows of a table as lines; columns after `names` hold numbers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < names else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def _format_plain_auc(auc: float) -> str:
    return "  ? " if np.isnan(auc) else f"{auc:.2f} "


_GAP = 2
_LETTERS = 14
"""Height of letters in pixels: legible at full size."""
_LINE = 20
_MARGIN = 96
_WIDEST_MARGIN = 180
_BACKGROUND = (255, 255, 255)
_EMPTY = (235, 235, 235)
_INK = (20, 20, 20)
_CELL_LIMIT = 256
_VALUES = 12
_CELL_LEAST = 48

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def describe(prepared: PreparedSet) -> list[str]:
    """Return a table with the numbers of images, subjects and videos of each split and species, line by line."""
    rows = prepared.rows
    table = [("split", "species", "images", "subjects", "videos")]
    for split in (part for part in SPLITS if part in rows.split):
        for species in species_of(prepared):
            selected = (rows.split == split) & (rows.species == species)
            if selected.any():
                table.append((split, species, *_counts(prepared, selected)))
    table.append(("all", "", *_counts(prepared, np.ones(len(prepared), bool))))
    lines = align_columns(table, names=2)
    # The values of further columns, for users who select by them.
    for name, texts in rows.further.items():
        values = [str(value) or "(none)" for value in np.unique(texts)]
        more = f" and {len(values) - _VALUES} more" if len(values) > _VALUES else ""
        lines.append(f"{name}: {', '.join(values[:_VALUES])}{more}")
    return lines


def contact_sheet(prepared: PreparedSet, *, columns: int = 8, per_species: int = 2) -> Image.Image:
    """Draw images of a set: one column per subject, `per_species` rows per species, always the same.

    Subjects with the most species come first; a cell stays grey if a subject has no (further) image of a species.
    Images are shown at original size up to 256 pixels, which preserves details; very small ones are enlarged by a
    whole number. The heading describes the set and the scale.
    """
    rows, species, species_by_subject = prepared.rows, species_of(prepared), dict[str, set[str]]()
    pairs = Counter(zip(rows.subject.tolist(), rows.species.tolist(), strict=True))
    for subject, kind in pairs:
        species_by_subject.setdefault(subject, set()).add(kind)
    names = sorted(species_by_subject)
    drawn = [names[index] for index in numpy_rng(0, "contact sheet").permutation(len(names))]
    subjects = sorted(drawn, key=lambda subject: -len(species_by_subject[subject]))[:columns]
    font = ImageFont.load_default(_LETTERS)
    scale = max(1, -(-_CELL_LEAST // prepared.size))
    side = min(prepared.size * scale, _CELL_LIMIT)
    # Each subject shows at most `per_species` images of a species.
    shown = sum(min(number, per_species) for (subject, _), number in pairs.items() if subject in subjects)
    parts = [part for part in SPLITS if part in rows.split]
    heading = [
        f"{prepared.name}, split{'s' if len(parts) > 1 else ''} {', '.join(parts)}",
        f"{shown:,} of {format_count(len(prepared), 'image')} of {format_count(len(names), 'subject')}, "
        f"{prepared.size} x {prepared.size} pixels, "
        f"shown {'at original size' if prepared.size == side else f'at {side} x {side}'}",
    ]
    margin = int(min(_WIDEST_MARGIN, max(_MARGIN, *(font.getlength(name) + 4 * _GAP for name in species))))
    above = (len(heading) + 1) * _LINE + _GAP
    count = len(species) * per_species

    def place(column: int, row: int) -> tuple[int, int]:
        """Return the upper left corner of a cell, below the heading and right of the species' names."""
        return margin + column * (side + _GAP), above + row * (side + _GAP)

    # A sheet with its heading and grey cells, wide enough for both.
    width, height = place(len(subjects), count)
    width = max(width, *(int(font.getlength(line)) + 3 * _GAP for line in heading))
    sheet = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(heading):
        draw.text((_GAP, number * _LINE + 1), line, fill=_INK, font=font)
    for column, subject in enumerate(subjects):
        for row in range(count):
            left, top = place(column, row)
            draw.rectangle((left, top, left + side - 1, top + side - 1), fill=_EMPTY)
        left, top = place(column, 0)
        draw.text((left, top - _LINE), _shorten_to_fit(subject, side, font), fill=_INK, font=font)
        for number, name in enumerate(species):
            indices = np.flatnonzero((rows.subject == subject) & (rows.species == name))
            # Each subject and species has its own random stream, so its images do not depend on the rest of the sheet.
            chosen = numpy_rng(0, "contact sheet", subject, name).permutation(indices)[:per_species]
            for turn, index in enumerate(chosen):
                picture = Image.fromarray(np.array(prepared.images[index])).resize((side, side), Image.Resampling.BOX)
                sheet.paste(picture, place(column, number * per_species + turn))
    # Names of species, left of their first rows.
    for number, name in enumerate(species):
        _, top = place(0, number * per_species)
        text = _shorten_to_fit(name, margin - 2 * _GAP, font)
        draw.text((_GAP, top + side // 2 - _LETTERS // 2), text, fill=_INK, font=font)
    return sheet


def species_of(prepared: PreparedSet) -> list[str]:
    """Return the species of a set, bona fide first."""
    names = {str(name) for name in np.unique(prepared.rows.species)}
    return sorted(names, key=lambda name: (name != BONA_FIDE, name))


def _counts(prepared: PreparedSet, here: np.ndarray) -> tuple[str, str, str]:
    rows = prepared.rows
    return f"{here.sum():,}", f"{len(np.unique(rows.subject[here])):,}", f"{len(np.unique(rows.video[here])):,}"


def _shorten_to_fit(text: str, width: int, font: Font) -> str:
    """Return the longest end of a text that fits: names of subjects differ at the end."""
    while len(text) > 1 and font.getlength(text) > width:
        text = text[1:]
    return text


def show_set(directory: Path, *, sheet: Path | None = None, verify: bool = False, shortcuts: bool = False) -> list[str]:
    """Return the description of a set, line by line; optionally write a contact sheet and measure shortcuts."""
    if sheet is not None:
        if sheet.suffix.lower() != ".png":
            raise UserError("--sheet", f"{str(sheet)!r} must end in .png")
        if sheet.is_dir() or not sheet.parent.is_dir():
            raise UserError("--sheet", f"{str(sheet)!r} cannot be written; give a file name in a directory that exists")
    prepared = PreparedSet.open(directory, verify=verify)
    further = "".join(f", and {margin:g} times" for margin in list(prepared.by_margin)[1:])
    live = int((prepared.rows.label == 1).sum())
    classes = (live, len(prepared) - live) if prepared.rows.group is None else (None, None)
    lines = [
        f"{prepared.name}: {format_count(len(prepared), 'image')} of {prepared.size}×{prepared.size}, "
        f"{prepared.source}",
        *([f"crops: {prepared.crop}{further}"] if prepared.crop is not None else []),
        *describe(prepared),
        *([left_out.line] if (left_out := read_left_out(directory)) is not None else []),
        *shortcomings(len(np.unique(prepared.rows.subject)), *classes),
    ]
    if shortcuts:
        lines += shortcuts_of(prepared).lines()
    if sheet is not None:
        contact_sheet(prepared).save(sheet)
        lines.append(f"contact sheet: {sheet}")
    return lines
