"""The second generation of rendered sets: portraits of rendered people, taken again as photographs are.

A line ``synth: O generation=2`` has the people, light and media of a domain, and the capture of ``data synth --from``:
both classes pass the same simulated cameras, so that what a camera does says nothing about the class. The first
generation stays as it is. ``media=`` and ``cameras=`` make a set with some of them alone, to be judged by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedvisage.data.prepared import Writer
from fedvisage.datasets.importers.portraits import Photograph, Portrait
from fedvisage.datasets.rendered.folder import plan_pictures, write_pictures
from fedvisage.datasets.rendered.sets import film_subject, heldout_subjects, synthesise
from fedvisage.datasets.rendered.specification import RETAKEN, Synthesis
from fedvisage.faces.synthetic.domains import GOOD_PHOTOGRAPHER, find_domain
from fedvisage.faces.synthetic.filming import Video
from fedvisage.faces.synthetic.takes import as_photographed
from fedvisage.streams import derive
from fedvisage.workers.spread import Progress, spread


def render_set(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set that a specification names, of either generation."""
    (retake if spec.generation == RETAKEN else synthesise)(spec, destination, workers=workers, progress=progress)


def retake(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render portraits of a domain's people, and write what one capture makes of them and of attacks on them."""
    attacks, sittings = spec.retaken_attacks(), plan_portraits(spec)
    work = partial(portraits_of, domain=spec.domain, size=spec.size)
    with closing(spread(work, sittings, workers)) as taken:
        portraits = [portrait for one in taken for portrait in one]
    subjects = [videos[0].subject for videos in sittings]
    with Writer(
        destination, name=spec.domain, size=spec.size, source=f"synthetic {spec.digest_text}", depth=True, points=True,
        further=("camera", "medium"),
    ) as out:  # fmt: skip
        pictures = plan_pictures(portraits, attacks, spec)
        write_pictures(out, pictures, heldout_subjects(spec, subjects), workers, progress)


def plan_portraits(spec: Synthesis) -> list[list[Video]]:
    """Return the sittings of each subject, a frame each, before a good camera; people are the first generation's."""
    domain = find_domain(spec.domain)
    return [
        [
            Video(
                f"{domain.name}-{number + 1:04d}/{turn + 1:02d}",
                f"{domain.name}-{number + 1:04d}",
                derive(spec.seed, "person", domain.name, number),
                derive(spec.seed, "portrait", domain.name, number, turn),
                1,
                GOOD_PHOTOGRAPHER,
            )
            for turn in range(spec.videos or domain.videos)
        ]
        for number in range(spec.subjects or domain.subjects)
    ]


def portraits_of(videos: Sequence[Video], domain: str, size: int) -> list[Portrait]:
    """Render the sittings of one subject, with points and depth as they are, as soft as photographs of faces are."""
    filmed = film_subject(videos, find_domain(domain), size)
    rendered = torch.from_numpy(filmed.images).permute(0, 3, 1, 2).float()
    soft = as_photographed(rendered / 255, [video.seed for video in videos]) * 255
    images = np.ascontiguousarray(soft.round().byte().permute(0, 2, 3, 1).numpy())
    rows = zip(videos, images, filmed.points, filmed.depth, strict=True)
    return [
        Portrait(Photograph(Path(video.name), video.name), video.name, image, points, depth)
        for video, image, points, depth in rows
    ]
