"""The catalogue of published networks: addresses, digests, licences, and what is known of their training data.

Every entry was hashed from its authors' bytes, or from the Git LFS pointer that states their digest. The licence of the
code and that of the weights are separate, because training data often have terms of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.base.files import CACHE


@dataclass(frozen=True)
class PublishedFile:
    """A file of the authors, at an address that is pinned to a commit."""

    name: str
    address: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class DetectorPart:
    """A MiniFASNet as a member of a detector: its margin, and the divisor of its log-odds in a sum."""

    margin: float
    scale: float = 1.0


Task = Literal["pad", "recognition", "faces"]
TASKS: Mapping[Task, str] = {"pad": "attack detection", "recognition": "recognition", "faces": "face detection"}


@dataclass(frozen=True)
class PublishedModel:
    """A published network, or several of which one detector is made."""

    name: str
    title: str
    task: Task
    files: tuple[PublishedFile, ...]
    code_licence: str
    weights_licence: str
    training_data: str
    limits: tuple[str, ...]
    restricted: bool
    """The terms of the weights or of their training data are non-commercial or unclear, and must be accepted."""
    parts: tuple[DetectorPart, ...] = ()
    """For attack detection: one per file."""
    network: str = ""
    """For a file that is converted with torch to a start: the network's name for `fedvisage model convert`."""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def directory(self, cache: Path = CACHE) -> Path:
        """Return the model's place in the cache."""
        return cache / "models" / self.name

    def terms(self) -> list[str]:
        """Return origin, licences, training data and limits, one per line."""
        return [
            *(f"from: {file.address}" for file in self.files),
            f"licence of the code: {self.code_licence}",
            f"licence of the weights: {self.weights_licence}",
            f"training data: {self.training_data}",
            *(f"limit: {limit}" for limit in self.limits),
        ]


_MINIVISION = (
    "https://raw.githubusercontent.com/minivision-ai/Silent-Face-Anti-Spoofing/"
    "b6d5f04ad78778917853b25c778acef6d5626d15/resources/anti_spoof_models"
)
_OPENCV = "https://media.githubusercontent.com/media/opencv/opencv_zoo/966be4cb6eefc2a4f586ed0581bf4bbaa2533070/models"
_V2 = PublishedFile(
    "2.7_80x80_MiniFASNetV2.pth",
    f"{_MINIVISION}/2.7_80x80_MiniFASNetV2.pth",
    "a5eb02e1843f19b5386b953cc4c9f011c3f985d0ee2bb9819eea9a142099bec0",
    1_849_453,
)
_V1SE = PublishedFile(
    "4_0_0_80x80_MiniFASNetV1SE.pth",
    f"{_MINIVISION}/4_0_0_80x80_MiniFASNetV1SE.pth",
    "84ee1d37d96894d5e82de5a57df044ef80a58be2b218b5ed7cdfd875ec2f5990",
    1_856_130,
)


def _minifasnet(
    name: str, title: str, files: tuple[PublishedFile, ...], parts: tuple[DetectorPart, ...]
) -> PublishedModel:
    return PublishedModel(
        name,
        title,
        "pad",
        files,
        code_licence="Apache-2.0",
        weights_licence="Apache-2.0, that of the repository with the files; it states no other",
        training_data="not published: neither pictures, people, cameras nor kinds of attack are known",
        limits=(
            "the threshold is at even odds (score 0.5); calibrate it for your camera with `fedvisage calibrate`",
            "error rates for masks, other kinds of attack and groups of people are not known",
        ),
        restricted=False,
        parts=parts,
    )


_ENTRIES = (
    _minifasnet(
        "minifasnet",
        "MiniFASNetV2 (2.7 times the face) and V1SE (4 times), sum of log-odds",
        (_V2, _V1SE),
        # The divisors are the standard deviations of the log-odds on 15 development sites.
        (DetectorPart(2.7, 2.30), DetectorPart(4.0, 3.79)),
    ),
    _minifasnet("minifasnet-v2", "MiniFASNetV2, at 2.7 times the face", (_V2,), (DetectorPart(2.7),)),
    _minifasnet("minifasnet-v1se", "MiniFASNetV1SE, at 4 times the face", (_V1SE,), (DetectorPart(4.0),)),
    PublishedModel(
        "mobilefacenet",
        "MobileFaceNet of foamliu, 128 features at 112 pixels",
        "recognition",
        (
            PublishedFile(
                "mobilefacenet.pt",
                "https://raw.githubusercontent.com/foamliu/MobileFaceNet/a6cc9032a659b615f477833e1a70b5e7931bcccc/"
                "weights/mobilefacenet.pt",
                "90a00ba1d8b0b688af3deb731ed53dca582e6106805d1bc3cfdef55f570493f4",
                4_135_271,
            ),
        ),
        code_licence="Apache-2.0",
        weights_licence="Apache-2.0, that of the repository with the file; it states no other",
        training_data="a refined MS-Celeb-1M (85,164 people), collected from the web for non-commercial research;"
        " Microsoft withdrew the set in 2019",
        limits=("a contributor added the file to the repository, which does not state its accuracy",),
        restricted=True,
        network="mobilefacenet-dw",
    ),
    PublishedModel(
        "sface",
        "SFace of OpenCV's model zoo, an ONNX graph at 112 pixels",
        "recognition",
        (
            PublishedFile(
                "face_recognition_sface_2021dec.onnx",
                f"{_OPENCV}/face_recognition_sface/face_recognition_sface_2021dec.onnx",
                "0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79",
                38_696_353,
            ),
        ),
        code_licence="Apache-2.0",
        weights_licence="Apache-2.0, that of the folder with the file",
        training_data="not stated with the file; its paper trains on CASIA-WebFace, VGGFace2 and MS-Celeb-1M,"
        " collected from the web for non-commercial research, the last of which was withdrawn in 2019",
        limits=("the authors' file is stored as it is; no command of this program uses it yet",),
        restricted=True,
    ),
    PublishedModel(
        "yunet",
        "YuNet of OpenCV's model zoo, an ONNX graph",
        "faces",
        (
            PublishedFile(
                "face_detection_yunet_2023mar.onnx",
                f"{_OPENCV}/face_detection_yunet/face_detection_yunet_2023mar.onnx",
                "8f2383e4dd3cfbb4553ea8718107fc0423210dc964f9f4280604804ed2552fa4",
                232_589,
            ),
        ),
        code_licence="MIT",
        weights_licence="MIT, that of the folder with the file",
        training_data="WIDER FACE, photographs from the web that its authors offer under CC BY-NC-ND 4.0",
        limits=("the authors' file is stored as it is; no command of this program uses it yet",),
        restricted=True,
    ),
)
CATALOGUE: Mapping[str, PublishedModel] = {model.name: model for model in _ENTRIES}


def find_model(name: str) -> PublishedModel:
    """Return an entry of the catalogue."""
    if name not in CATALOGUE:
        raise UserError("NAME", f"{name!r} is not a published model of the catalogue{choice_hint(name, CATALOGUE)}")
    return CATALOGUE[name]


def locate_detector(model: str | Path, cache: Path = CACHE) -> Path:
    """Return the path of a detector: an existing path, or the place of a published one in the cache.

    A text that is neither is returned as a path, so that its reader refuses it.
    """
    path, name = Path(model), str(model)
    if path.exists() or name not in CATALOGUE:
        return path
    entry = CATALOGUE[name]
    if entry.task != "pad":
        raise UserError(name, f"is a published model for {TASKS[entry.task]}, but attack detection is required")
    if not entry.directory(cache).is_dir():
        raise UserError(name, f"is not in the cache; run `fedvisage model get {name}` first")
    return entry.directory(cache)
