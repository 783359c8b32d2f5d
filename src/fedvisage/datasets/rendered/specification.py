"""Specifications: what ``fedvisage data synth`` and the ``synth:`` lines of recipes say of a rendered set."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from fedvisage.errors import UserError
from fedvisage.faces.synthetic.capture import CAMERAS, CAPTURE_VERSION
from fedvisage.faces.synthetic.domain import SPECIES, Attack
from fedvisage.faces.synthetic.domains import find_domain
from fedvisage.faces.synthetic.takes import media_of

RENDERER_VERSION = 1
"""Changes whenever a specification gives other pixels than before."""


MOST_SUBJECTS = 100_000
MOST_OF_ONE = 1_000
"""Videos of a subject, frames of a video, photographs of a person."""
MOST_AT_ONCE = 2 << 30
"""Bytes of one subject's images: they are in memory together, in each process."""
MOST_IMAGES = 2_000_000
"""Images of a set, a row of each in memory: three times as many as the largest dataset of the papers' kind has
(CelebA-Spoof, 625,537), 100 GB on disk at 128 pixels, and weeks of rendering."""


RETAKEN = 2
"""The generation in which both classes pass one simulated capture, whatever the domain."""
_OF_RETAKEN = ("generation", "media", "cameras")
"""Settings that earlier lines did not have; unset, they leave no trace in what names the pixels."""


@dataclass(frozen=True)
class Synthesis:
    """What to render: a domain, how much of it, and from which seed.

    Of the second ``generation`` (and of sets made from photographs) ``media`` and ``cameras`` name which printers,
    panels and cameras are used; all that the domain has unless said.
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
        """Refuse what cannot be rendered."""
        find_domain(self.domain)
        check("size", self.size, self.size % 2 == 0 and 32 <= self.size <= 512, "an even number from 32 to 512")
        for name, most in (("subjects", MOST_SUBJECTS), ("videos", MOST_OF_ONE), ("frames", MOST_OF_ONE)):
            value = getattr(self, name)
            check(name, value, value is None or value >= 1, "at least 1")
            check(name, value, value is None or value <= most, f"at most {most:,}")
        check_images(self.most_of_one(), self.subjects or find_domain(self.domain).subjects, self.size)
        check("heldout", self.heldout, 0 <= self.heldout < 1, "a share from 0 to below 1")
        if self.species is not None:
            chosen = set(self.species)
            offered = {attack.species for attack in find_domain(self.domain).attacks}
            check(
                "species",
                ",".join(self.species),
                bool(chosen) and chosen <= offered,
                f"a selection of what {self.domain} has: {', '.join(sorted(offered))}",
            )
        check("generation", self.generation, self.generation in (1, RETAKEN), f"1 or {RETAKEN}")
        for name, known in (("media", names_of(self.domain)), ("cameras", [word(one.name) for one in CAMERAS])):
            asked = getattr(self, name)
            check(name, ",".join(asked or ()), asked is None or {*asked} <= {*known}, f"a choice of {', '.join(known)}")
        if self.generation == RETAKEN:
            self.retaken_attacks()

    def retaken_attacks(self) -> list[Attack]:
        """Return the attacks that can be made from photographs, of those that are asked for."""
        possible = media_of(find_domain(self.domain))
        attacks = [one for one in possible if self.species is None or one.species in self.species]
        if not attacks:
            raise UserError("synth", f"domain {self.domain} has only masks here, which cannot be made from photographs")
        attacks = [one for one in attacks if self.media is None or medium_of(one) in self.media]
        check("media", ",".join(self.media or ()), bool(attacks), "media of the species that are asked for")
        return attacks

    def most_of_one(self) -> int:
        """Count the images of one subject."""
        domain = find_domain(self.domain)
        bonafide = self.videos or domain.videos
        if self.generation == RETAKEN:
            return bonafide * 2 * attacked(domain.ratio) * self.frames
        return (bonafide + max(1, round(bonafide * domain.ratio))) * self.frames

    @property
    def digest_text(self) -> str:
        """Return one line that names the pixels: the specification with nothing left to defaults, and the version."""
        domain = find_domain(self.domain)
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _OF_RETAKEN}
        values["subjects"] = self.subjects or domain.subjects
        values["videos"] = self.videos or domain.videos
        values["species"] = ",".join(self.species or sorted({attack.species for attack in domain.attacks}))
        words = [*(f"{name}={value}" for name, value in values.items()), f"renderer={RENDERER_VERSION}", *self.further]
        return " ".join(words if self.generation == 1 else [*words, f"capture={CAPTURE_VERSION}"])

    @property
    def further(self) -> list[str]:
        """Return the settings that earlier lines did not have, as a line says them; none where none is set."""
        chosen = [f"{name}={','.join(getattr(self, name))}" for name in _OF_RETAKEN[1:] if getattr(self, name)]
        return chosen if self.generation == 1 else [f"generation={self.generation}", *chosen]


def attacked(ratio: float) -> int:
    """Return how often each photograph is attacked where a domain has so many attacks a bona fide video."""
    return max(1, round(ratio))


def medium_of(attack: Attack) -> str:
    """Return the printer or panel of an attack as a value that a selection can write."""
    return word(attack.instrument.name) if attack.instrument else ""


def names_of(domain: str) -> list[str]:
    """Return the media of a domain that photographs can be presented on, each once."""
    return list(dict.fromkeys(medium_of(attack) for attack in media_of(find_domain(domain))))


def word(name: str) -> str:
    """Return a name as a value that a selection can write: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def parse_synthesis(line: str) -> Synthesis:
    """Read a line such as ``O subjects=20 frames=2 size=96``."""
    domain, *settings = line.split() or [""]
    readers: dict[str, Callable[[str], object]] = {
        "size": int, "subjects": int, "videos": int, "frames": int, "seed": int, "heldout": float,
        "species": read_species, "generation": int, "media": read_names, "cameras": read_names,
    }  # fmt: skip
    return of_rendered_people(Synthesis(domain, **read_settings(settings, readers)))  # type: ignore[arg-type]


def of_rendered_people(spec: Synthesis) -> Synthesis:
    """Refuse to choose media or cameras of the first generation, in which they belong to the domain's sessions."""
    for name in _OF_RETAKEN[1:]:
        wanted = f"left out, or stand beside generation={RETAKEN}"
        check(name, ",".join(getattr(spec, name) or ()), spec.generation != 1 or not getattr(spec, name), wanted)
    return spec


def read_settings(settings: Sequence[str], readers: Mapping[str, Callable[[str], object]]) -> dict[str, object]:
    """Read the ``name=value`` settings of a ``synth:`` line, each known and given once."""
    values: dict[str, object] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in readers:
            raise UserError("synth", f"{setting!r} is no setting; write name=value with one of {', '.join(readers)}")
        if name in values:
            raise UserError(f"synth.{name}", "is given twice")
        try:
            values[name] = readers[name](text)
        except ValueError:
            raise UserError(f"synth.{name}", f"cannot read {text!r} as a number") from None
    return values


def read_species(text: str) -> tuple[str, ...]:
    """Read kinds of attacks, such as ``print,replay``."""
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SPECIES]
    if unknown:
        raise UserError("synth.species", f"no species is called {unknown[0]!r}; there are {', '.join(SPECIES)}")
    return names


def read_names(text: str) -> tuple[str, ...]:
    """Read names of media or cameras, such as ``ipad,iphone-5s``."""
    return tuple(text.split(","))


def check_images(each: int, people: int, size: int) -> None:
    """Refuse more images than memory, disk and patience have room for."""
    if each * size * size * 3 > MOST_AT_ONCE:
        raise UserError("synth", f"{each:,} images of one subject at size {size} are more than the "
                        f"{MOST_AT_ONCE >> 30} GiB that are in memory together; ask for fewer")  # fmt: skip
    if each * people > MOST_IMAGES:
        raise UserError("synth", f"{each * people:,} images are more than the {MOST_IMAGES:,} that a set may have; "
                        "make several sets, with other seeds")  # fmt: skip


def check(name: str, value: object, fine: bool, wanted: str) -> None:
    """Refuse a setting that is not fine."""
    if not fine:
        raise UserError(f"synth.{name}", f"must be {wanted}, got {value}")
