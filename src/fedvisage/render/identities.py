"""Rendered people for face recognition: many photographs of each person, aligned by five points, as an identity set.

Photographs of a person differ in pose, expression, light, background, glasses, camera and age: the traits that depend
on age move a few years up or down. Shape, colours and marks of the person are constant. People come from four groups
(``people.GROUPS``) in turn, which represent populations of different appearance.

Person number n is the same person in every set of a seed: sets with disjoint ranges of numbers have no person in
common.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.streams import derive, numpy_rng
from fedvisage.data.writer import Writer
from fedvisage.faces.align import align
from fedvisage.render.camera import draw_shots, expose
from fedvisage.render.domains import AUXILIARY
from fedvisage.render.people import (
    GROUPS,
    TRAITS,
    LightRange,
    PersonBatch,
    describe_person,
    draw_conditions,
    draw_people,
)
from fedvisage.render.scene import render
from fedvisage.render.sets import BATCH, MOST_OF_ONE, MOST_SUBJECTS, check, check_images, read_settings

NAME = "people"
IDENTITIES_VERSION = 1
"""Increases whenever a specification gives other pixels than before."""

LIGHT = LightRange(
    key_strength=(0.3, 1.3), ambient_strength=(0.15, 0.6), azimuth=1.4, softness=(0.1, 1.0), key_kelvin=(3200.0, 7500.0)
)
YAW, PITCH, ROLL = 0.5, 0.25, 0.25
YEARS = 0.35
"""Standard deviation of age between photographs of a person; people's own ages span 2.6 of this unit."""
DETECTOR = 0.012
"""Standard deviation of detected points from the true ones, in widths of the picture."""
WIDER = 1.3
"""Side of the rendered picture in sides of the aligned crop: its pixels are about as large as the crop's."""


@dataclass(frozen=True)
class Identities:
    """The specification of a set: number of people, photographs per person, first person, and splits."""

    identities: int = 40
    images: int = 20
    size: int = 112
    first: int = 0
    seed: int = 0
    test: float = 0.4
    heldout: float = 0.0
    group: int | None = None

    def __post_init__(self) -> None:
        """Refuse impossible specifications."""
        check("size", self.size, 32 <= self.size <= 384 and self.size % 2 == 0, "an even number from 32 to 384")
        for name, most in (("identities", MOST_SUBJECTS), ("images", MOST_OF_ONE)):
            check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
            check(name, getattr(self, name), getattr(self, name) <= most, f"at most {most:,}")
        check_images(self.images, self.identities, self.size)
        for name in ("first", "seed"):
            check(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in ("test", "heldout"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < 1, "a share in [0, 1)")
        check("group", self.group, self.group is None or 0 <= self.group < len(GROUPS), "0, 1, 2 or 3")

    @property
    def digest_text(self) -> str:
        """Return one line that identifies the pixels."""
        values = " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return f"{NAME} {values} identities-renderer={IDENTITIES_VERSION}"

    @property
    def trained_on(self) -> int:
        """Count the identities that are not held out."""
        return self.identities - len(_heldout(self))


class PlannedPhotograph(NamedTuple):
    """One photograph to take: the person, their group, the age relative to their own, and the seed of all else."""

    person: int
    group: int
    years: float
    seed: int


def parse_identities(settings: Sequence[str]) -> Identities:
    """Read the settings of a line such as ``people identities=20 images=12 size=64``."""
    readers: dict[str, Callable[[str], object]] = {
        field.name: float if field.name in ("test", "heldout") else int for field in fields(Identities)
    }
    return Identities(**read_settings(settings, readers))  # type: ignore[arg-type]


def render_identities(
    spec: Identities, destination: Path, *, workers: int = 1, progress: Progress | None = None
) -> None:
    """Render the set that the specification names into an identity set at the destination."""
    numbers = range(spec.first, spec.first + spec.identities)
    heldout = _heldout(spec)
    albums = map_in_order(
        partial(photograph_person, size=spec.size), [photographs_of(spec, n) for n in numbers], workers
    )
    source, further = f"synthetic {spec.digest_text}", ("tone", "age")
    out = Writer(destination, name=NAME, size=spec.size, source=source, points=True, identities=True, further=further)
    with out, closing(albums):
        for done, (number, (images, points)) in enumerate(zip(numbers, albums, strict=True)):
            name, group = f"person-{number:06d}", f"group-{_group(spec, number)}"
            splits = ["heldout"] * spec.images if number in heldout else _splits(spec)
            names = [f"{name}/{turn:03d}" for turn in range(spec.images)]
            appearance = describe_person(derive(spec.seed, "identity", number), _group(spec, number))
            out.add(
                images,
                points=points,
                item=names,
                video=names,
                split=splits,
                subject=[name] * len(names),
                label=[1] * len(names),
                species=["bonafide"] * len(names),
                frame=[0] * len(names),
                group=[group] * len(names),
                further={column: [text] * len(names) for column, text in appearance.items()},
            )
            if progress:
                progress(done + 1, spec.identities)


def photographs_of(spec: Identities, number: int) -> list[PlannedPhotograph]:
    """List the photographs of one person."""
    person, group = derive(spec.seed, "identity", number), _group(spec, number)
    seeds = [derive(person, "photograph", turn) for turn in range(spec.images)]
    return [
        PlannedPhotograph(person, group, YEARS * numpy_rng(seed, "years").standard_normal(), seed) for seed in seeds
    ]


def photograph_person(shots: Sequence[PlannedPhotograph], size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Render and align photographs; return the crops and the five points in them."""
    wide, crops = 2 * round(WIDER * size / 2), []
    for start in range(0, len(shots), BATCH):
        batch = shots[start : start + BATCH]
        seeds = [shot.seed for shot in batch]
        people = draw_people([shot.person for shot in batch], [shot.group for shot in batch])
        conditions = draw_conditions(seeds, yaw_max=YAW, pitch_max=PITCH, roll_max=ROLL, light=LIGHT, expression=1.2)
        scene = render(change_age(people, [shot.years for shot in batch]), conditions, wide)
        cameras = [AUXILIARY.cameras[derive(seed, "which camera") % len(AUXILIARY.cameras)] for seed in seeds]
        taken = expose(scene.radiance, draw_shots(cameras, seeds), seeds)
        # The points have the error of a detector.
        for image, exact, seed in zip(taken, scene.points.double().numpy(), seeds, strict=True):
            noise = numpy_rng(seed, "detector").normal(0.0, DETECTOR * wide, exact.shape)
            crops.append(align(image, exact + noise, size))
    images, points = zip(*crops, strict=True)
    return np.stack(images), np.stack(points).astype(np.float32)


def change_age(people: PersonBatch, years: Sequence[float]) -> PersonBatch:
    """Return people some years older or younger: every trait that depends on age moves, within its limits."""
    columns = [
        (people[name][:, 0] + trait.old * torch.tensor(years, dtype=torch.float32)).clamp(trait.low, trait.high)
        for name, trait in TRAITS.items()
    ]
    return PersonBatch(torch.stack(columns, dim=1), people.seeds)


def _group(spec: Identities, number: int) -> int:
    return number % len(GROUPS) if spec.group is None else spec.group


def _splits(spec: Identities) -> list[str]:
    """Return the split of each photograph: the last ones are test images, because photographs are exchangeable.

    At least one photograph is left for training.
    """
    tested = min(round(spec.test * spec.images), spec.images - 1)
    return ["train"] * (spec.images - tested) + ["test"] * tested


def _heldout(spec: Identities) -> set[int]:
    """Return the numbers of the held-out people: the last ones, never all."""
    count = min(round(spec.heldout * spec.identities), spec.identities - 1)
    return set(range(spec.first + spec.identities - count, spec.first + spec.identities))
