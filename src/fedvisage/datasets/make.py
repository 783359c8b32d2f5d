"""Rendered sets: what ``fedvisage data synth`` makes, and what it says in the end."""

from __future__ import annotations

from pathlib import Path

from fedvisage.datasets.importing import check_apart, warnings_of_import
from fedvisage.datasets.rendered import ON_REAL_PRINTS
from fedvisage.datasets.show import show_set
from fedvisage.progress import Say, in_steps


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
    generation: int = 1,
    media: str = "",
    cameras: str = "",
    photos: Path | None,
    crop: str,
    max_bad: float,
    workers: int,
) -> list[str]:
    """Render a set, or simulate attacks on a folder of photos."""
    # Here, because importing and showing sets need no renderer.
    from fedvisage.datasets.rendered.folder import synthesise_from
    from fedvisage.datasets.rendered.retaken import render_set
    from fedvisage.datasets.rendered.specification import Synthesis, of_rendered_people, read_names, read_species

    spec = Synthesis(domain, size=size, subjects=subjects, videos=videos, frames=frames, seed=seed, heldout=heldout,
                     species=read_species(species) if species else None,
                     generation=generation if photos is None else 1,
                     media=read_names(media) if media else None,
                     cameras=read_names(cameras) if cameras else None)  # fmt: skip
    if photos is None:
        with in_steps(f"rendering {domain}", say) as progress:
            render_set(of_rendered_people(spec), destination, workers=workers, progress=progress)
        return show_set(destination)
    check_apart(photos, destination)
    with in_steps(f"reading {photos.name}", say) as reading, in_steps(f"rendering {domain}", say) as progress:
        report = synthesise_from(
            photos,
            spec,
            destination,
            crop=crop,  # type: ignore[arg-type]  # the cropper refuses other words itself
            max_bad=max_bad,
            workers=workers,
            reading=reading,
            progress=progress,
        )
    warnings = warnings_of_import(destination, report)
    return [*report.lines(), *warnings, *show_set(destination), f"warning: {ON_REAL_PRINTS}"]


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
    with in_steps("rendering people", say) as progress:
        render_identities(spec, destination, workers=workers, progress=progress)
    return show_set(destination)
