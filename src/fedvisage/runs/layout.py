"""Choice of the fastest memory layout and number format for a network, measured before a run if its recipe asks for it.

With ``runtime.layout: auto`` a step of the run's own network is timed with the channels first and last in memory, and
in both number formats if the device supports both and the recipe leaves the choice. The steps run in a child process,
so that a layout that crashes a library ends only that process. The choice is written into the run's resolved recipe, so
a resumed run, the sites of a federation and a repetition of that recipe use the same settings without a new
measurement. The cache directory stores choices by network, batch size and processor.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key, lock_directory, read_json, write_json
from fedvisage.base.parallel import LastingProcess
from fedvisage.base.progress import Say
from fedvisage.base.streams import seed_global_rng, torch_rng
from fedvisage.federation.declared import Member
from fedvisage.methods import read_method
from fedvisage.nn.compute import LAYOUTS, Compute, Layout, has_fast_bf16
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import Recipe
from fedvisage.runs import directory
from fedvisage.runs.directory import RECIPE
from fedvisage.runs.workers import is_picklable, pack_setup, unpack_setup
from fedvisage.tasks.catalogue import Setup, set_up

Precision = Literal["fp32", "bf16"]

MARGIN = 0.2
"""The share of the time that another setting must save; without it, noise would choose between equal settings."""
IMAGES = 4
"""The largest number of images in a timed step: a setting that is faster for these is faster for more."""
LEAST, REPEATS, PATIENCE = 2, 4, 0.5
"""The least and the most timed steps per setting, and the seconds after which no step beyond the least is timed."""
WAIT = 600.0
"""The longest time in seconds to wait for another process that measures the same network."""


@dataclass(frozen=True)
class ComputeSetting:
    """A memory layout and a number format."""

    layout: Layout
    precision: Precision

    def __str__(self) -> str:
        """Return layout and number format in words."""
        return f"channels {self.layout}, {self.precision}"


@dataclass(frozen=True)
class LayoutChoice:
    """The chosen setting, and the seconds that a step took in each setting."""

    layout: Layout
    precision: Precision
    seconds: dict[str, float]

    def __post_init__(self) -> None:
        """Refuse values that no measurement can have written."""
        timed = isinstance(self.seconds, dict) and all(type(value) is float for value in self.seconds.values())
        if self.layout not in LAYOUTS or self.precision not in ("fp32", "bf16") or not timed:
            raise ValueError("is no choice of a layout")


def with_earlier_choice(recipe: Recipe, out: Path) -> Recipe:
    """Return a recipe with the choice of the run in a directory, if that run exists and made one."""
    if recipe.runtime.layout != "auto" or not (out / RECIPE).is_file():
        return recipe
    try:
        runtime = recipes.load(out / RECIPE, [], read_method).runtime
    except UserError:
        return recipe  # `directory.finished` reports the fault later
    if runtime.layout is None:
        return recipe
    precision = recipe.runtime.precision
    return _with_setting(recipe, runtime.layout, runtime.precision if precision == "auto" else precision)


def choose_layout(
    setup: Setup, cache: Path, say: Say, measure: Callable[[Setup], LayoutChoice] | None = None
) -> LayoutChoice | None:
    """Return the setting for a run whose recipe leaves it open, from the cache or by ``measure``."""
    if setup.recipe.runtime.layout != "auto":
        return None
    if not is_picklable(setup.method, setup.recipe):
        return _default_choice(setup, "last", f"{setup.method.name} cannot be sent to another process to be timed", say)
    measure = measure or measure_in_child
    try:
        choice = _cached_choice(setup, cache / "layouts", measure)
    except OSError:  # the cache is not writable
        choice = measure(setup)
    except BrokenProcessPool:  # not cached: the system may have killed the process for lack of memory
        return _default_choice(setup, "first", "the process that timed both layouts crashed", say)
    times = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in sorted(choice.seconds.items()))
    say(f"layout: channels {choice.layout}, {choice.precision} ({times})")
    return choice


def _default_choice(setup: Setup, layout: Layout, reason: str, say: Say) -> LayoutChoice:
    """Return a layout without a measurement, in the default number format, and report the reason."""
    choice = LayoutChoice(layout, candidates(setup)[0].precision, {})
    say(f"layout: channels {choice.layout}, {choice.precision} ({reason})")
    return choice


def _cached_choice(setup: Setup, directory: Path, measure: Callable[[Setup], LayoutChoice]) -> LayoutChoice:
    """Return the choice that a directory stores, or measure and store it; only one process measures at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{_digest(setup)}.json"
    with lock_directory(directory, WAIT):
        choice = _read_choice(path)
        if choice is None:
            choice = measure(setup)
            write_json(path, asdict(choice))
    return choice


def with_layout(recipe: Recipe, choice: LayoutChoice | None) -> Recipe:
    """Return a recipe with the chosen setting."""
    return recipe if choice is None else _with_setting(recipe, choice.layout, choice.precision)


def measure_in_child(setup: Setup) -> LayoutChoice:
    """Measure in a child process; raise ``BrokenProcessPool`` if it crashes."""
    sent = pack_setup(setup.recipe, setup.method)
    process = LastingProcess()
    try:
        return process.submit(_measure_pickled, sent).result()
    finally:
        process.end()


def _measure_pickled(sent: bytes) -> LayoutChoice:
    recipe, method = unpack_setup(sent)
    return measure_layouts(set_up(recipe, method))


def measure_layouts(setup: Setup, clock: Callable[[], float] | None = None) -> LayoutChoice:
    """Time steps of a run's network in each setting, in turn, and return the fastest.

    Disturbances only add to the time of a step, so the least time counts. The default setting stays unless another one
    is faster by more than noise.
    """
    settings, clock = candidates(setup), clock or _clock(setup.compute.device)
    seconds, net = dict.fromkeys(settings, float("inf")), _network(setup)
    for setting in settings:
        _step(setup, setting, net)()  # the first step prepares kernels
    start_time = time.monotonic()
    for repeat in range(REPEATS):
        if repeat >= LEAST and time.monotonic() - start_time > PATIENCE:
            break
        for setting in settings:
            step, start = _step(setup, setting, net), clock()
            step()
            seconds[setting] = min(seconds[setting], clock() - start)
    usual, fastest = settings[0], min(settings, key=lambda setting: seconds[setting])
    chosen = fastest if seconds[fastest] < (1 - MARGIN) * seconds[usual] else usual
    return LayoutChoice(
        chosen.layout, chosen.precision, {str(setting): round(value, 6) for setting, value in seconds.items()}
    )


def candidates(setup: Setup) -> list[ComputeSetting]:
    """Return the settings that a recipe leaves open on a device, the default first."""
    usual: Precision = "bf16" if setup.compute.half else "fp32"
    both = setup.recipe.runtime.precision == "auto" and has_fast_bf16(setup.compute.device)
    formats = sorted({usual, *(("fp32", "bf16") if both else ())}, key=lambda number_format: number_format != usual)
    return [ComputeSetting(layout, precision) for precision in formats for layout in ("last", "first")]


def _with_setting(recipe: Recipe, layout: str, precision: str) -> Recipe:
    runtime = recipe.runtime.model_copy(update={"layout": layout, "precision": precision})
    return recipe.model_copy(update={"runtime": runtime})


def _network(setup: Setup) -> nn.ModuleDict:
    with seed_global_rng(setup.recipe.runtime.seed, "initial weights"):
        return setup.method.network(setup.recipe).train()


def _step(setup: Setup, setting: ComputeSetting, net: nn.ModuleDict) -> Callable[[], None]:
    """Return a timed step: a forward pass of the method on random images and a backward pass; no weight changes."""
    recipe, method = setup.recipe, setup.method
    compute = Compute(setup.compute.device, setting.precision == "bf16", LAYOUTS[setting.layout])
    count, size = min(recipe.training.batch.default, IMAGES), recipe.input.size
    shape = count, CHANNELS[recipe.input.colour], size, size
    pixels = torch.rand(shape, generator=torch_rng(recipe.runtime.seed, "layout", "images"))
    images = pixels.to(compute.device).contiguous(memory_format=compute.layout)

    net.zero_grad(set_to_none=True)
    compute.place(net)

    forward = method.prediction.timed_step or method.prediction.predict

    def step() -> None:
        generator = torch_rng(recipe.runtime.seed, "layout", device=compute.device.type)
        with seed_global_rng(recipe.runtime.seed, "layout", "library draws"):
            with compute.autocast():
                output: Tensor = forward(Member(net, images, generator, recipe))
            loss = output.float().square().mean()
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]

    return step


def _clock(device: torch.device) -> Callable[[], float]:
    """Return a clock: CPU time, which other programs disturb least, or the wall time after a GPU has finished."""
    if device.type == "cpu":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def _read_choice(path: Path) -> LayoutChoice | None:
    """Return an earlier choice; None if there is none or its file is invalid."""
    if not path.exists():
        return None
    try:
        return LayoutChoice(**read_json(path))
    except (UserError, TypeError, ValueError):
        return None


def _digest(setup: Setup) -> str:
    """Return a digest of everything that affects the time of a step."""
    tree, network = recipes.tree_of(setup.recipe), setup.method.network
    machine = directory.describe(setup.compute, setup.recipe.runtime.threads)
    decides: dict[str, Any] = {
        "network": f"{network.__module__}.{network.__qualname__}",
        "options": {key: value for key, value in tree["method"].items() if key != "name"},
        "input": tree["input"],
        "batch": tree["training"]["batch"]["default"],
        "precision": tree["runtime"]["precision"],
        "machine": {key: machine[key] for key in ("fedvisage", "processor", "cpu_capability", "device", "threads")},
        "torch": machine["packages"]["torch"],
    }
    return hashlib.sha256(json_key(decides).encode()).hexdigest()[:16]
