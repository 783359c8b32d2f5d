"""Runs small enough for tests: sets of noise with a weak sign of the class, narrow networks, few rounds."""

import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock
from rich.console import Console

from fedvisage import recipe as recipes
from fedvisage.base.files import write_atomically
from fedvisage.base.progress import Reporter
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.faces.align import PLACES
from fedvisage.faces.align import SIDE as SIDE_OF_PLACES
from fedvisage.federation.method import Method
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.record.store import CHECKPOINTS, read_sealed, write_sealed
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.methods import METHODS, reader_of
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.recipe import Recipe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.runs.workers import Wire
from fedvisage.tasks.catalogue import task_of
from fedvisage.tasks.opened import RunData

THREADS = int(os.environ.get("FEDVISAGE_TEST_THREADS", "1"))
SIZE = 32
SITES = ("A", "B", "C")
SPECIES = ("bonafide", "print", "replay")
ROUNDS = 3
NETWORK = {"width": 8, "depth": 2, "heads": 2, "stem": 8, "stages": [1, 1, 1]}
FACES = {"name": "sphere20", "embedding": 16}
"""Sizes of narrow networks, and further ones of networks for faces; a method uses the sizes that its network has."""

FEW_PEOPLE = {"minimum": 2, "delta": 0.01}
"""Options of PrivacyFace's methods for sites with three people."""

FEW_FACES = {"faces": "M subjects=2 videos=1 frames=1"}
"""Options of FedDF for a short rendering."""

ARCHITECTURES = {"fedstackfpad": "test_vit"}
"""For methods with a network of timm's, one that timm has for tests."""

NEEDS: Mapping[str, Mapping[str, Any]] = {"fednova": {"name": "sgd", "lr": 0.05}}
"""The sites' optimizer, for methods that require one kind."""

Sets = Mapping[str, Path]
"""The fixture ``sets``: paths of sets by the names of sites and of the target."""

NewRun = Callable[[Mapping[str, Any]], Path]
"""The fixture ``new_run``: trains with a recipe of plain values, and returns the run's directory."""

DETERMINISTIC_FILES = ("model.safetensors", "model.json", "ledger.jsonl", "scores.csv", "recipe.yaml")
"""The files of a run in which every byte follows from the recipe."""


def misalignment(points: np.ndarray, size: int) -> float:
    """Return the largest distance of five points from their places in an aligned crop, as a share of its side."""
    return float(np.linalg.norm(points - PLACES * (size / SIDE_OF_PLACES), axis=1).max() / size)


def make_set(
    path: Path,
    name: str,
    seed: int,
    *,
    subjects: int = 6,
    species: tuple[str, ...] = SPECIES,
    size: int = SIZE,
    frames: int = 2,
) -> Path:
    """Write a set in which prints are darker; every name in it is marked as one that must not leave its site."""
    rng = np.random.default_rng(seed)
    with Writer(path, name=name, size=size, source="noise", depth=True) as out:
        for subject in range(subjects):
            for kind in species:
                images = rng.integers(40, 200, (frames, size, size, 3)) - 25 * (kind == "print")
                out.add(
                    images.astype(np.uint8),
                    label=[int(kind == "bonafide")] * frames,
                    species=[kind] * frames,
                    subject=[f"secret-subject-{name}{subject}"] * frames,
                    video=[f"secret-video-{name}{subject}-{kind}"] * frames,
                    frame=list(range(frames)),
                    split=["train" if subject < 2 * subjects // 3 else "heldout"] * frames,
                    item=[f"secret-item/{name}/{subject}/{kind}/{frame}.png" for frame in range(frames)],
                    depth=(rng.integers(0, 255, (frames, 32, 32)) * (kind == "bonafide")).astype(np.uint8),
                )
    return path


def copy_set(
    source: Path,
    to: Path,
    *,
    chosen: Any = slice(None),
    depth: bool = True,
    further: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write the chosen pictures of a set to another place, with changed images or columns."""
    whole = PreparedSet.open(source)
    names = ["label", "species", "subject", "video", "frame", "split", "item"]
    names += ["group"] if whole.rows.group is not None else []
    columns = {name: getattr(whole.rows, name)[chosen] for name in names}
    if depth and whole.depth is not None:
        columns["depth"] = whole.depth[chosen]
    with Writer(
        to,
        name=to.name,
        size=whole.size,
        source="copy",
        depth="depth" in columns,
        identities="group" in columns,
        further=tuple(further or ()),
    ) as out:
        out.add(**({"images": whole.images[chosen]} | columns | changes), further=further)
    return to


def make_people(
    path: Path, name: str, seed: int, *, identities: int = 3, images: int = 5, test: int = 2, heldout: int = 0
) -> Path:
    """Write an identity set in which each person has a colour; its names must not leave their site, either."""
    rng = np.random.default_rng(seed)
    with Writer(path, name=name, size=SIZE, source="noise", identities=True) as out:
        for person in range(identities):
            colour, who = rng.integers(40, 200, (1, 1, 1, 3)), f"secret-person-{name}{person}"
            splits = ["heldout"] * images if person >= identities - heldout else ["test"] * test
            out.add(
                (colour + rng.integers(-30, 30, (images, SIZE, SIZE, 3))).astype(np.uint8),
                label=[1] * images,
                species=["bonafide"] * images,
                subject=[who] * images,
                video=[f"secret-video-{who}-{image}" for image in range(images)],
                frame=[0] * images,
                split=(splits + ["train"] * images)[:images],
                item=[f"secret-item/{who}/{image}.png" for image in range(images)],
                group=[f"group-{person % 2}"] * images,
            )
    return path


def make_sets(root: Path) -> dict[str, Path]:
    """Write sets for attack detection of three sites and a target, and identity sets for recognition beside them."""
    for seed, name in enumerate((*SITES, "U")):
        make_people(root / f"people-{name}", name, seed)
    make_people(root / "people-P", "P", 9, identities=6, test=0, heldout=2)
    return {name: make_set(root / name, name, seed) for seed, name in enumerate((*SITES, "U"))}


def method_named(method: str | Method) -> Method:
    """Return the method with a name, or the method itself."""
    return METHODS[method] if isinstance(method, str) else method


def site_sets(sets: Mapping[str, Path], method: str | Method) -> dict[str, Path]:
    """Return the sites' sets for a method's task."""
    return {name: set_of_task(sets[name], method) for name in SITES}


def set_of_task(path: Path, method: str | Method) -> Path:
    """Return a set, or the identity set beside it if the method is for recognition."""
    return path.with_name(f"people-{path.name}") if is_recognition(method) else path


def is_recognition(method: str | Method) -> bool:
    """Tell whether a method is for recognition."""
    return method_named(method).task == "recognition"


def tree(sets: Mapping[str, Path], method: str | Method = "fedpad", **changes: Any) -> dict[str, Any]:
    """Return a recipe of plain values; ``training__rounds=2`` changes one of them."""
    fields = method_named(method).options.model_fields
    recipe: dict[str, Any] = {
        "method": {"name": method_named(method).name},
        "data": {
            "sites": {name: str(path) for name, path in site_sets(sets, method).items()},
            "target": str(set_of_task(sets["U"], method)),
            "target_name": "U",
        },
        "input": {"size": SIZE},
        "training": {
            "rounds": ROUNDS,
            "local": {"batches": 2},
            "batch": 8,
            "optimizer": {"lr": 0.01},
            "augment": {"flip": 0.5},
        },
        "evaluation": {"every": 1, "resamples": 0},
        "runtime": {"threads": THREADS, "precision": "fp32", "device": "cpu"},
    }
    recipe["training"]["optimizer"] |= NEEDS.get(recipe["method"]["name"], {})
    if method_named(method).releases:
        recipe["privacy"] = {"epsilon": 1000.0, "delta": 0.5, "noise": "derived"}
    recipe["method"] |= {key: value for key, value in (FEW_PEOPLE | FEW_FACES).items() if key in fields}
    if is_recognition(method):
        recipe["data"] |= {"public": str(set_of_task(sets["U"].with_name("P"), method)), "public_identities": 4}
        recipe["input"]["colour"] = "rgb"
        recipe["training"]["pretrain"] = {"epochs": 1, "batch": 8, "optimizer": {"name": "adam", "lr": 0.001}}
    network = fields.get("network")
    if network is not None:
        sizes = getattr(network.annotation, "model_fields", {})
        sized = {key for key, field in sizes.items() if field.default is not None}  # unset sizes stay unset
        recipe["method"]["network"] = {key: value for key, value in (NETWORK | FACES).items() if key in sized}
    if recipe["method"]["name"] in ARCHITECTURES:
        recipe["method"]["network"] = {"arch": ARCHITECTURES[recipe["method"]["name"]]}
    for key, value in changes.items():
        *parents, last = key.split("__")
        section = recipe
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return recipe


def shortest_recipe(name: str, **options: Any) -> Recipe:
    """Return the shortest recipe with a method's options, for tests of one function of the method."""
    method = {"name": name, **options}
    return recipe_of({"method": method, "data": {"sites": {"A": "nowhere"}}, "training": {"rounds": 1}})


def recipe_of(content: Mapping[str, Any], method: Method | None = None) -> Recipe:
    """Validate a recipe of plain values, with the options of the shipped methods or of the given one."""
    return recipes.validate(content, reader_of(method))


def write_study(study: Mapping[str, Any], folder: Path) -> Path:
    """Write a study of plain values, and return its file."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(dict(study), sort_keys=False))
    return path


def quiet_reporter() -> Reporter:
    """Return a reporter without output."""
    return Reporter(Console(file=io.StringIO()), quiet=True)


def open_run_data(content: Mapping[str, Any], cache: Path, method: Method | None = None) -> RunData:
    """Open the data of a recipe of plain values."""
    recipe = recipe_of(content, method)
    method = method or METHODS[recipe.method.name]
    return task_of(method).open(recipe, method, cache, discard)


def discard(text: str) -> None:
    """Ignore a message."""


def run_toy(
    content: Mapping[str, Any],
    out: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    method: Method | None = None,
    wire: Wire = LocalTransport,
) -> Metrics:
    """Run a recipe of plain values and return its figures; a method or a transport can be passed in.

    Tests interrupt a run by a method whose server program raises, and resume it with the method itself. A run refuses
    to be resumed with another method, so the record of the method is removed before.
    """
    if resume:
        forget_method(out)
    cache, recipe = out.parent / "cache", recipe_of(content, method)
    return run(Request(recipe, out, cache, method, resume, wire), reporter or quiet_reporter())


def run_under_same_name(other: Path, content: Mapping[str, Any], out: Path, **options: Any) -> Metrics:
    """Run a recipe under the random name of another run, so that files of private state have equal bytes."""
    out.mkdir()
    for name in ("recipe.yaml", "environment.json"):
        shutil.copyfile(other / name, out / name)
    return run_toy(content, out, resume=True, **options)


def forget_method(out: Path) -> None:
    """Remove the record of a method that was passed in from a run's directory, and its digest from the checkpoints.

    The record is removed last, so that a process killed in between starts over.
    """
    path = out / "environment.json"
    if path.exists() and '"method"' in path.read_text():
        environment = json.loads(path.read_text())
        del environment["method"]
        text = json.dumps(environment).encode()
        for checkpoint in (out / CHECKPOINTS).glob("*.safetensors"):
            tensors, values = read_sealed(checkpoint, "")
            values["digests"][path.name] = hashlib.sha256(text).hexdigest()
            write_sealed(checkpoint, tensors, values)
        write_atomically(path, text)


def run_toy_once(content: Mapping[str, Any], out: Path) -> Metrics:
    """Return the figures of a recipe's run in ``out``, copied if an earlier test ran the recipe.

    This is for tests that compare runs of different recipes. Tests of determinism call :func:`run_toy`, which always
    trains. A recipe names its sets by paths of this test run, and so the copies end with it. Workers share them.
    """
    digest = hashlib.sha256(recipes.text_of(recipe_of(content)).encode()).hexdigest()
    stored = Path(content["data"]["target"]).parent.with_name("toy-runs") / digest
    stored.parent.mkdir(exist_ok=True)
    with FileLock(stored.with_suffix(".lock")):
        if stored.exists():
            shutil.copytree(stored, out)
        else:
            run_toy(content, out)
            shutil.copytree(out, stored)
    return read_metrics(out / "metrics.json")


def make_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Have the first worker that needs a directory make it; an interrupted one is made again."""
    unfinished = place.with_name(f"{place.name}-unfinished")
    with FileLock(place.with_name(f"{place.name}.lock")):
        if not place.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(place)
    return place


def weights(out: Path) -> bytes:
    """Read the bytes of a run's final model."""
    return (out / "model.safetensors").read_bytes()


def deterministic_files(out: Path, *, names: tuple[str, ...] = DETERMINISTIC_FILES) -> dict[str, bytes]:
    """Return the content of a finished run that must not depend on the time, the machine or interruptions.

    The ledger of an interrupted run counts without the lines and bytes of repeated exchanges.
    """
    metrics = json.loads((out / "metrics.json").read_text())
    for direction in ("bytes_up", "bytes_down"):
        metrics[direction] -= metrics.pop(f"repeated.{direction}", 0)
    rounds = read_lines(out / "rounds.jsonl")
    for row in (metrics, *rounds):
        row.pop("seconds")
    metrics.pop("peak_rss_mb")
    files = {name: (out / name).read_bytes() for name in names}
    if "ledger.jsonl" in files:
        files["ledger.jsonl"] = sent_once(out)
    return files | {"metrics": json.dumps(metrics).encode(), "rounds": json.dumps(rounds).encode()}


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory by their paths."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def sent_once(out: Path) -> bytes:
    """Return a run's ledger without the lines that an interruption had repeated."""
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if not json.loads(line).get("repeated"))


def remove_seal(run: Path) -> Path:
    """Remove the seal of a finished run, as earlier versions wrote none, and return the run."""
    figures = json.loads((run / "metrics.json").read_text())
    del figures["sealed"]
    (run / "metrics.json").write_text(json.dumps(figures))
    (run / "seal.json").unlink()
    return run


def scores_of(run: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return scores and labels by member."""
    rows = list(csv.DictReader((run / "scores.csv").open()))
    models = sorted({row["model"] for row in rows})
    return {
        name: {
            "logit": np.array([float(row["logit"]) for row in rows if row["model"] == name]),
            "label": np.array([int(row["label"]) for row in rows if row["model"] == name]),
        }
        for name in models
    }
