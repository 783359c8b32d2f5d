"""Specifications: what ``fedvisage data synth`` and the ``synth:`` lines of recipes say of a rendered set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from fedvisage.errors import UserError
from fedvisage.faces.synthetic.domain import SPECIES
from fedvisage.faces.synthetic.domains import find_domain

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


@dataclass(frozen=True)
class Synthesis:
    """What to render: a domain, how much of it, and from which seed."""

    domain: str
    size: int = 128
    subjects: int | None = None
    videos: int | None = None
    frames: int = 4
    seed: int = 0
    heldout: float = 0.25
    species: tuple[str, ...] | None = None

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

    def most_of_one(self) -> int:
        """Count the images of one subject."""
        domain = find_domain(self.domain)
        bonafide = self.videos or domain.videos
        return (bonafide + max(1, round(bonafide * domain.ratio))) * self.frames

    @property
    def digest_text(self) -> str:
        """Return one line that names the pixels: the specification with nothing left to defaults, and the version."""
        domain = find_domain(self.domain)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["subjects"] = self.subjects or domain.subjects
        values["videos"] = self.videos or domain.videos
        values["species"] = ",".join(self.species or sorted({attack.species for attack in domain.attacks}))
        return " ".join(f"{name}={value}" for name, value in values.items()) + f" renderer={RENDERER_VERSION}"


def parse_synthesis(line: str) -> Synthesis:
    """Read a line such as ``O subjects=20 frames=2 size=96``."""
    domain, *settings = line.split() or [""]
    readers: dict[str, Callable[[str], object]] = {
        "size": int, "subjects": int, "videos": int, "frames": int, "seed": int, "heldout": float,
        "species": read_species,
    }  # fmt: skip
    return Synthesis(domain, **read_settings(settings, readers))  # type: ignore[arg-type]


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
