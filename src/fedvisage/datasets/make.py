"""What the ``fedvisage data`` commands do; each returns what it has to say in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedvisage import extensions
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.importers.cropping import Crop
from fedvisage.datasets.importers.folder import Progress, import_folder
from fedvisage.datasets.importers.identities import import_identities
from fedvisage.datasets.importers.report import ImportReport
from fedvisage.datasets.show import contact_sheet, describe
from fedvisage.datasets.sources import in_steps
from fedvisage.errors import UserError
from fedvisage.progress import Say, counted


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
    say: Say,
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
) -> list[str]:
    """Render a set, or simulate attacks on a folder of photos."""
    # Here, because importing and showing sets need no renderer.
    from fedvisage.datasets.rendered.folder import synthesise_from
    from fedvisage.datasets.rendered.sets import synthesise
    from fedvisage.datasets.rendered.specification import Synthesis, read_species

    spec = Synthesis(domain, size=size, subjects=subjects, videos=videos, frames=frames, seed=seed, heldout=heldout,
                     species=read_species(species) if species else None)  # fmt: skip
    progress = in_steps(f"rendering {domain}", say)
    lines: list[str] = []
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
            reading=in_steps(f"reading {photos.name}", say),
            progress=progress,
        )
        lines = report.lines()
    return [*lines, *show_set(destination)]


def synthesise_people(
    destination: Path,
    say: Say,
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
) -> list[str]:
    """Render an identity set."""
    from fedvisage.datasets.rendered.identities import Identities, render_identities

    spec = Identities(identities, images, size, first, seed, test, heldout, group)
    render_identities(spec, destination, workers=workers, progress=in_steps("rendering people", say))
    return show_set(destination)


def import_dataset(
    kind: str,
    source: Path,
    destination: Path,
    say: Say,
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
) -> list[str]:
    """Import a dataset; return what was imported and what was skipped."""
    importer: Importer | None = KINDS.get(kind) or extensions.load("datasets", kind)
    if importer is None:
        known = ", ".join([*KINDS, *extensions.names("datasets")])
        raise UserError("KIND", f"{kind!r} is no known layout; choose one of {known}")
    report = importer(
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
        progress=in_steps(f"importing {source.name}", say),
    )
    return report.lines()


def show_set(directory: Path, *, sheet: Path | None = None, verify: bool = False) -> list[str]:
    """Return what a set holds, line by line, and write a contact sheet when asked to."""
    if sheet is not None:
        _check_sheet(sheet)
    prepared = PreparedSet.open(directory, verify=verify)
    lines = [
        f"{prepared.name}: {counted(len(prepared), 'image')} of {prepared.size}×{prepared.size}, {prepared.source}",
        *([f"crops: {prepared.crop}"] if prepared.crop is not None else []),
        *describe(prepared),
    ]
    if sheet is not None:
        contact_sheet(prepared).save(sheet)
        lines.append(f"contact sheet: {sheet}")
    return lines


def _check_sheet(sheet: Path) -> None:
    """Refuse what cannot be written, before a large set is read."""
    if sheet.suffix.lower() != ".png":
        raise UserError("--sheet", f"{str(sheet)!r} must end in .png")
    if sheet.is_dir() or not sheet.parent.is_dir():
        raise UserError("--sheet", f"{str(sheet)!r} cannot be written; give a file name in a directory that exists")
