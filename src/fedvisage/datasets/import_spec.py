"""The specification of an imported set: a dataset with import options, written like the command without directories."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.data.prepared import Manifest
from fedvisage.datasets.catalogue import SCANNERS, dataset_of
from fedvisage.datasets.frames import ReadSettings
from fedvisage.datasets.import_people import settings_of_people
from fedvisage.datasets.import_presentations import read_settings_of, settings_of
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.layout import Layout

ORDER = " order="
_LATER = ("size", "workers")
"""Options that come from the recipe or the machine: an import string may have them, without effect."""

_DEFAULTS: dict[str, Any] = {option.name: option.default for option in fields(ImportOptions) if option.name != "few"}


@dataclass(frozen=True)
class ImportSpec:
    """A dataset with its import options; `words` are the options as written."""

    kind: str
    options: ImportOptions
    words: str = ""

    def of_size(self, size: int) -> ImportSpec:
        """Return the same specification with another size."""
        return replace(self, options=replace(self.options, size=size))

    @property
    def settings(self) -> str:
        """The end of the source line of such a set, which records its options."""
        dataset = dataset_of(self.kind)
        if isinstance(dataset, Layout):
            return settings_of_people(dataset, self.options)
        return settings_of(self.reading, self.options)

    @property
    def reading(self) -> ReadSettings:
        """Reading settings of a dataset of attacks."""
        return read_settings_of(SCANNERS[self.kind], self.options)

    def is_met_by(self, manifest: Manifest) -> bool:
        """Return whether a set is of this dataset, with this size and these options."""
        settings, _, _ = manifest.source.partition(ORDER)  # the order comes from the files, not from the options
        return (
            self.is_of_kind(manifest) and manifest.size == self.options.size and settings.endswith(f" {self.settings}")
        )

    def is_of_kind(self, manifest: Manifest) -> bool:
        """Return whether a set is of this dataset, with any options."""
        dataset = dataset_of(self.kind)
        if isinstance(dataset, Layout):
            _, named, kind = manifest.source.partition(" kind=")
            # Sets of folders of one's own do not name their kind.
            return kind.startswith(f"{self.kind} ") if dataset.page else manifest.source[:7] == "people " and not named
        return manifest.source.startswith(f"{self.kind} ")

    def command(self, source: str, destination: Path) -> str:
        """Return the command that imports the set."""
        words = ["fedvisage data import", self.kind, shlex.quote(source), shlex.quote(str(destination)), self.words]
        return " ".join([*(word for word in words if word), f"--size {self.options.size}"])


def read_spec(text: str, place: str) -> ImportSpec:
    """Read a line such as ``oulu-npu --frames 10``."""
    try:
        kind, *words = shlex.split(text)
    except ValueError:
        raise UserError(place, f"must be a dataset kind with import options, got {text!r}") from None
    try:
        dataset_of(kind)
        options = _options(words)
        # The recipe defines the size.
        index = words.index("--size") if "--size" in words else len(words)
        spec = ImportSpec(kind, ImportOptions(**options), " ".join(words[:index] + words[index + 2 :]))
        _ = spec.settings  # raises for options that the dataset does not support
    except UserError as error:
        raise UserError(place, f"{text!r}: {error}") from None
    return spec


def _options(words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in _DEFAULTS:
            raise UserError(word, "is not an option of data import")
        kind = type(_DEFAULTS[name])
        if kind is bool:
            values[name] = True
            continue
        try:
            values[name] = kind(remaining.pop(0))
        except (IndexError, ValueError):
            raise UserError(word, f"needs a value that is {'a number' if kind in (int, float) else 'a word'}") from None
    return {name: value for name, value in values.items() if name not in _LATER}
