"""Fused models: several exported detectors at crops of their own, whose log-odds are summed with recorded weights.

The directory of a fused model has its own `config.json`, and each member as a complete export in a folder. The score of
a face is the sum of weight × log-odds / scale over the members.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest, read_plain, write_json
from fedvisage.base.onnx_graphs import CPU
from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import FileEntry
from fedvisage.device.exported import (
    AGAIN,
    CARD,
    CONFIG,
    CONFIG_LIMIT,
    GRAPH,
    INT8_GRAPH,
    MEMBERS,
    PARITY,
    UNBOUND,
    WEIGHTS,
    Arithmetic,
    Crops,
    CropShape,
    Digest,
    Exported,
    OperatingPoint,
    SumRecord,
    Word,
    _Strict,
    _WithoutLaterFields,
    digest_of_values,
    entry_of,
    is_fused,
    point_of,
    reaches_threshold,
    read_config,
    read_description,
    refuse_int8,
    threshold_of,
    write_export,
)
from fedvisage.metrics.operating_point import MEASURES, ErrorCurves, Task, choose_point, parse_point
from fedvisage.metrics.threshold import Threshold

MOST = 16
"""The largest number of members."""

LARGEST_FACTOR = 1e6
Factor = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]


class FusedMember(_Strict):
    """A member of a fused model.

    Attributes:
        config: size and digest of the member's `config.json`, which has the digests of its other files.
        weight: the factor of its log-odds in the sum.
        scale: the divisor of its log-odds, usually their standard deviation on people of the sites.
    """

    config: FileEntry
    weight: Factor
    scale: Factor


class FusedConfig(_WithoutLaterFields):
    """The content of a fused model's `config.json`.

    Attributes:
        members: its members, in the order of their folders.
        model_sha256: digest of the members' weights, and of their factors in the sum.
        int8_threshold: that of the int8 graphs; none, if a member has no int8 graph.
        curves: the averaged error rates of the sum on three or more sets, for operating points that are chosen later.
    """

    library_name: Literal["fedvisage"] = "fedvisage"
    fused: Literal[1] = 1
    members: tuple[FusedMember, ...] = Field(min_length=2, max_length=MOST)
    model_sha256: Digest
    threshold: OperatingPoint
    int8_threshold: OperatingPoint | None = None
    curves: ErrorCurves | None = None
    version: Word

    def record(self) -> SumRecord:
        """Return the record of the sum, which the graphs of all members state."""
        return SumRecord(
            model_sha256=self.model_sha256,
            factors=tuple((member.weight, member.scale) for member in self.members),
            threshold=self.threshold,
            int8_threshold=self.int8_threshold,
            curves_sha256=digest_of_values(self.curves),
        )


def folder_of(directory: Path, number: int) -> Path:
    """Return the folder of a member; numbers begin at 1."""
    return directory / MEMBERS / str(number)


@dataclass(frozen=True, eq=False)
class Fused:
    """An open fused model."""

    directory: Path
    config: FusedConfig
    members: tuple[Exported, ...]
    graph_digest: str
    """The digest of `config.json`, which contains the digests, weights and scales of all members."""

    moved: bool = False
    """The threshold is that of an operating point, and not the one in the file."""

    task: ClassVar[Task] = "pad"
    method: ClassVar[str] = "fused"

    @staticmethod
    def open(directory: Path, *, threads: int = 1, int8: bool = False, provider: str = CPU) -> Fused:
        """Read the directory of a fused model; check that all records of all members agree before anything runs."""
        config = read_description(directory, FusedConfig)
        if int8 and config.int8_threshold is None:
            raise UserError(str(directory), "has no int8 graphs; fuse members that were exported with --int8")
        members = []
        for number, recorded in enumerate(config.members, 1):
            path = folder_of(directory, number) / CONFIG
            content = read_plain(path, CONFIG_LIMIT)
            if FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()) != recorded.config:
                raise UserError(str(path), f"is not the file whose digest {directory / CONFIG} records; {AGAIN}")
            members.append(Exported.open(path.parent, threads=threads, int8=int8, provider=provider))
            if members[-1].task != "pad":
                raise UserError(str(path), f"is not a model that detects attacks; {AGAIN}")
        if config.model_sha256 != digest_of(config.members, [member.digest for member in members]):
            raise UserError(str(directory / CONFIG), f"does not have the digest of its members; {AGAIN}")
        # Every member's graph states the sum; only graphs of earlier versions state none.
        bound = any(member.description.is_bound for member in members)
        for member in members if bound else ():
            stated = member.description.fused
            for name, value in config.record():
                if stated is None or getattr(stated, name) != value:
                    place = f"records a different {name} than {member.directory / GRAPH}; {AGAIN}"
                    raise UserError(str(directory / CONFIG), place)
        digest = file_digest(directory / CONFIG)
        return Fused(directory, config, tuple(members), digest)

    @property
    def digest(self) -> str:
        """The digest of the members' weights, and of their factors in the sum."""
        return self.config.model_sha256

    @property
    def notices(self) -> tuple[str, ...]:
        """A notice about a fused model of an earlier version, whose graphs do not state its threshold."""
        return (f"{self.directory}: {UNBOUND}",) if any(member.notices for member in self.members) else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on every decision of the model: those of its members."""
        return tuple(dict.fromkeys(note for member in self.members for note in member.notes))

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of the members' graphs."""
        return self.members[0].arithmetic

    @property
    def threshold(self) -> Threshold | None:
        """The decision threshold of the sum."""
        int8 = self.arithmetic == "int8"
        threshold = threshold_of(self.config.int8_threshold if int8 else self.config.threshold)
        return threshold and replace(threshold, place="on the sets of the fusion")

    @property
    def curves(self) -> ErrorCurves | None:
        """The averaged error rates of the float32 sum on the sets that it was fused on."""
        return None if self.arithmetic == "int8" else self.config.curves

    def at(self, point: str) -> Fused:
        """Return the model with the threshold of an operating point, as :meth:`Exported.at` does."""
        refuse_int8(self.arithmetic)
        chosen = point_of(choose_point(self.curves, point, self.task, str(self.directory), exported=True))
        return replace(self, config=self.config.model_copy(update={"threshold": chosen}), moved=True)

    @property
    def size(self) -> int:
        """The side in pixels of the largest crop."""
        return max(shape.size for shape in self.shapes)

    @property
    def crop_records(self) -> tuple[CropRecord, ...]:
        """The records of the crops that the members take."""
        return tuple(record for member in self.members for record in member.crop_records)

    @cached_property
    def shapes(self) -> tuple[CropShape, ...]:
        """The crops that :meth:`score` takes of each face; members of equal crops share one."""
        return tuple(dict.fromkeys(shape for member in self.members for shape in member.shapes))

    def score(self, crops: Crops) -> NDArray[np.float64]:
        """Return the weighted sums for N faces from their crops, as :meth:`Exported.score` takes them."""
        arrays = [crops] if isinstance(crops, np.ndarray) else crops
        if len(arrays) != len(self.shapes):
            raise UserError("crops", f"must be one array per shape ({len(self.shapes)}), got {len(arrays)}")
        by_shape = dict(zip(self.shapes, arrays, strict=True))
        logits = [opened.score([by_shape[shape] for shape in opened.shapes]) for opened in self.members]
        total = np.zeros(len(logits[0]))
        for member, values in zip(self.config.members, logits, strict=True):
            total += member.weight * values / member.scale
        return total

    def is_live(self, crops: Crops) -> NDArray[np.bool_]:
        """Return for each face, as in :meth:`score`, whether its score reaches the model's threshold."""
        return reaches_threshold(self.score(crops), self.threshold)


def copy_member(member: Exported, place: Path, *, int8: bool = True) -> None:
    """Copy the files of an open export, after a check of its other graph."""
    names = [CONFIG, GRAPH, WEIGHTS, PARITY, CARD]
    if int8 and (member.directory / INT8_GRAPH).is_file() and read_config(member.directory).int8 is not None:
        Exported.open(member.directory, int8=True)
        names.append(INT8_GRAPH)
    for name in names:
        if (member.directory / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(member.directory / name, place / name)


def write_fused(directory: Path, config: FusedConfig) -> FusedConfig:
    """Write a fused model's sum into the graphs of its members, and the description with their new digests."""
    members = []
    for number, member in enumerate(config.members, 1):
        place = folder_of(directory, number)
        own = read_config(place)
        int8 = own.int8.description if own.int8 is not None and (place / INT8_GRAPH).is_file() else None
        write_export(place, own.float32.description, int8, curves=own.curves, fused=config.record())
        members.append(member.model_copy(update={"config": entry_of(place / CONFIG)}))
    config = config.model_copy(update={"members": tuple(members)})
    write_json(directory / CONFIG, config.model_dump(mode="json"))
    return config


def digest_of(members: Sequence[FusedMember], digests: Sequence[str]) -> str:
    """Return the digest of a fused model from its members' factors and the digests of their weights."""
    rows = [[digest, member.weight, member.scale] for member, digest in zip(members, digests, strict=True)]
    return digest_of_values(rows)


Model = Exported | Fused


def required_threshold(model: Model) -> Threshold:
    """Return the decision threshold of a model; refuse a model without one."""
    if model.threshold is None:
        raise UserError(str(model.directory), "has no decision threshold; export a run whose sites chose one")
    return model.threshold


def check_task(model: Model, task: str) -> None:
    """Refuse a model of another task."""
    if model.task != task:
        kinds = {"pad": "an attack detector", "recognition": "a recognition model"}
        raise UserError(str(model.directory), f"is {kinds[model.task]}; --{task} needs {kinds[task]}")


def members_of(model: Model) -> tuple[Exported, ...]:
    """Return the members of a fused model, or the only one of an exported model."""
    return model.members if isinstance(model, Fused) else (model,)


def open_export(directory: Path, *, threads: int = 1, int8: bool = False, provider: str = CPU) -> Model:
    """Open an exported or fused model."""
    kind = Fused if is_fused(directory) else Exported
    return kind.open(directory, threads=threads, int8=int8, provider=provider)


def at_points(pad: Model | None, recognition: Model | None, points: Sequence[str]) -> tuple[Model | None, Model | None]:
    """Return both models at the operating points: each point applies to the models of its task, ``eer`` to both."""
    for point in points:
        measure = parse_point(point).measure
        task = MEASURES.get(measure)
        models = {"pad": pad, "recognition": recognition}
        if task is not None and models[task] is None:
            raise UserError("--at", f"{measure} needs a model for {task}; give --{task}, or leave this point out")
        if any(model is not None and model.moved for name, model in models.items() if task in (None, name)):
            raise UserError("--at", "names two operating points of one model; give one for each")
        pad, recognition = (
            model.at(point) if model is not None and task in (None, name) else model for name, model in models.items()
        )
    return pad, recognition
