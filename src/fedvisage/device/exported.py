"""Read and open exported models: check every file against the description in `config.json` before running the graph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import to_jsonable_python

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import file_digest, json_key, parse_json, read_plain, read_text, write_atomically, write_json
from fedvisage.base.onnx_graphs import CPU, LARGEST, open_session, parse_graph, runtime_errors, short
from fedvisage.data.crops import RENDERED_ONLY, CropRecord, are_all_rendered
from fedvisage.data.prepared import SIZE_LIMIT, FileEntry
from fedvisage.faces.cropping import MARGIN, detector_of, record_of
from fedvisage.metrics.operating_point import ErrorCurves, Task, choose_point
from fedvisage.metrics.threshold import Estimate, Threshold

if TYPE_CHECKING:
    import onnxruntime

# The description of an exported model: `config.json`, repeated as metadata inside each graph. The directory may come
# from anywhere: any other form is refused, and nothing in it is printed without a check.


CONFIG, CARD, PARITY, WEIGHTS = "config.json", "README.md", "parity.json", "model.safetensors"
GRAPH, INT8_GRAPH = "onnx/model.onnx", "onnx/model_int8.onnx"
UNBOUND = (
    "is an export of an earlier version, in which changed error rates and files, and a fused model's threshold, cannot "
    "be noticed; export or fuse the model again"
)
MEMBERS = "members"
"""The folder of a fused model's members, each an export of its own."""
INPUT: Final = "images"
OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {"pad": ("score", "logit"), "recognition": ("embedding",)}

AGAIN = "export the model again"
_KEY = "fedvisage."
_NONE = json_key(None)
CONFIG_LIMIT = 1 << 20

Arithmetic = Literal["float32", "int8"]
RATES_FROM: Final[Mapping[Arithmetic, str]] = {"float32": "at the sites", "int8": "on the calibration set"}
"""The place, for people, where the error rates of a graph's threshold were measured."""

Beside = Literal["model.safetensors", "parity.json"]
BESIDE: Final[tuple[Beside, ...]] = get_args(Beside)
"""Files beside the graphs whose digests `config.json` records; the model card is excluded, because owners edit it."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has unprintable characters")
    return text


Word = Annotated[str, Field(max_length=200), AfterValidator(_check_printable)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0, le=1)]


class RateEstimate(_Strict):
    """An error rate with its 95 % interval."""

    rate: Share
    low: Share
    high: Share


class _WithoutLaterFields(_Strict):
    """A description that leaves out unset fields of later versions, which older graphs do not record."""

    @model_serializer(mode="wrap")
    def _leave_out(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = whole(self)
        return {name: value for name, value in values.items() if value is not None or name not in LATER}


LATER = frozenset({"estimates", "curves", "adapted", "curves_sha256", "files_sha256", "fused", "batch_norms"})
"""Fields that an export has only if they are set."""


class OperatingPoint(_WithoutLaterFields):
    """A threshold, the rule that chose it, and its error rates at the sites.

    The threshold is a logit for attack detection, and a cosine for recognition. ``estimates`` are the rates of an
    operating point that the exporter asked for, with intervals.
    """

    value: float = Field(ge=-100, le=100)
    rule: Word
    far: float | None = Field(default=None, ge=0, le=1)
    frr: float | None = Field(default=None, ge=0, le=1)
    estimates: dict[Word, RateEstimate] | None = Field(default=None, max_length=20)


def point_of(threshold: Threshold) -> OperatingPoint:
    """Return a threshold in the format of an exported model."""
    estimates = {name: RateEstimate(**asdict(value)) for name, value in threshold.estimates.items()}
    return OperatingPoint(
        value=threshold.value, rule=threshold.rule, far=threshold.far, frr=threshold.frr, estimates=estimates or None
    )


def without_rates(point: OperatingPoint | None) -> OperatingPoint | None:
    """Return a threshold for other weights than those that its error rates were measured with."""
    return point and point.model_copy(update={"far": None, "frr": None, "estimates": None})


class AdaptationOrigin(_Strict):
    """The origin of an adapted graph: the model, the kind of adaptation, and the number of images.

    ``gated`` is entropy minimisation behind a gate, with torch; ``statistics`` replaces only those of BatchNorm.
    """

    from_sha256: Digest
    how: Literal["gated", "statistics"]
    images: int = Field(ge=1)


class FoldedNorm(_Strict):
    """A BatchNorm layer that the exporter folded into an operation: the graph's node, and its name in the weights."""

    node: Word
    layer: Word
    epsilon: float = Field(gt=0, le=1)


class SumRecord(_Strict):
    """The sum of a fused model, which the graphs of all its members state: weights and scales, thresholds, curves."""

    model_sha256: Digest
    factors: tuple[tuple[float, float], ...] = Field(max_length=100)
    threshold: OperatingPoint
    int8_threshold: OperatingPoint | None
    curves_sha256: Digest


class Description(_WithoutLaterFields):
    """The description of a graph.

    Attributes:
        format: the version of this description.
        member: the site of the model, if the run has one model per site.
        size: side of a crop in pixels.
        arithmetic: float32, or int8 after quantisation.
        model_sha256: digest of the weights.
        threshold: the decision threshold; none, if the sites could choose none.
        crop: how a device crops faces, with the detector's digest.
        trained_on: how the training crops were made, as far as known.
        drawn: true if the method samples, and the graph is the mean over all samples.
        adapted: the adaptation of the graph; none for the trained model itself.
        curves_sha256: digest of the error rates in `config.json`; none in exports of earlier versions.
        files_sha256: digest of the entries of `config.json` for the files beside the graphs; none likewise.
        fused: the sum of which the graph is a member.
        batch_norms: the folded BatchNorm layers, in order; none in exports of earlier versions.
    """

    format: Literal[1] = 1
    task: Literal["pad", "recognition"]
    method: Word
    member: Word = ""
    size: int = Field(ge=8, le=SIZE_LIMIT)
    arithmetic: Arithmetic = "float32"
    model_sha256: Digest
    recipe_sha256: Digest
    threshold: OperatingPoint | None
    crop: CropRecord
    trained_on: tuple[CropRecord, ...] = Field(default=(), max_length=100)
    drawn: bool = False
    adapted: AdaptationOrigin | None = None
    curves_sha256: Digest | None = None
    files_sha256: Digest | None = None
    fused: SumRecord | None = None
    batch_norms: tuple[FoldedNorm, ...] | None = Field(default=None, max_length=10_000)
    version: Word

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the graph."""
        return {f"{_KEY}{name}": json_key(value) for name, value in self.model_dump(mode="json").items()}

    @property
    def is_bound(self) -> bool:
        """Whether the graph states the digests of `config.json`; those of earlier versions do not."""
        return self.curves_sha256 is not None and self.files_sha256 is not None


class Graphs(_Strict):
    """The file of a graph, with its description."""

    file: FileEntry
    description: Description


class Config(_WithoutLaterFields):
    """The content of `config.json`: the graphs of one model, the sites' error rates, and the files beside the graphs.

    ``curves`` are averaged over the sites, for operating points that are chosen later; they apply to the float32 graph.
    The graphs state the digests of both. ``files`` is empty in exports of version 0.1, whose weights and parity file
    are not checked.
    """

    library_name: Literal["fedvisage"] = "fedvisage"
    float32: Graphs
    int8: Graphs | None = None
    curves: ErrorCurves | None = None
    files: dict[Beside, FileEntry] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _graphs_of_one_model(self) -> Config:
        for arithmetic, graph in (("float32", self.float32), ("int8", self.int8)):
            if graph is not None and graph.description.arithmetic != arithmetic:
                raise ValueError(f"its {arithmetic} graph has another arithmetic")
        if self.int8 is not None:
            excluded = {"arithmetic", "threshold"}
            float32, int8 = (graph.description.model_dump(exclude=excluded) for graph in (self.float32, self.int8))
            if float32 != int8:
                raise ValueError("its two graphs belong to different models")
        return self


def is_export(directory: Path) -> bool:
    """Return whether a directory holds an exported or fused model rather than a run."""
    return (directory / CONFIG).is_file() and ((directory / GRAPH).is_file() or is_fused(directory))


def is_fused(directory: Path) -> bool:
    """Return whether a directory holds a fused model, which has members in place of a graph."""
    return (directory / MEMBERS).is_dir()


Content = TypeVar("Content", bound=BaseModel)


def read_config(directory: Path) -> Config:
    """Read and check the `config.json` of an exported directory with one graph."""
    if is_fused(directory):
        raise UserError(str(directory), "is a fused model; open it with fedvisage.device.open_export")
    return read_description(directory, Config)


def read_description(directory: Path, kind: type[Content]) -> Content:
    """Read and check the `config.json` of an exported or fused model."""
    path = directory / CONFIG
    if not directory.is_dir():
        raise UserError(str(directory), "directory not found; give a directory that `fedvisage export` wrote")
    if not path.exists():
        raise UserError(str(path), "does not exist; give a directory that `fedvisage export` wrote")
    try:
        return kind.model_validate_json(json_key(parse_json(read_text(path, CONFIG_LIMIT))))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"])) or "it"
        raise UserError(str(path), f"does not describe an export ({location}: {first['msg']}); {AGAIN}") from None
    except ValueError as error:
        raise UserError(str(path), f"is not valid JSON ({str(error)[:200]}); {AGAIN}") from None


def digest_of_values(values: Any) -> str:
    """Return the digest of curves, or of file entries; equal content has equal digests."""
    return hashlib.sha256(json_key(to_jsonable_python(values)).encode()).hexdigest()


# Directories are written completely or not at all: in a temporary directory first, which is then renamed.


def check_free(out: Path) -> None:
    """Refuse a directory that is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(str(out), "is not empty; give a new directory, so that nothing is overwritten")


def entry_of(path: Path) -> FileEntry:
    """Return the size and digest of a file."""
    return FileEntry(bytes=path.stat().st_size, sha256=file_digest(path))


def write_export(
    directory: Path,
    float32: Description,
    int8: Description | None = None,
    *,
    curves: ErrorCurves | None = None,
    fused: SumRecord | None = None,
) -> Config:
    """Describe the graphs of a directory: write `config.json`, and its digests into the graphs' metadata."""
    files = {name: entry_of(directory / name) for name in BESIDE if (directory / name).exists()}
    stated = {"curves_sha256": digest_of_values(curves), "files_sha256": digest_of_values(files), "fused": fused}

    def describe(name: str, description: Description) -> Graphs:
        path, description = directory / name, description.model_copy(update=stated)
        graph = parse_graph(str(path), read_plain(path, LARGEST), AGAIN)
        del graph.metadata_props[:]
        for key, value in description.metadata().items():
            graph.metadata_props.add(key=key, value=value)
        write_atomically(path, graph.SerializeToString(deterministic=True))
        return Graphs(file=entry_of(path), description=description)

    config = Config(
        float32=describe(GRAPH, float32),
        int8=None if int8 is None else describe(INT8_GRAPH, int8),
        curves=curves,
        files=files,
    )
    write_json(directory / CONFIG, config.model_dump(mode="json"))
    return config


LARGEST_BESIDE = 2 * LARGEST
"""Maximum bytes of the weights; they may include parts that the graph does not."""

AT_ONCE = 16
"""Crops per run of the graph."""

_LENGTH = 1e-3
"""Maximum deviation of an embedding's length from 1."""


class CropShape(NamedTuple):
    """The crops that a model takes: side over the longer side of the face box, and side in pixels."""

    margin: float
    size: int


Crops = NDArray[np.uint8] | Sequence[NDArray[np.uint8]]
"""Crops of N faces, uint8 N×S×S×3 in RGB: an array for a model of one shape, or a list with one array per shape."""


def reaches_threshold(scores: NDArray[np.float64], threshold: Threshold | None) -> NDArray[np.bool_]:
    """Return which scores reach a model's threshold."""
    if threshold is None:
        raise UserError("model.threshold", "this model has no threshold; export a run whose sites chose one")
    return np.asarray(scores >= threshold.value)


def refuse_int8(arithmetic: Arithmetic) -> None:
    """Refuse an operating point of an int8 graph, which has no error-rate curves."""
    if arithmetic == "int8":
        raise UserError("--at", "the int8 graph has only its own threshold; use the float32 graph")


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported model with its graph."""

    directory: Path
    description: Description
    graph_digest: str
    session: onnxruntime.InferenceSession
    curves: ErrorCurves | None = None
    """The sites' averaged error rates, for operating points."""
    moved: bool = False
    """The threshold is that of an operating point, and not the one in the files."""

    @staticmethod
    def open(directory: Path, *, threads: int = 1, int8: bool = False, provider: str = CPU) -> Exported:
        """Read a directory that `fedvisage export` wrote; check that all its records agree before anything runs."""
        config = read_config(directory)
        graph = config.int8 if int8 else config.float32
        if graph is None:
            raise UserError(str(directory), "has no int8 graph; export it with --int8 --calibrate SET")
        description, path = graph.description, directory / (INT8_GRAPH if int8 else GRAPH)
        margin = description.crop.margin or MARGIN
        aligned, detector = description.task == "recognition", detector_of([description.crop])
        expected = record_of("face", aligned=aligned, margin=margin, detector=detector)
        if description.crop != expected:
            raise UserError(
                str(directory / CONFIG),
                f"expects crops that this version does not make ({description.crop}; here {expected}); {AGAIN}",
            )
        # The error rates and file entries must be those that the graph states.
        for name, digest in (("curves", description.curves_sha256), ("files", description.files_sha256)):
            if digest is not None and digest != digest_of_values(getattr(config, name)):
                raise UserError(str(directory / CONFIG), f"records different {name} than its graph; {AGAIN}")
        _check_files_beside(directory, config)
        content = read_plain(path, LARGEST)
        if len(content) != graph.file.bytes or hashlib.sha256(content).hexdigest() != graph.file.sha256:
            raise UserError(str(path), f"is damaged: its digest is not the one in {CONFIG}; {AGAIN}")
        session = open_session(str(path), content, threads, remedy=AGAIN, provider=provider)
        _check_form(path, session, description)
        return Exported(directory, description, graph.file.sha256, session, None if int8 else config.curves)

    @property
    def digest(self) -> str:
        """The digest of the weights from the description; `graph_digest` is the digest of the running file."""
        return self.description.model_sha256

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices when the model is opened: about a graph without digests, and about recognition of rendered faces.

        Attack detection has `notes` with each decision instead.
        """
        unbound = () if self.description.is_bound else (UNBOUND,)
        return tuple(f"{self.directory}: {text}" for text in unbound + (() if self.task == "pad" else self.notes))

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on every decision of the model."""
        return (RENDERED_ONLY,) if are_all_rendered(self.description.trained_on) else ()

    @property
    def task(self) -> Task:
        """The task of the model: ``pad`` or ``recognition``."""
        return self.description.task

    @property
    def size(self) -> int:
        """The side of a crop in pixels."""
        return self.description.size

    @property
    def margin(self) -> float:
        """The side of a crop over the longer side of the face box."""
        return self.description.crop.margin or MARGIN

    @property
    def method(self) -> str:
        """The training method."""
        return self.description.method

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of the graph."""
        return self.description.arithmetic

    @property
    def crop_records(self) -> tuple[CropRecord, ...]:
        """The record of the crops that the model takes, as a tuple like that of a fused model."""
        return (self.description.crop,)

    @property
    def shapes(self) -> tuple[CropShape, ...]:
        """The crops that :meth:`score` takes of each face: one here, several in a fused model."""
        return (CropShape(self.margin, self.size),)

    @property
    def threshold(self) -> Threshold | None:
        """The decision threshold: a logit, or a cosine."""
        threshold = threshold_of(self.description.threshold)
        return threshold and replace(threshold, place=RATES_FROM[self.arithmetic])

    def at(self, point: str) -> Exported:
        """Return the model with the threshold of an operating point, such as ``bpcer=1%`` or ``eer``.

        The threshold is chosen on the sites' averaged curves, which an int8 graph does not have.
        """
        refuse_int8(self.description.arithmetic)
        chosen = choose_point(self.curves, point, self.description.task, str(self.directory), exported=True)
        description = self.description.model_copy(update={"threshold": point_of(chosen)})
        return replace(self, description=description, moved=True)

    def graph(self) -> bytes:
        """Return the bytes of the graph's file; refuse it if it changed since it was opened."""
        path = self.directory / (INT8_GRAPH if self.description.arithmetic == "int8" else GRAPH)
        content = read_plain(path, LARGEST)
        if hashlib.sha256(content).hexdigest() != self.graph_digest:
            raise UserError(str(path), f"has changed since it was opened; {AGAIN}")
        return content

    def score(self, crops: Crops) -> NDArray[np.float64]:
        """Return the logits of N faces from their crops: one array N×S×S×3, or a list with one array per shape."""
        (only,) = [crops] if isinstance(crops, np.ndarray) else crops
        return self.run(only).astype(np.float64)

    def is_live(self, crops: Crops) -> NDArray[np.bool_]:
        """Return for each face, as in :meth:`score`, whether its score reaches the model's threshold."""
        return reaches_threshold(self.score(crops), self.threshold)

    def run(self, crops: NDArray[np.uint8]) -> NDArray[np.floating[Any]]:
        """Return logits (N) or unit embeddings (N×D) of crops, uint8 N×S×S×3 in RGB."""
        size = self.size
        if crops.dtype != np.uint8 or crops.ndim != 4 or crops.shape[1:] != (size, size, 3):
            raise ValueError(f"crops must be uint8 of shape N×{size}×{size}×3, got {crops.dtype} {crops.shape}")
        name = OUTPUTS[self.task][-1]
        outputs = []
        for start in range(0, len(crops), AT_ONCE):
            batch = np.ascontiguousarray(crops[start : start + AT_ONCE])
            try:
                (output,) = self.session.run([name], {INPUT: batch})
            except runtime_errors() as error:
                raise RunFailed(f"{self.directory}: the graph cannot be run ({short(error)}); {AGAIN}") from None
            if len(output) != len(batch) or not np.isfinite(output).all():
                fault = "the model returned NaN, infinity or a wrong number of rows"
                raise RunFailed(f"{self.directory}: {fault}; {AGAIN}")
            if self.task == "recognition" and not (np.abs(np.linalg.norm(output, axis=1) - 1) < _LENGTH).all():
                raise RunFailed(f"{self.directory}: the model returned embeddings whose length is not 1; {AGAIN}")
            outputs.append(np.asarray(output, np.float32))
        return np.concatenate(outputs) if outputs else np.zeros(0, np.float32)


def threshold_of(point: OperatingPoint | None) -> Threshold | None:
    """Return a recorded operating point as a threshold."""
    if point is None:
        return None
    estimates = {name: Estimate(**value.model_dump()) for name, value in (point.estimates or {}).items()}
    return Threshold(point.value, point.rule, point.far, point.frr, estimates)


def _check_files_beside(directory: Path, config: Config) -> None:
    """Refuse weights or parity files of another export; both files may be missing on a device."""
    for name, entry in config.files.items():
        path = directory / name
        if not os.path.lexists(path):
            continue
        read = min(entry.bytes, LARGEST_BESIDE)
        if not path.is_file() or path.stat().st_size != entry.bytes or file_digest(path, read) != entry.sha256:
            raise UserError(str(path), f"is not the file whose digest {CONFIG} records; {AGAIN}")


def _check_form(path: Path, session: onnxruntime.InferenceSession, description: Description) -> None:
    """Refuse a graph with other inputs or outputs than its task has, or with other metadata than its description."""
    metadata, described = session.get_modelmeta().custom_metadata_map, description.metadata()
    for key in (*described, *sorted(key for key in metadata if key.startswith(_KEY))):
        if metadata.get(key, _NONE) != described.get(key, _NONE):
            raise UserError(str(path), f"records a different {key.removeprefix(_KEY)} than {CONFIG}; {AGAIN}")
    size, names = description.size, OUTPUTS[description.task]
    inputs = [(value.name, value.type, list(value.shape)[1:]) for value in session.get_inputs()]
    outputs = [(value.name, value.type, len(value.shape)) for value in session.get_outputs()]
    rank = 2 if description.task == "recognition" else 1
    if inputs != [(INPUT, "tensor(uint8)", [size, size, 3])] or outputs != [
        (name, "tensor(float)", rank) for name in names
    ]:
        raise UserError(str(path), f"does not have the inputs and outputs of an exported model; {AGAIN}")
