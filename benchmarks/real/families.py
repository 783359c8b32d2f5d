"""The sites of the protocol (decision 0045): families, files, splits, and sets with plain and matched resolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.real.author import Author, open_recogniser
from benchmarks.real.sites import (
    MOST,
    SITES,
    SIZE,
    WITH_AUTHOR,
    Cut,
    Located,
    add_picture,
    choose_pictures,
    drop_copies,
    locate_face,
    pictures_in,
)
from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest, read_json, write_json
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.datasets.depth_maps import flat_map
from fedvisage.faces.cropping import CroppedPicture, Image, crop_face, record_of
from fedvisage.faces.detection import Detector, DetectorSettings, Face
from fedvisage.faces.pictures import equidistant
from fedvisage.render.depth import canonical_depth

TUTORIAL = "tutorial"
TIGHT = Cut(1.0)
KINDS = PLAIN, MATCHED, WITH_DEPTH = "plain", "matched", "depth"
DEPTH_SIZE = 96
"""Side of the crops with depth maps: FedGPAD's networks halve an image five times."""


@dataclass(frozen=True)
class Source:
    """The family of a site, and its folders: a repository and the folders of genuine pictures and of attacks."""

    family: str
    repositories: tuple[str, ...]
    real: str
    fake: str
    species: str


SOURCES: Mapping[str, Source] = {
    site: Source(TUTORIAL, repositories, "dataset/real", "dataset/fake", "replay")
    for site, repositories in SITES.items()
} | {
    "yildirimege": Source(
        "square", ("yildirimege+LivenessDataset",), "Dataset/real", "Dataset/fake", "print-or-screen"
    ),
    "imironica": Source("webcam-print", ("imironica+liveness",), "db/ClientRaw", "db/ImposterRaw", "print"),
    "ahforoughi": Source("webcam-phone", ("ahforoughi+face-anti-spoofing",), "data/real", "data/fake", "replay"),
}

FACES = Path(__file__).parent / "records" / "sets" / "faces.json"
"""The chosen pictures by site and class: start of the file's SHA-256, quarter turns, and box in the turned picture; of
genuine faces the five points follow, to which depth maps are fitted."""
NO_POINTS = np.zeros((5, 2))

TRAIN, HELD_OUT = 0.6, 1 / 3
"""Shares of a class in natural order: the first pictures train, the last are held out, those between are a gap."""

SAME_BITS = 4
"""Two pictures whose difference hashes of 64 bits differ in at most this many bits count as near copies."""


def unique_files(directory: Path, sources: Mapping[str, Source] = SOURCES) -> dict[str, dict[int, list[Path]]]:
    """Return the files of each site and class in natural order; copies stay at the first site, contradictions go."""
    places = (
        (site, label, path)
        for site, source in sources.items()
        for repository in source.repositories
        for label, folder in ((1, source.real), (0, source.fake))
        for path in pictures_in(directory / repository / folder)
    )
    return drop_copies(places, sources)


def missing_folders(directory: Path, sources: Mapping[str, Source] = SOURCES) -> list[str]:
    """Return the folders of pictures that a directory lacks."""
    return [
        f"{repository}/{folder}"
        for source in sources.values()
        for repository in source.repositories
        for folder in (source.real, source.fake)
        if not (directory / repository / folder).is_dir()
    ]


# Splits and resolutions.


def split_of(number: int, count: int) -> str:
    """Return the split of a picture of a class: train, heldout, or test for the gap, which only targets use."""
    if number < TRAIN * count:
        return "train"
    return "heldout" if number >= count - HELD_OUT * count else "test"


def side_of(face: Face) -> float:
    """Return the longer side of a face's box in pixels."""
    return float(face.box[2:].max())


def matched_sides(genuine: Sequence[float], attacks: Sequence[float]) -> NDArray[np.float64]:
    """Return the side to which each genuine face is reduced: that of the attack of equal rank, if it is smaller."""
    sides = np.asarray(genuine, np.float64)
    ranks = np.argsort(np.argsort(sides, kind="stable"), kind="stable")
    return np.minimum(sides, np.quantile(attacks, ranks / max(1, len(sides) - 1)))


def reduce_face(image: Image, face: Face, side: float) -> tuple[Image, Face]:
    """Return a picture and its face, reduced until the face has this side."""
    scale = side / side_of(face)
    if scale >= 1:
        return image, face
    width, height = (max(1, round(length * scale)) for length in image.shape[1::-1])
    small = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    return small, Face(face.box * scale, face.points * scale, face.confidence)


# Sets.


def prepare_sites(directory: Path, out: Path) -> None:
    """Write the sets OUT/plain/SITE, OUT/matched/SITE and OUT/depth/SITE that are missing."""
    missing = [site for site in SOURCES if not all((out / kind / site).exists() for kind in KINDS)]
    for site, faces in locate_faces(directory, missing, out.parent / "starts"):
        write_sets(site, SOURCES[site].species, faces, out)


def locate_faces(
    directory: Path, sites: Sequence[str], starts: Path, table: Path = FACES
) -> Iterator[tuple[str, dict[int, list[Located]]]]:
    """Yield sites with their chosen pictures by class; converted networks stay in ``starts``.

    The table has the boxes of known sites, so that all processors cut the same crops; other sites are added to it.
    """
    if not sites:
        return
    files = unique_files(directory)
    known: dict[str, dict[str, list[str]]] = read_json(table) if table.exists() else {}
    author: Author | None = None
    for site in sites:
        names = {path: file_digest(path)[:16] for paths in files[site].values() for path in paths}
        if site not in known:
            detector = Detector(settings=DetectorSettings(smallest=40))
            if site in WITH_AUTHOR and author is None:
                shown = choose_pictures({1: files["tutorial"][1]}, detector)
                author = Author(
                    open_recogniser(directory, starts), [(picture.image, picture.face) for picture in shown]
                )
            dropped = author if site in WITH_AUTHOR else None
            known[site] = {
                str(label): [
                    line_of(names[found.path], found, with_points=bool(label))
                    for found in choose_faces(paths, detector, dropped)
                ]
                for label, paths in files[site].items()
            }
            table.parent.mkdir(parents=True, exist_ok=True)
            write_json(table, known)
        paths_by_name = {name: path for path, name in names.items()}
        entries = {int(label): [line.split() for line in lines] for label, lines in known[site].items()}
        if lost := [name for lines in entries.values() for name, *_ in lines if name not in paths_by_name]:
            raise UserError(str(directory), f"lacks {len(lost)} pictures of {site}; the recorded runs need them")
        yield (
            site,
            {
                label: [Located(paths_by_name[name], int(turns), read_face(numbers)) for name, turns, *numbers in lines]
                for label, lines in entries.items()
            },
        )


def line_of(name: str, found: Located, *, with_points: bool) -> str:
    """Return a picture's line of the table."""
    numbers = [*found.face.box, *(found.face.points.ravel() if with_points else ())]
    return " ".join([name, str(found.turns), *(f"{value:.2f}" for value in numbers)])


def read_face(numbers: Sequence[str]) -> Face:
    """Return the face that a line of the table describes."""
    box, points = np.array(numbers[:4], float), np.array(numbers[4:], float)
    return Face(box, points.reshape(5, 2) if len(points) else NO_POINTS)


def choose_faces(paths: Sequence[Path], detector: Detector, dropped: Author | None) -> list[Located]:
    """Return at most `MOST` pictures of a class at equal distances, among twice as many that are read."""
    read = [paths[place] for place in sorted(equidistant(len(paths), 2 * MOST))]
    faces = [located for path in read if (located := locate_face(path, detector))]
    if dropped is not None:
        faces = [located for located in faces if not dropped.shows(located.read(), located.face)]
    return [faces[place] for place in sorted(equidistant(len(faces), MOST))]


def write_sets(
    site: str,
    species: str,
    faces: Mapping[int, Sequence[Located]],
    out: Path,
    kinds: Sequence[str] = KINDS,
) -> None:
    """Write a site's sets of some kinds; the side of each face is noted as a further column."""
    sides = {label: [side_of(located.face) for located in entries] for label, entries in faces.items()}
    reduced = {1: matched_sides(sides[1], sides[0]).tolist(), 0: sides[0]}
    for kind in kinds:
        if (out / kind / site).exists():
            continue
        (out / kind).mkdir(parents=True, exist_ok=True)
        with Writer(
            out / kind / site,
            name=site,
            size=DEPTH_SIZE if kind == WITH_DEPTH else SIZE,
            source=f"folder {site}",
            crop=record_of("face", margin=TIGHT.margin, padding=TIGHT.padding),
            depth=kind == WITH_DEPTH,
            further=("side",),
        ) as writer:
            for label, entries in faces.items():
                for number, located in enumerate(entries):
                    image, face = located.read(), located.face
                    if kind == MATCHED:
                        image, face = reduce_face(image, face, reduced[label][number])
                    crop = crop_face(image, face, writer.size, TIGHT.margin, TIGHT.padding)
                    add_picture(
                        writer,
                        crop.image,
                        f"{label}-{number:04d}",
                        label,
                        species,
                        split_of(number, len(entries)),
                        depth=depth_of(crop, label) if kind == WITH_DEPTH else None,
                        side=f"{side_of(face):.0f}",
                    )


def depth_of(crop: CroppedPicture, label: int) -> NDArray[np.uint8]:
    """Return the map of the average face, fitted to a genuine face's points; attacks are flat."""
    if label == 0:
        return flat_map()
    assert crop.points is not None, "a face is cropped with its points"
    return canonical_depth(crop.points, len(crop.image))


# Near copies.


def difference_hash(image: Image) -> int:
    """Return the signs of the steps between neighbouring pixels of a picture of 9×8 grey pixels, as 64 bits."""
    small = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (9, 8), interpolation=cv2.INTER_AREA)
    return int("".join("1" if step else "0" for step in (np.diff(small.astype(int)) > 0).ravel()), 2)


def near_copies(hashes: Mapping[str, Iterable[int]]) -> Counter[tuple[str, str]]:
    """Count, per pair of sites, the pictures of the first that have a near copy at the second."""
    bits = {
        site: np.array([[value >> place & 1 for place in range(64)] for value in values], np.int16).reshape(-1, 64)
        for site, values in hashes.items()
    }
    counts: Counter[tuple[str, str]] = Counter()
    for first, second in combinations(bits, 2):
        ones, others = bits[first], bits[second]
        distances = ones.sum(1)[:, None] + others.sum(1)[None] - 2 * (ones @ others.T)
        if found := int((distances <= SAME_BITS).any(axis=1).sum()):
            counts[first, second] = found
    return counts


def near_copy_notices(sets: Mapping[str, PreparedSet]) -> Iterator[str]:
    """Yield a line per pair of sites that share near copies."""
    hashes = {
        site: [difference_hash(np.asarray(image)) for image in prepared.images] for site, prepared in sets.items()
    }
    for (first, second), count in near_copies(hashes).items():
        yield f"{count} of {len(hashes[first])} pictures of {first} have near copies at {second}"
