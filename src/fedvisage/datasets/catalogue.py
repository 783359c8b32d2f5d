"""The catalogue of datasets: each kind's layout and importer by name, and small rendered copies for trying them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint
from fedvisage.base.parallel import Progress
from fedvisage.base.progress import format_count
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad import (
    casia_fasd,
    casia_surf,
    cefa,
    celeba_spoof,
    fedgpad,
    folder,
    lcc_fasd,
    masks,
    msu_mfsd,
    oulu_npu,
    precropped,
    replay_attack,
    rose_youtu,
    siw,
    wmca,
)
from fedvisage.datasets.pad.scanner import Scanner
from fedvisage.datasets.people import benchmarks, bin, folders, ijb, nist, recordio
from fedvisage.datasets.people.layout import Layout
from fedvisage.datasets.report import ImportReport

# Datasets of people in their published layouts.

LAYOUTS: dict[str, Layout] = {
    layout.kind: layout
    for layout in (
        recordio.LAYOUT,
        folders.VGGFACE2,
        folders.BUPT,
        folders.DIGIFACE,
        bin.LAYOUT,
        benchmarks.LFW,
        benchmarks.CALFW,
        benchmarks.CPLFW,
        benchmarks.CFP,
        benchmarks.AGEDB,
        benchmarks.LAYOUT,
        ijb.B,
        ijb.C,
        nist.B,
        nist.C,
    )
}


# Datasets of presentation attacks in their published layouts.

SCANNERS: dict[str, Scanner] = {
    scanner.kind: scanner
    for scanner in (
        folder.SCANNER,
        oulu_npu.SCANNER,
        casia_fasd.SCANNER,
        replay_attack.SCANNER,
        msu_mfsd.SCANNER,
        siw.SCANNER,
        rose_youtu.SCANNER,
        masks.HKBU_MARS_V2,
        casia_surf.SCANNER,
        casia_surf.SCANNER_3DMASK,
        masks.HIFIMASK,
        siw.SCANNER_MV2,
        lcc_fasd.SCANNER,
        celeba_spoof.SCANNER,
        cefa.SCANNER,
        masks.THREE_DMAD,
        wmca.SCANNER,
        wmca.HQ_SCANNER,
        precropped.SCANNER,
        fedgpad.SCANNER,
    )
}


class Importer(Protocol):
    """Imports a directory into a prepared set."""

    def __call__(  # noqa: D102
        self, source: Path, destination: Path, options: ImportOptions, *, name: str, progress: Progress
    ) -> ImportReport: ...


KINDS: dict[str, Scanner | Layout] = {**SCANNERS, **LAYOUTS, folders.IDENTITIES.kind: folders.IDENTITIES}
"""All datasets and layouts of this package, by name."""


def all_kinds() -> list[str]:
    """Return the name of every layout that can be imported."""
    return [*KINDS, *extensions.names("datasets", KINDS)]


def describe_kinds(kind: str) -> list[str]:
    """Describe the expected files of each dataset, or of one."""
    if kind in extensions.names("datasets", KINDS):
        return [f"{kind}: an importer of its own; see its documentation"]
    lines = []
    everything: list[Scanner | Layout] = [*SCANNERS.values(), *LAYOUTS.values()]
    for dataset in [dataset_of(kind)] if kind else everything:
        lines += [f"{dataset.kind}: {dataset.title}", *(f"    {line}" for line in dataset.expects.splitlines())]
        lines += [f"    {line}" for line in dataset.whole_copy]
        lines += [f"    {line}" for line in dataset.request]
    others = [name for name in all_kinds() if name not in SCANNERS and name not in LAYOUTS]
    return lines + ([] if kind else [f"also: {', '.join(others)}"])


def dataset_of(kind: str) -> Scanner | Layout:
    """Return the dataset with this name."""
    if kind not in KINDS:
        raise _unknown_kind(kind)
    return KINDS[kind]


def load_dataset(kind: str) -> Scanner | Layout | Importer:
    """Return the dataset with this name; another package may add one, or its importer."""
    dataset: Scanner | Layout | Importer | None = KINDS.get(kind) or extensions.load("datasets", kind)
    if dataset is None:
        raise _unknown_kind(kind)
    if not isinstance(dataset, Scanner | Layout) and not callable(dataset):
        raise UserError(f"entry point fedvisage.datasets: {kind}", "must be a Scanner, a Layout or a function")
    return dataset


def _unknown_kind(kind: str) -> UserError:
    return UserError("KIND", f"unknown dataset {kind!r}{choice_hint(kind, all_kinds())}")


def write_small_copy(kind: str, directory: Path, subjects: int = 0, people: int = 0) -> list[str]:
    """Write a small rendered copy of a dataset; `subjects` and `people` change its size."""
    from fedvisage.datasets.small_copies import write_copy  # needs the renderer

    dataset = dataset_of(kind)
    count = write_copy(dataset, directory, subjects, people)
    return [
        f"{format_count(count, 'file')} in the layout of {dataset.title}: fedvisage data import {kind} {directory} SET"
    ]
