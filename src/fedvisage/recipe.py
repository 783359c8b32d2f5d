"""The recipe: a validated, frozen description of what to run. Unknown keys are errors, and errors name their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedvisage.errors import UserError

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Section(BaseModel):
    """A frozen part of a recipe in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodOptions(Section):
    """What a method's own options extend: its name."""

    name: str


class Data(Section):
    """Whose data: each entry is a prepared set's directory or a ``synth:`` line that makes one."""

    sites: dict[str, str] = Field(min_length=1)
    user: str | None = None
    user_name: str = "user"
    user_split: Literal["all", "train", "heldout", "test"] = "all"

    @field_validator("sites", mode="before")
    @classmethod
    def _names_are_text(cls, value: Any) -> Any:
        return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value

    @field_validator("sites")
    @classmethod
    def _names_are_plain(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not SITE_NAME.fullmatch(name):
                raise ValueError(f"site name {name!r}: use letters, digits, '-' and '_', at most 64")
        return value

    @model_validator(mode="after")
    def _user_is_not_a_site(self) -> Data:
        for name, entry in self.sites.items():
            if self.user is not None and entry == self.user:
                raise ValueError(f"the user's data is also the data of site {name}: a user must be unseen in training")
        if self.user_name in self.sites:
            raise ValueError(
                f"user_name {self.user_name!r} is also the name of a site; tables could not tell them apart"
            )
        return self


class Input(Section):
    """What the network looks at. Sets must have been rendered or cropped at this size: nothing is enlarged."""

    size: int = Field(256, ge=16, le=1024)
    colour: Literal["rgb+hsv", "rgb"] = "rgb+hsv"


class Local(Section):
    """How much a site trains between two aggregations: whole epochs or a number of batches."""

    epochs: int | None = Field(None, ge=1)
    batches: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _one_of_them(self) -> Local:
        if (self.epochs is None) == (self.batches is None):
            raise ValueError("give either epochs or batches")
        return self


class Optimizer(Section):
    """The sites' optimizer; ``state: fresh`` starts it anew after each aggregation, ``kept`` carries it on."""

    name: Literal["adam", "sgd"] = "adam"
    lr: float = Field(1e-2, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    clip_norm: float | None = Field(None, gt=0)
    state: Literal["fresh", "kept"] = "fresh"

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> Optimizer:
        if self.name == "adam" and self.momentum:
            raise ValueError("momentum is for sgd; adam has its own")
        return self


class Schedule(Section):
    """The learning rate's factor as a function of the round."""

    name: Literal["constant", "cosine", "step"] = "constant"
    warmup: int = Field(0, ge=0)
    floor: float = Field(0.0, ge=0, le=1)
    every: int = Field(10, ge=1)
    factor: float = Field(0.1, gt=0, le=1)


class Batch(Section):
    """Images a batch; single sites can have their own number."""

    default: int = Field(64, ge=2)
    per_site: dict[str, Annotated[int, Field(ge=2)]] = {}

    def of(self, site: str) -> int:
        """Return the batch size of this site."""
        return self.per_site.get(site, self.default)


class Augment(Section):
    """Random changes of training images: probabilities and ranges; everything off by default."""

    flip: float = Field(0.0, ge=0, le=1)
    shift: float = Field(0.0, ge=0, le=0.3)
    brightness: float = Field(0.0, ge=0, le=1)
    contrast: float = Field(0.0, ge=0, le=1)
    saturation: float = Field(0.0, ge=0, le=1)
    hue: float = Field(0.0, ge=0, le=0.5)


class EarlyStop(Section):
    """Stop when the sites' held-out EER has not improved for so many evaluated rounds."""

    patience: int = Field(ge=1)


class Training(Section):
    """How the federation trains."""

    rounds: int = Field(ge=1)
    local: Local = Local(epochs=3)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    augment: Augment = Augment()
    start: str | None = None
    early_stop: EarlyStop | None = None

    @field_validator("batch", mode="before")
    @classmethod
    def _number_is_default(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, int) else value


class Federation(Section):
    """Who takes part in a round, who drops out (simulated), and how many must answer."""

    participation: float = Field(1.0, gt=0, le=1)
    offline: float = Field(0.0, ge=0, le=1)
    offline_policy: Literal["any-site", "one-site"] = "any-site"
    quorum: int = Field(1, ge=1)
    give_up_after: int = Field(10, ge=1)


class Evaluation(Section):
    """How the finished model is judged; nothing here may depend on the user's labels unless its name says so."""

    threshold: Literal[
        "source-eer", "source-bpcer-1pct", "source-bpcer-5pct", "source-bpcer-10pct", "fixed", "target-eer"
    ] = "source-eer"
    level: Literal["frame", "video"] = "frame"
    every: int = Field(0, ge=0)
    keep: Literal["last", "best"] = "last"
    batch: int = Field(64, ge=1)
    resamples: int = Field(1000, ge=0)
    features: int = Field(0, ge=0)


class Runtime(Section):
    """What the numbers depend on besides the recipe proper."""

    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    threads: int = Field(2, ge=1, le=256)
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    checkpoint_every: int = Field(1, ge=1)


class Recipe(Section):
    """All that a run depends on."""

    title: str = ""
    method: MethodOptions
    data: Data
    input: Input = Input()
    training: Training
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        unknown = sorted(set(self.training.batch.per_site) - set(self.data.sites))
        if unknown:
            raise ValueError(f"training.batch.per_site names {', '.join(unknown)}, not among data.sites")
        watches = self.evaluation.keep == "best" or self.training.early_stop is not None
        if watches and self.evaluation.every == 0:
            raise ValueError(
                "keep: best and early_stop need evaluation.every ≥ 1, which scores held-out images at the sites"
            )
        if self.input.size < 32 and self.runtime.precision != "fp32":
            raise ValueError(
                "input.size below 32 needs runtime.precision: fp32; bf16 convolutions on such maps are unsound"
            )
        asked = max(1, round(self.federation.participation * len(self.data.sites)))
        if self.federation.quorum > asked:
            raise ValueError(f"federation.quorum is {self.federation.quorum}, but a round asks {asked} sites")
        if self.evaluation.features and self.data.user is None:
            raise ValueError("evaluation.features compares the sites with a user; name data.user")
        return self


def load(path: Path, overrides: Sequence[str], options: Mapping[str, type[MethodOptions]]) -> Recipe:
    """Read a recipe file, apply ``key=value`` overrides and validate it against the options of the known methods."""
    tree = read_tree(path)
    for override in overrides:
        apply(tree, override)
    return validate(tree, options)


def read_tree(path: Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(str(path), "must be a mapping of sections, such as method, data and training")
    return tree


def apply(tree: dict[str, Any], override: str) -> None:
    """Set one ``dotted.key=value`` in a recipe tree; the value is read as YAML."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise UserError(override, "an override is written key=value, such as training.rounds=5")
    _write_out(tree)
    node: Any = tree
    *parents, last = key.strip().split(".")
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise UserError(override, f"{name} is not a section of the recipe")
    try:
        node[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(override, f"the value is not YAML: {' '.join(str(error).split())}") from error


def _write_out(tree: dict[str, Any]) -> None:
    """Turn the two short forms, ``method: NAME`` and ``batch: NUMBER``, into sections that overrides can reach into."""
    if isinstance(tree.get("method"), str):
        tree["method"] = {"name": tree["method"]}
    training = tree.get("training")
    if isinstance(training, dict) and isinstance(training.get("batch"), int):
        training["batch"] = {"default": training["batch"]}


def validate(tree: Mapping[str, Any], options: Mapping[str, type[MethodOptions]]) -> Recipe:
    """Turn a tree into a recipe, or say what is wrong where."""
    section = tree.get("method")
    section = {"name": section} if isinstance(section, str) else section
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or name not in options:
        raise UserError("recipe.method.name", f"{name!r} is no method; choose one of {', '.join(sorted(options))}")
    try:
        method = options[name].model_validate(section)
    except ValidationError as error:
        raise _mistake(error, "recipe.method") from error
    try:
        return Recipe.model_validate({**tree, "method": method})
    except ValidationError as error:
        raise _mistake(error, "recipe") from error


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain values, each default written out."""
    tree = recipe.model_dump(mode="json")
    tree["method"] = recipe.method.model_dump(mode="json")
    return tree


def text_of(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML."""
    return yaml.safe_dump(tree_of(recipe), sort_keys=False, allow_unicode=True)


def _mistake(error: ValidationError, root: str) -> UserError:
    problems = []
    for item in error.errors():
        place = ".".join([root, *(str(part) for part in item["loc"])])
        message = "unknown key" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        given = item.get("input")
        got = f", got {given!r}" if isinstance(given, str | int | float) and item["type"] != "extra_forbidden" else ""
        problems.append((place, f"{message}{got}"))
    place, message = problems[0]
    more = "".join(f"; {p}: {m}" for p, m in problems[1:4])
    return UserError(place, message + more)
