"""What an exported directory says of its model: `config.json`, and the same again as metadata inside of each graph.

The directory may come from anywhere: what is not of this form is refused, and nothing in it is shown as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedvisage.data.crops import CropRecord
from fedvisage.data.manifest import SIZE_LIMIT, FileEntry
from fedvisage.errors import UserError
from fedvisage.files import json_key, parse_json, read_text

CONFIG, CARD, PARITY, WEIGHTS = "config.json", "README.md", "parity.json", "model.safetensors"
GRAPH, INT8_GRAPH = "onnx/model.onnx", "onnx/model_int8.onnx"
INPUT: Final = "images"
OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {"pad": ("score", "logit"), "recognition": ("embedding",)}

AGAIN = "export the model again"
_KEY = "fedvisage."
_CONFIG_LIMIT = 1 << 20

Arithmetic = Literal["float32", "int8"]
Beside = Literal["model.safetensors", "parity.json"]
BESIDE: Final[tuple[Beside, ...]] = get_args(Beside)
"""Files beside the graphs whose digests `config.json` records; the model card is not one, because owners edit it."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be shown")
    return text


Word = Annotated[str, Field(max_length=200), AfterValidator(_printable)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class OperatingPoint(_Strict):
    """A threshold, the rule that chose it, and its error rates at the sites.

    It is a logit for attack detection, and a cosine for recognition.
    """

    value: float = Field(ge=-100, le=100)
    rule: Word
    far: float | None = Field(default=None, ge=0, le=1)
    frr: float | None = Field(default=None, ge=0, le=1)


class Adapted(_Strict):
    """What a graph was adapted from, how, and to how many images.

    ``gated`` is entropy minimisation behind a gate, where torch is; ``statistics`` are those of BatchNorm alone.
    """

    from_sha256: Digest
    how: Literal["gated", "statistics"]
    images: int = Field(ge=1)


class Description(_Strict):
    """What a graph is.

    Attributes:
        format: the form of this description.
        task: attack detection or recognition.
        method: how the model was trained.
        member: whose model it is, where a run has one a site.
        size: side of a crop in pixels.
        arithmetic: float32, or int8 after quantisation.
        model_sha256: digest of the weights.
        recipe_sha256: digest of the recipe that the run followed.
        threshold: where decisions change; none, if the sites could choose none.
        crop: how a device cuts faces out, with the detector's digest.
        trained_on: how the crops were made that the model was trained on, as far as that is known.
        drawn: whether the method draws, and the graph is the mean of all draws.
        adapted: from what it was adapted, and to what; none, if it is the model that was trained.
        version: of this software.
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
    adapted: Adapted | None = None
    version: Word

    def metadata(self) -> dict[str, str]:
        """Return the texts that stand inside of the graph."""
        left_out = {"adapted"} if self.adapted is None else set()  # which older graphs do not have
        values = self.model_dump(mode="json", exclude=left_out)
        return {f"{_KEY}{name}": json_key(value) for name, value in values.items()}


class Graphs(_Strict):
    """A graph's file, and what it is."""

    file: FileEntry
    description: Description


class Config(_Strict):
    """The content of `config.json`: the graphs of one model, and the files beside them.

    ``files`` is empty in exports of version 0.1, whose weights and comparison are not compared with anything.
    """

    library_name: Literal["fedvisage"] = "fedvisage"
    float32: Graphs
    int8: Graphs | None = None
    files: dict[Beside, FileEntry] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _graphs_of_one_model(self) -> Config:
        if self.int8 is not None:
            apart = {"arithmetic", "threshold"}
            one, other = (graph.description.model_dump(exclude=apart) for graph in (self.float32, self.int8))
            if one != other:
                raise ValueError("its two graphs are of different models")
        return self


def is_export(directory: Path) -> bool:
    """Tell whether a directory holds an exported model rather than a run."""
    return (directory / CONFIG).is_file() and (directory / GRAPH).is_file()


def read_config(directory: Path) -> Config:
    """Read and check the `config.json` of an exported directory."""
    path = directory / CONFIG
    if not path.exists():
        raise UserError(str(path), "does not exist; give a directory that `fedvisage export` wrote")
    try:
        return Config.model_validate_json(json_key(parse_json(read_text(path, _CONFIG_LIMIT))))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise UserError(str(path), f"is not the description of an exported model ({place}: {first['msg']}); "
                        f"{AGAIN}") from None  # fmt: skip
    except ValueError as error:
        raise UserError(str(path), f"is not whole JSON ({str(error)[:200]}); {AGAIN}") from None


def check_metadata(path: Path, found: Mapping[str, str], expected: Description) -> None:
    """Refuse a graph that says another thing of itself than the directory says of it."""
    for key, value in expected.metadata().items():
        if found.get(key) != value:
            name = key.removeprefix(_KEY)
            raise UserError(str(path), f"says another {name} inside than {CONFIG} does; {AGAIN}")


def as_values(config: Config) -> dict[str, Any]:
    """Return the content of `config.json`, as it is written."""
    return config.model_dump(mode="json", exclude_none=False)
