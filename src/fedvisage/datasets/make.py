"""What the ``fedvisage data`` commands do, with what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rich.console import Console

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.importers.cropping import Crop
from fedvisage.datasets.importers.folder import Progress, import_folder
from fedvisage.datasets.importers.identities import import_identities
from fedvisage.datasets.importers.report import ImportReport
from fedvisage.datasets.show import contact_sheet, describe
from fedvisage.datasets.sources import in_steps
from fedvisage.errors import UserError


class Importer(Protocol):
    """Imports a directory into a prepared set; what does not apply to its layout an importer ignores."""

    def __call__(  # noqa: D102
        self, source: Path, destination: Path, *, name: str, size: int, frames: int, crop: Crop, depth: str,
        heldout: float, test: float, least: int, max_bad: float, seed: int, progress: Progress,
    ) -> ImportReport: ...  # fmt: skip


KINDS: dict[str, Importer] = {
    "folder": import_folder,
    "identities": import_identities,
}
"""The importer of each layout."""


def synthesise_set(
    destination: Path,
    console: Console,
    *,
    domain: str,
    size: int,
    subjects: int | None,
    videos: int | None,
    frames: int,
    seed: int,
    heldout: float,
    species: str,
    photos: Path | None,
    crop: str,
    max_bad: float,
    workers: int,
) -> None:
    """Render a set, or simulate attacks on a folder of photos."""
    # Here, because importing and showing sets need no renderer.
    from fedvisage.datasets.rendered.folder import synthesise_from
    from fedvisage.datasets.rendered.sets import synthesise
    from fedvisage.datasets.rendered.specification import Synthesis, read_species

    spec = Synthesis(domain, size=size, subjects=subjects, videos=videos, frames=frames, seed=seed, heldout=heldout,
                     species=read_species(species) if species else None)  # fmt: skip
    progress = _steps(f"rendering {domain}", console)
    if photos is None:
        synthesise(spec, destination, workers=workers, progress=progress)
    else:
        report = synthesise_from(
            photos,
            spec,
            destination,
            crop=crop,  # type: ignore[arg-type]  # the cropper refuses other words itself
            max_bad=max_bad,
            workers=workers,
            reading=_steps(f"reading {photos.name}", console),
            progress=progress,
        )
        _print(console, *report.lines())
    show_set(destination, console, sheet=None, verify=False)


def synthesise_people(
    destination: Path,
    console: Console,
    *,
    identities: int,
    images: int,
    size: int,
    first: int,
    seed: int,
    test: float,
    heldout: float,
    group: int | None,
    workers: int,
) -> None:
    """Render an identity set."""
    from fedvisage.datasets.rendered.identities import Identities, render_identities

    spec = Identities(identities, images, size, first, seed, test, heldout, group)
    render_identities(spec, destination, workers=workers, progress=_steps("rendering people", console))
    show_set(destination, console, sheet=None, verify=False)


def import_dataset(
    kind: str,
    source: Path,
    destination: Path,
    console: Console,
    *,
    name: str,
    size: int,
    frames: int,
    crop: str,
    depth: str,
    heldout: float,
    test: float,
    least: int,
    max_bad: float,
    seed: int,
) -> None:
    """Import a dataset and print what was imported and what was skipped."""
    if kind not in KINDS:
        raise UserError("KIND", f"{kind!r} is no known layout; choose one of {', '.join(KINDS)}")
    report = KINDS[kind](
        source,
        destination,
        name=name or source.resolve().name,
        size=size,
        frames=frames,
        heldout=heldout,
        test=test,
        least=least,
        seed=seed,
        crop=crop,  # type: ignore[arg-type]  # the importer refuses other words itself
        depth=depth,
        max_bad=max_bad,
        progress=_steps(f"importing {source.name}", console),
    )
    _print(console, *report.lines())


def show_set(directory: Path, console: Console, *, sheet: Path | None, verify: bool) -> None:
    """Print what a set holds, and write a contact sheet when asked to."""
    if sheet is not None:
        _check_sheet(sheet)
    found = PreparedSet.open(directory, verify=verify)
    _print(console, f"{found.name}: {len(found)} images of {found.size}×{found.size}, {found.source}", *describe(found))
    if sheet is not None:
        contact_sheet(found).save(sheet)
        _print(console, f"contact sheet: {sheet}")


def _check_sheet(sheet: Path) -> None:
    """Refuse what cannot be written, before a large set is read."""
    if sheet.suffix.lower() != ".png":
        raise UserError("--sheet", f"{str(sheet)!r} must end in .png")
    if sheet.is_dir() or not sheet.parent.is_dir():
        raise UserError("--sheet", f"{str(sheet)!r} cannot be written; give a file name in a directory that exists")


def _steps(what: str, console: Console) -> Progress:
    return in_steps(what, lambda text: _print(console, text))


def _print(console: Console, *lines: str) -> None:
    """Print lines as they are: names in square brackets are names, and long lines are not cut."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
