"""Rendered sets: specifications such as ``synth: O subjects=20``, and their rendering into prepared sets.

The unit of work is a subject. Any number of processes film subjects, and one process writes them in order, so the bytes
do not depend on the number of processes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.parallel import Progress, map_in_order
from fedvisage.base.streams import derive, numpy_rng
from fedvisage.data.writer import Writer
from fedvisage.render.capture import CAMERAS, CAPTURE_VERSION
from fedvisage.render.domains import SPECIES, Attack, Domain, find_domain
from fedvisage.render.filming import Frames, Video, media_of, render_videos
from fedvisage.render.people import describe_person

# Specifications, of ``fedvisage data synth`` and of the ``synth:`` lines of recipes.

RENDERER_VERSION = 1
"""Increases whenever a specification gives other pixels than before."""

MOST_SUBJECTS = 100_000
MOST_OF_ONE = 1_000
"""Limit on the videos of a subject, the frames of a video, and the photographs of a person."""
MOST_AT_ONCE = 2 << 30
"""Bytes of one subject's images: each process holds a subject's images in memory together."""
MOST_IMAGES = 2_000_000
"""Images of a set, each with a row in memory. The limit is three times the size of the largest dataset in the papers
(CelebA-Spoof, 625,537): 100 GB on disk at 128 pixels, and weeks of rendering."""

SECOND_GENERATION = 2
"""The generation in which both classes pass the same simulated capture in every domain."""
_SECOND_GENERATION_SETTINGS = ("generation", "media", "cameras")
"""Settings of later versions; at their defaults, they do not change the text that identifies the pixels."""


@dataclass(frozen=True)
class Synthesis:
    """The specification of a rendered set: a domain, the number of subjects, videos and frames, and a seed.

    In the second ``generation`` (and in sets made from photographs), ``media`` and ``cameras`` select printers, panels
    and cameras; by default, all of the domain's.
    """

    domain: str
    size: int = 128
    subjects: int | None = None
    videos: int | None = None
    frames: int = 4
    seed: int = 0
    heldout: float = 0.25
    species: tuple[str, ...] | None = None
    generation: int = 1
    media: tuple[str, ...] | None = None
    cameras: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse impossible specifications."""
        find_domain(self.domain)
        check("size", self.size, self.size % 2 == 0 and 32 <= self.size <= 512, "an even number from 32 to 512")
        for name, most in (("subjects", MOST_SUBJECTS), ("videos", MOST_OF_ONE), ("frames", MOST_OF_ONE)):
            value = getattr(self, name)
            check(name, value, value is None or value >= 1, "at least 1")
            check(name, value, value is None or value <= most, f"at most {most:,}")
        check_images(self.most_of_one(), self.subjects or find_domain(self.domain).subjects, self.size)
        check("heldout", self.heldout, 0 <= self.heldout < 1, "a share in [0, 1)")
        if self.species is not None:
            chosen = set(self.species)
            offered = {attack.species for attack in find_domain(self.domain).attacks}
            check(
                "species",
                ",".join(self.species),
                bool(chosen) and chosen <= offered,
                f"a selection of the species of {self.domain}: {', '.join(sorted(offered))}",
            )
        check("generation", self.generation, self.generation in (1, SECOND_GENERATION), f"1 or {SECOND_GENERATION}")
        for name, offered_names in (
            ("media", names_of(self.domain)),
            ("cameras", [word(camera.name) for camera in CAMERAS]),
        ):
            requested = getattr(self, name)
            check(
                name,
                ",".join(requested or ()),
                requested is None or {*requested} <= {*offered_names},
                f"a choice of {', '.join(offered_names)}",
            )
        if self.generation == SECOND_GENERATION:
            self.retaken_attacks()  # raises if the selection leaves none

    def retaken_attacks(self) -> list[Attack]:
        """Return the requested attacks that can be made from photographs."""
        possible = media_of(find_domain(self.domain))
        attacks = [attack for attack in possible if self.species is None or attack.species in self.species]
        if not attacks:
            raise UserError("synth", f"domain {self.domain} has only masks here, which cannot be made from photographs")
        attacks = [attack for attack in attacks if self.media is None or medium_of(attack) in self.media]
        check("media", ",".join(self.media or ()), bool(attacks), "media of the selected species")
        return attacks

    def most_of_one(self) -> int:
        """Count the images of one subject."""
        domain = find_domain(self.domain)
        bonafide = self.videos or domain.videos
        if self.generation == SECOND_GENERATION:
            return bonafide * 2 * attacks_per_photograph(domain.ratio) * self.frames
        return (bonafide + max(1, round(bonafide * domain.ratio))) * self.frames

    @property
    def digest_text(self) -> str:
        """Return one line that identifies the pixels: the specification without defaults, and the version."""
        domain = find_domain(self.domain)
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _SECOND_GENERATION_SETTINGS
        }
        values["subjects"] = self.subjects or domain.subjects
        values["videos"] = self.videos or domain.videos
        values["species"] = ",".join(self.species or sorted({attack.species for attack in domain.attacks}))
        words = [*(f"{name}={value}" for name, value in values.items()), f"renderer={RENDERER_VERSION}", *self.further]
        return " ".join(words if self.generation == 1 else [*words, f"capture={CAPTURE_VERSION}"])

    @property
    def further(self) -> list[str]:
        """Return the settings of later versions in the syntax of a line; empty if none is set."""
        chosen = [
            f"{name}={','.join(getattr(self, name))}" for name in _SECOND_GENERATION_SETTINGS[1:] if getattr(self, name)
        ]
        return chosen if self.generation == 1 else [f"generation={self.generation}", *chosen]


def attacks_per_photograph(ratio: float) -> int:
    """Return the number of attacks per photograph, for a domain's ratio of attacks to bona fide videos."""
    return max(1, round(ratio))


def medium_of(attack: Attack) -> str:
    """Return the printer or panel of an attack as a value for selections."""
    return word(attack.instrument.name) if attack.instrument else ""


def names_of(domain: str) -> list[str]:
    """Return the domain's media on which photographs can be presented, each once."""
    return list(dict.fromkeys(medium_of(attack) for attack in media_of(find_domain(domain))))


def word(name: str) -> str:
    """Return a name as a value for selections: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def parse_synthesis(line: str) -> Synthesis:
    """Read a line such as ``O subjects=20 frames=2 size=96``."""
    domain, *settings = line.split() or [""]
    readers: dict[str, Callable[[str], object]] = {
        "size": int,
        "subjects": int,
        "videos": int,
        "frames": int,
        "seed": int,
        "heldout": float,
        "species": read_species,
        "generation": int,
        "media": read_names,
        "cameras": read_names,
    }
    return check_selection(Synthesis(domain, **read_settings(settings, readers)))  # type: ignore[arg-type]


def check_selection(spec: Synthesis) -> Synthesis:
    """Refuse a choice of media or cameras in the first generation, where they belong to the domain's sessions."""
    for name in _SECOND_GENERATION_SETTINGS[1:]:
        expected = f"left out, or combined with generation={SECOND_GENERATION}"
        check(name, ",".join(getattr(spec, name) or ()), spec.generation != 1 or not getattr(spec, name), expected)
    return spec


def read_settings(settings: Sequence[str], readers: Mapping[str, Callable[[str], object]]) -> dict[str, object]:
    """Read the ``name=value`` settings of a ``synth:`` line; unknown and repeated settings are refused."""
    values: dict[str, object] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in readers:
            raise UserError("synth", f"{setting!r} is not a setting; write name=value with one of {', '.join(readers)}")
        if name in values:
            raise UserError(f"synth.{name}", "is set twice")
        try:
            values[name] = readers[name](text)
        except ValueError:
            raise UserError(f"synth.{name}", f"cannot read {text!r} as a number") from None
    return values


def read_species(text: str) -> tuple[str, ...]:
    """Read species of attacks, such as ``print,replay``."""
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SPECIES]
    if unknown:
        raise UserError("synth.species", f"unknown species {unknown[0]!r}; choose from {', '.join(SPECIES)}")
    return names


def read_names(text: str) -> tuple[str, ...]:
    """Read names of media or cameras, such as ``ipad,iphone-5s``."""
    return tuple(text.split(","))


def check_images(each: int, people: int, size: int) -> None:
    """Refuse more images than memory, disk and time allow."""
    if each * size * size * 3 > MOST_AT_ONCE:
        raise UserError(
            "synth",
            f"{each:,} images of one subject at size {size} are more than the "
            f"{MOST_AT_ONCE >> 30} GiB that fit in memory at once; choose fewer",
        )
    if each * people > MOST_IMAGES:
        raise UserError(
            "synth",
            f"{each * people:,} images are more than the {MOST_IMAGES:,} allowed per set; "
            "make several sets with different seeds",
        )


def check(name: str, value: object, fine: bool, wanted: str) -> None:
    """Raise UserError for an invalid setting."""
    if not fine:
        raise UserError(f"synth.{name}", f"must be {wanted}, got {value}")


BATCH = 16
"""Images that are rendered together; larger batches only cost memory traffic."""


def synthesise(spec: Synthesis, destination: Path, *, workers: int = 1, progress: Progress | None = None) -> None:
    """Render the set of a specification into a prepared set at the destination."""
    plan = plan_videos(spec)
    total, done = sum(video.frames for videos in plan for video in videos), 0
    heldout = heldout_subjects(spec, [videos[0].subject for videos in plan])
    work = partial(film_subject, domain=find_domain(spec.domain), size=spec.size)
    with (
        Writer(
            destination,
            name=spec.domain,
            size=spec.size,
            source=f"synthetic {spec.digest_text}",
            depth=True,
            points=True,
            further=("tone", "age"),
        ) as out,
        closing(map_in_order(work, plan, workers)) as films,
    ):
        for videos, filmed in zip(plan, films, strict=True):
            split = "heldout" if videos[0].subject in heldout else "train"
            rows = [(video, frame) for video in videos for frame in range(video.frames)]
            appearance = describe_person(videos[0].person)
            out.add(
                filmed.images,
                label=[int(video.attack is None) for video, _ in rows],
                species=[video.species for video, _ in rows],
                subject=[video.subject for video, _ in rows],
                video=[video.name for video, _ in rows],
                frame=[frame for _, frame in rows],
                split=[split] * len(rows),
                item=[f"{video.subject}/{video.name}/{frame:03d}" for video, frame in rows],
                depth=filmed.depth,
                points=filmed.points,
                further={name: [text] * len(rows) for name, text in appearance.items()},
            )
            done += len(filmed.images)
            if progress:
                progress(done, total)


def plan_videos(spec: Synthesis) -> list[list[Video]]:
    """Return every subject's videos: bona fide ones, then attacks, cycling through the domain's instruments."""
    domain = find_domain(spec.domain)
    attacks = [attack for attack in domain.attacks if spec.species is None or attack.species in spec.species]
    bonafide = spec.videos or domain.videos
    attacked = max(1, round(bonafide * domain.ratio))
    plan = []
    for number in range(spec.subjects or domain.subjects):
        subject = f"{domain.name}-{number + 1:04d}"
        person = derive(spec.seed, "person", domain.name, number)
        kinds: list[Attack | None] = [None] * bonafide
        kinds += [attacks[(number * attacked + turn) % len(attacks)] for turn in range(attacked)]
        videos = []
        for turn, attack in enumerate(kinds):
            name = f"{subject}-{turn + 1:02d}-{attack.species if attack else 'bonafide'}"
            seed = derive(spec.seed, "video", domain.name, number, turn)
            cameras = (attack and domain.attack_cameras) or domain.cameras
            camera = cameras[derive(seed, "which camera") % len(cameras)]
            videos.append(Video(name, subject, person, seed, spec.frames, camera, attack))
        plan.append(videos)
    return plan


def heldout_subjects(spec: Synthesis, subjects: Sequence[str]) -> set[str]:
    """Return the subjects for evaluation: a share drawn by the seed, never all."""
    count = min(round(spec.heldout * len(subjects)), len(subjects) - 1)
    if spec.heldout > 0 and len(subjects) > 1:
        count = max(count, 1)
    order = numpy_rng(spec.seed, "heldout", spec.domain).permutation(len(subjects))
    return {subjects[index] for index in order[:count]}


def film_subject(videos: Sequence[Video], domain: Domain, size: int) -> Frames:
    """Film all videos of one subject, batched by species, and return their frames in the order of the videos."""
    filmed: dict[str, Frames] = {}
    for species in dict.fromkeys(video.species for video in videos):
        same = [video for video in videos if video.species == species]
        step = max(1, BATCH // same[0].frames)
        for start in range(0, len(same), step):
            batch = same[start : start + step]
            filmed |= zip((video.name for video in batch), render_videos(batch, domain, size).split(batch), strict=True)
    return Frames.join([filmed[video.name] for video in videos])
