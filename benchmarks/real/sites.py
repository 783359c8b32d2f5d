"""Prepare the development repositories as sites: unique pictures, turned upright, with one detected face each.

Each repository is one site, except two by the same authors, which are one. Pictures that two sites share are dropped
at the later one, and those in both classes everywhere. All sites but the last two follow one tutorial: replays of one
kind, cut by one cropper. The crops are cut by the same functions, and stored by the same writer, as those of
``fedvisage data import``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.real.author import Author, open_recogniser
from fedvisage.base.errors import BadFile
from fedvisage.data.writer import Writer
from fedvisage.faces.align import SURE
from fedvisage.faces.cropping import LOWEST_CONFIDENCE, Image, Padding, crop_face, record_of
from fedvisage.faces.detection import Detector, DetectorSettings, Face
from fedvisage.faces.pictures import ENDINGS, equidistant, open_picture

SITES: Mapping[str, tuple[str, ...]] = {
    "tutorial": (
        "D-sourav-M044+Face_recognition",
        "saikan45+Liveness_Face_Detection_Home_Security_System",
    ),
    "aksultan": ("AksultanMukhanbet+recognize_with_python",),
    "alexcamargo": ("alexcamargoweb+liveness-detection",),
    "apfol": ("Apfol+liveness-detection-opencv",),
    "balveer": ("BalveerSinghYT+Smart-Facial-Recognition-Attendance-System",),
    "jtboing": ("jtboing+liveness-web-demo",),
    "krzysiek": ("Krzysiek354+Python_Face_Detection",),
    "manikantha": ("Manikantha-M+Face-Liveness-detection-using-Deeplearning-and-OpenCV",),
    "neonipun": ("neonipun+CV_PROJECT",),
    "nuredinali": ("nuredinali+Face-recognition-with-liveness-detection-and-recognizing-unknown-face-added.",),
    "shubham": ("ShubhamLala+Liveliness-Detection_CNN",),
    "tricky": ("TrickyF0x+twoFactorLivenessDetection",),
    "vishal": ("VishalkrishnaBlaze+Liveness-detection",),
    "wolf": ("WOLF-huo+face_liveness",),
    "yildirimege": ("yildirimege+LivenessDataset",),
    "imironica": ("imironica+liveness",),
}
"""Repositories by site, with the one whose pictures others contain first. A repository without attacks is left out."""

WITH_AUTHOR = ("apfol", "jtboing", "neonipun")
"""Sites that also show the author of the first one; his pictures are dropped there."""

CLASSES = {1: "dataset/real", 0: "dataset/fake"}
OF_OTHER_KINDS: Mapping[str, Mapping[int, str]] = {
    "yildirimege": {1: "Dataset/real", 0: "Dataset/fake"},
    "imironica": {1: "db/ClientRaw", 0: "db/ImposterRaw"},
}
"""Folders of the classes, in general and at sites that do not follow the tutorial."""

MOST, TRAINED = 60, 0.7
"""Pictures per class and site, and the share of them, in natural order, on which a site trains."""

MOST_BURSTS, LENGTH = 67, 3
"""Bursts per class of a site of another kind, and the pictures of a burst."""

SIDES = (320, 160, 640)
"""Longer sides of a picture at which a face is searched for, in this order."""
QUARTER_TURNS = (0, 1, 3)

SIZE = 80
Scaling = Literal["area", "linear"]


@dataclass(frozen=True)
class Cut:
    """A way to cut a face out: the side over that of its box, what fills it beyond the picture, and how it shrinks."""

    margin: float
    padding: Padding = "none"
    scaling: Scaling = "area"

    @property
    def name(self) -> str:
        """The name of the folder with this cut's sets."""
        return f"{self.margin:g}-{self.padding}-{self.scaling}"

    def cut(self, image: Image, face: Face) -> Image:
        """Return the crop; a picture that ends too close to the face shrinks it, whatever its margin."""
        if self.scaling == "area":
            return crop_face(image, face, SIZE, self.margin, self.padding).image
        side = round(self.margin * face.box[2:].max())
        side = side if self.padding == "replicate" else min(side, *image.shape[:2])
        whole = crop_face(image, face, int(side), self.margin, self.padding).image
        return np.asarray(cv2.resize(whole, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR), np.uint8)


@dataclass(frozen=True)
class Picture:
    """A picture of a site, upright, and its face."""

    image: Image
    face: Face
    label: int
    split: Literal["train", "heldout"]


@dataclass(frozen=True)
class Located:
    """A file, the quarter turns that make its face upright, and the face in the turned picture."""

    path: Path
    turns: int
    face: Face

    def read(self) -> Image:
        """Return the upright picture."""
        return np.ascontiguousarray(np.rot90(open_picture(self.path), self.turns))


def prepare(directory: Path, out: Path, cuts: Sequence[Cut]) -> None:
    """Write the sets ``OUT/CUT/SITE``; existing sets are kept."""
    if all((out / cut.name / site).exists() for cut in cuts for site in SITES):
        return
    detector = Detector(settings=DetectorSettings(smallest=40))
    unique = unique_files(directory)
    pictures = choose_pictures({1: unique["tutorial"][1]}, detector)
    author = Author(
        open_recogniser(directory, out.parent / "starts"), [(picture.image, picture.face) for picture in pictures]
    )
    for site, files in unique.items():
        missing = [cut for cut in cuts if not (out / cut.name / site).exists()]
        if missing:
            is_dropped = author.shows if site in WITH_AUTHOR else None
            _write(site, choose_pictures(files, detector, is_dropped), out, missing)


def unique_files(directory: Path, sites: Sequence[str] = tuple(SITES)) -> dict[str, dict[int, list[Path]]]:
    """Return the files of each site and class in natural order, without copies and contradictions."""
    places: list[tuple[str, int, Path]] = []
    for site in sites:
        for repository in SITES[site]:
            for label, folder in OF_OTHER_KINDS.get(site, CLASSES).items():
                paths = pictures_in(directory / repository / folder, lambda path: f"{path.parent.name}/{path.name}")
                if site in OF_OTHER_KINDS:
                    paths = [path for burst in choose_bursts(paths, MOST_BURSTS) for path in burst]
                places += [(site, label, path) for path in paths]
    return drop_copies(places, sites)


def pictures_in(folder: Path, name_of: Callable[[Path], str] = str) -> list[Path]:
    """Return the pictures below a folder, ordered by the numbers in their names."""

    def natural(path: Path) -> list[tuple[int, str]]:
        return [(int(word) if word.isdigit() else -1, word) for word in re.split(r"(\d+)", name_of(path))]

    return sorted((path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS), key=natural)


def drop_copies(places: Iterable[tuple[str, int, Path]], sites: Iterable[str]) -> dict[str, dict[int, list[Path]]]:
    """Return files by site and class; copies stay at the first site, and files in both classes are dropped."""
    copies: dict[str, list[tuple[str, int, Path]]] = {}
    for site, label, path in places:
        copies.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), []).append((site, label, path))
    unique: dict[str, dict[int, list[Path]]] = {site: {1: [], 0: []} for site in sites}
    for same in copies.values():
        if len({label for _, label, _ in same}) == 1:
            site, label, path = same[0]
            unique[site][label].append(path)
    return unique


def choose_bursts(paths: Sequence[Path], most: int) -> list[Sequence[Path]]:
    """Return runs of three consecutive files, at equal distances."""
    runs = [paths[start : start + LENGTH] for start in range(0, len(paths) - LENGTH + 1, LENGTH)]
    return [runs[place] for place in sorted(equidistant(len(runs), most))]


def kind_of(site: str) -> str:
    """Return the kind of a site: all that follow the tutorial are of one."""
    return site if site in OF_OTHER_KINDS else "tutorial"


def choose_pictures(
    files: Mapping[int, Sequence[Path]], detector: Detector, is_dropped: Callable[[Image, Face], bool] | None = None
) -> Iterator[Picture]:
    """Yield at most `MOST` pictures of each class, at equal distances among those with a face that is kept."""
    for label, paths in files.items():
        faces = [located for path in paths if (located := locate_face(path, detector))]
        if is_dropped is not None:
            faces = [located for located in faces if not is_dropped(located.read(), located.face)]
        chosen = [faces[place] for place in sorted(equidistant(len(faces), MOST))]
        for number, located in enumerate(chosen):
            yield Picture(located.read(), located.face, label, "train" if number < TRAINED * len(chosen) else "heldout")


def locate_face(path: Path, detector: Detector) -> Located | None:
    """Return where a file's largest face is, in the picture turned so that it is upright; None without a face."""
    try:
        image = open_picture(path)
    except BadFile:
        return None
    for side in SIDES:
        scale = side / max(image.shape[:2])
        width, height = (max(1, round(length * scale)) for length in image.shape[1::-1])
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        small = np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.uint8)
        faces: list[tuple[int, Face]] = []
        for turns in QUARTER_TURNS:
            face = detector.largest(np.ascontiguousarray(np.rot90(small, turns)), LOWEST_CONFIDENCE)
            if face is not None:
                faces.append((turns, face))
                if turns == 0 and face.confidence >= SURE:
                    break
        if faces:
            turns, face = max(faces, key=lambda entry: entry[1].confidence)
            return Located(path, turns, Face(face.box / scale, face.points / scale))
    return None


def _write(site: str, pictures: Iterator[Picture], out: Path, cuts: Sequence[Cut]) -> None:
    with ExitStack() as stack:
        writers = {}
        for cut in cuts:
            (out / cut.name).mkdir(parents=True, exist_ok=True)
            record = record_of("face", margin=cut.margin, padding=cut.padding)
            writer = Writer(out / cut.name / site, name=site, size=SIZE, source=f"folder {site}", crop=record)
            writers[cut] = stack.enter_context(writer)
        for number, picture in enumerate(pictures):
            for cut, writer in writers.items():
                crop = cut.cut(picture.image, picture.face)
                add_picture(writer, crop, f"{number:04d}", picture.label, "replay", picture.split)


def add_picture(
    writer: Writer,
    crop: Image,
    name: str,
    label: int,
    species: str,
    split: str,
    *,
    depth: NDArray[np.uint8] | None = None,
    **further: str,
) -> None:
    """Add one picture to a set, as its own subject, because the person is unknown."""
    writer.add(
        crop[np.newaxis],
        label=[label],
        species=["bonafide" if label else species],
        subject=[name],
        video=[name],
        frame=[0],
        split=[split],
        item=[name],
        depth=None if depth is None else depth[np.newaxis],
        further={column: [value] for column, value in further.items()},
    )
