"""What the ``fedvisage data`` commands do, with what they print."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.show import contact_sheet, describe
from fedvisage.data.sources import in_steps
from fedvisage.errors import UserError

KINDS = ("folder",)


def synthesise_set(
    destination: Path,
    console: Console,
    *,
    domain: str,
    size: int,
    subjects: int | None,
    frames: int,
    seed: int,
    photos: Path | None,
    workers: int,
) -> None:
    """Render a set, or simulate attacks on a folder of photos."""
    from fedvisage.faces.synthetic.folder import synthesise_from
    from fedvisage.faces.synthetic.sets import Synthesis, synthesise

    spec = Synthesis(domain, size=size, subjects=subjects, frames=frames, seed=seed)
    progress = in_steps(f"rendering {domain}", lambda text: console.print(text, markup=False))
    if photos is None:
        synthesise(spec, destination, workers=workers, progress=progress)
    else:
        synthesise_from(photos, spec, destination, workers=workers, progress=progress)
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
    heldout: float,
    max_bad: float,
    seed: int,
) -> None:
    """Import a dataset and print what was imported and what was skipped."""
    from fedvisage.data.importers.folder import import_folder

    if kind not in KINDS:
        raise UserError("KIND", f"{kind!r} is no known layout; choose one of {', '.join(KINDS)}")
    report = import_folder(
        source,
        destination,
        name=name or source.resolve().name,
        size=size,
        frames=frames,
        heldout=heldout,
        seed=seed,
        crop=crop,  # type: ignore[arg-type]  # the importer refuses other words itself
        max_bad=max_bad,
        progress=in_steps(f"importing {source.name}", lambda text: console.print(text, markup=False)),
    )
    console.print("\n".join(report.lines()), markup=False, soft_wrap=True)


def show_set(directory: Path, console: Console, *, sheet: Path | None, verify: bool) -> None:
    """Print what a set holds, and write a contact sheet when asked to."""
    found = PreparedSet.open(directory, verify=verify)
    console.print(f"{found.name}: {len(found)} images of {found.size}×{found.size}, {found.source}", soft_wrap=True)
    for line in describe(found):
        console.print(line, markup=False, soft_wrap=True)
    if sheet is not None:
        contact_sheet(found).save(sheet)
        console.print(f"contact sheet: {sheet}", markup=False, soft_wrap=True)
