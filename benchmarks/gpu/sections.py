"""The sections of ``python -m benchmarks gpu``. Each runs in a process of its own and appends one JSON line per row."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.papers import (
    PAPERS,
    Place,
    Precision,
    batches_of,
    plain_compute,
    plain_steps,
    recipe_of,
    set_of,
    site_of,
    take_turn,
)
from fedvisage.base.errors import UserError
from fedvisage.base.progress import Reporter
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.method import Home
from fedvisage.federation.record.store import SiteStore, StateCache
from fedvisage.federation.site_worker import SiteWorker, Workspace
from fedvisage.federation.wire.message import Order, digest_of, state_of
from fedvisage.methods import METHODS
from fedvisage.nn.compute import Layout, report_nondeterminism
from fedvisage.runs.directory import describe
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import set_up

REPEATS, SECONDS = 3, 6.0
"""A timed side is repeated this often, or until this time is used up."""
GIB = float(1 << 30)

Row = dict[str, Any]
Rows = Iterator[Row]


def row(what: str, measured: str, holds: bool | None = None, **values: Any) -> Row:
    """Return a row: a text for the table, the outcome of a check, and numbers for programs."""
    return {"what": what, "measured": measured, "holds": holds, **values}


# The machine.


def machine(place: Place) -> Rows:
    """Describe the machine, and measure its copies and its matrix products."""
    compute = set_up(recipe_of("fedpad", place), METHODS["fedpad"]).compute
    values: dict[str, Any] = describe(compute, place.threads)
    values |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if compute.device.type == "cuda":
        properties = torch.cuda.get_device_properties(compute.device)
        values |= {"memory_gib": properties.total_memory / GIB, "capability": [properties.major, properties.minor]}
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader"]
        try:
            values["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            values["nvidia_smi"] = str(error)
    yield row("machine", f"{values['device']}, torch {torch.__version__}, CUDA {values['cuda']}", **values)
    yield from _copies(place, compute.device)
    yield from _products(place, compute.device)


def _copies(place: Place, device: torch.device) -> Rows:
    size = 1 << (16 if place.tiny else 28)
    for name, source in (("pageable", torch.zeros(size, dtype=torch.uint8)), ("pinned", None)):
        if source is None:
            if device.type != "cuda":
                return
            source = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        seconds = median(_times(place, partial(source.to, device, non_blocking=True)))
        yield row(f"copies to the device, {name} memory", f"{size / seconds / 1e9:.1f} GB/s", seconds=seconds)


def _products(place: Place, device: torch.device) -> Rows:
    size = 64 if place.tiny else 8192
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.rand(size, size, generator=generator).to(device) for _ in range(2))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        one, other = left.to(dtype), right.to(dtype)
        seconds = median(_times(place, partial(torch.matmul, one, other)))
        yield row(f"matrix product of {size}, {name}", f"{2 * size**3 / seconds / 1e12:.2f} TFLOP/s", seconds=seconds)


def _times(place: Place, work: Callable[[], object]) -> list[float]:
    """Return the seconds of some repetitions of a work, after one that warms up."""
    seconds: list[float] = []
    for number in range((1 if place.tiny else REPEATS) + 1):
        place.synchronize()
        began = time.perf_counter()
        work()
        place.synchronize()
        if number:
            seconds.append(time.perf_counter() - began)
        if sum(seconds) > SECONDS:
            break
    return seconds


# Steps of the papers' networks.


def steps(place: Place, name: str) -> Rows:
    """Time a site's turn and plain steps with the same network, in both number formats and layouts.

    If the paper's batch does not fit, half of it is tried, and so on.
    """
    batch = PAPERS[name].sizes(place.tiny).batch
    while True:
        try:
            yield from (_run_steps if name == "fedsis" else _turn_steps)(place, name, batch)
            return
        except (UserError, torch.OutOfMemoryError) as error:
            if batch < 4 or (isinstance(error, UserError) and error.place != "recipe.training.batch"):
                raise
            yield row(f"{name}, batch {batch}", f"does not fit: {str(error)[:80]}")
            batch //= 2
        _free()


def _turn_steps(place: Place, name: str, batch: int) -> Rows:
    sizes = PAPERS[name].sizes(place.tiny)
    rates: dict[str, float] = {}
    for precision in ("fp32", "bf16"):
        site = site_of(name, recipe_of(name, place, precision, batch=batch), place)
        batches = batches_of(name, site)[: None if name == "fedfr" else sizes.batches]
        limit = sizes.batches
        images = sum(len(one.labels) for one in batches[:limit])
        rates[precision] = yield from _timed(
            place, name, f"fedvisage, {precision}", images, partial(take_turn, name, site)
        )
        yield from _plain_sides(place, name, site, batches[:limit], precision, images, rates[precision])
        del site, batches
        _free()


def _plain_sides(
    place: Place, name: str, site: Any, batches: Any, precision: Precision, images: int, house: float
) -> Rows:
    """Time plain steps in both layouts and, in fp32, with PyTorch's default of TF32 in convolutions."""
    sides: list[tuple[Layout, bool]] = [("first", False), ("last", False)]
    if precision == "fp32" and place.device.startswith("cuda"):
        sides.append(("last", True))
    best = 0.0
    for layout, tf32 in sides:
        torch.backends.cudnn.allow_tf32 = tf32
        work = plain_steps(name, site, plain_compute(site, precision, layout), batches)
        title = f"plain, {precision}, channels {layout}{', TF32' if tf32 else ''}"
        rate = yield from _timed(place, name, title, images, work)
        best = best if tf32 else max(best, rate)
        del work
        _free()
    torch.backends.cudnn.allow_tf32 = False
    yield row(f"{name}, {precision}: fedvisage against plain", f"{house / best:.2f}", ratio=house / best)


def _timed(place: Place, name: str, title: str, images: int, work: Callable[[], object]) -> Generator[Row, None, float]:
    """Time a side, yield its row with its peak memory, and return its images per second."""
    cuda = place.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = _times(place, work)
    rate = images / median(seconds)
    peak = torch.cuda.max_memory_allocated() / GIB if cuda else None
    memory = "" if peak is None else f", {peak:.1f} GiB"
    spread = f"{images / max(seconds):.0f} to {images / min(seconds):.0f}"
    yield row(
        f"{name}: {title}", f"{rate:.1f} images/s ({spread}){memory}", images=images, seconds=seconds, peak_gib=peak
    )
    return rate


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Rounds(Reporter):
    """A quiet reporter that keeps the time at the end of each round."""

    def __init__(self, place: Place) -> None:
        """Keep no time yet."""
        super().__init__(Console(quiet=True), quiet=True)
        self.ends, self._place = list[float](), place

    def ended_round(self, row: Mapping[str, Any], total: int) -> None:
        """Keep the time, after the device has finished."""
        self._place.synchronize()
        self.ends.append(time.perf_counter())


def _run_steps(place: Place, name: str, batch: int) -> Rows:
    """Time the rounds of a run, because split learning needs its server; the first round warms up."""
    sizes = PAPERS[name].sizes(place.tiny)
    for precision in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory(dir=place.folder) as out:
            recipe = recipe_of(name, place, precision, batch=batch, data=_sites(name, place, ("site",)))
            rounds = Rounds(place)
            run(Request(recipe, Path(out) / "run", place.folder / "cache"), rounds)
        seconds = [end - begin for begin, end in zip(rounds.ends, rounds.ends[1:], strict=False)]
        images = batch * sizes.batches
        house = images / median(seconds)
        yield row(
            f"{name}: fedvisage, {precision}, whole rounds", f"{house:.1f} images/s", seconds=seconds, images=images
        )
        site = site_of(name, recipe_of(name, place, precision, batch=batch), place)
        yield from _plain_sides(place, name, site, batches_of(name, site), precision, images, house)
        del site
        _free()


def _sites(name: str, place: Place, kinds: tuple[str, ...]) -> dict[str, Any]:
    return {"sites": {kind: str(set_of(name, place, kind)) for kind in kinds}}


# The loader against the device.


def loader(place: Place) -> Rows:
    """Compare the images per second that FedPAD's loader prepares, that a step trains, and that both reach together."""
    tree = recipe_of("fedpad", place, "bf16")
    augment = tree.training.augment.model_copy(update={"flip": 0.5, "shift": 0.05, "brightness": 0.1, "contrast": 0.1})
    recipe = tree.model_copy(update={"training": tree.training.model_copy(update={"augment": augment})})
    site = site_of("fedpad", recipe, place)
    batches = batches_of("fedpad", site)
    images = sum(len(batch.labels) for batch in batches)
    alone = yield from _timed(place, "fedpad, bf16", "loader alone", images, lambda: batches_of("fedpad", site))
    work = plain_steps("fedpad", site, plain_compute(site, "bf16", "last"), batches)
    card = yield from _timed(place, "fedpad, bf16", "steps alone", images, work)
    both = yield from _timed(place, "fedpad, bf16", "a site's turn", images, lambda: take_turn("fedpad", site))
    slower = min(alone, card)
    yield row("loader: share of the slower side that a turn reaches", f"{both / slower:.2f}", share=both / slower)


# Private state between visits.


class CopiesToCpu(TorchDispatchMode):
    """Counts the bytes that operations copy from a device to the CPU."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count copies."""
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            source, target = args[1], args[0]
        else:
            source, target = next((arg for arg in args if isinstance(arg, torch.Tensor)), None), result
        if isinstance(source, torch.Tensor) and source.device.type != "cpu":
            if func is torch.ops.aten._local_scalar_dense.default:
                self.bytes += source.nbytes
            elif isinstance(target, torch.Tensor) and target.device.type == "cpu":
                self.bytes += target.nbytes
        return result


def state(place: Place) -> Rows:
    """Let two sites of FedGPAD visit in turn; their private state stays on the device, and commits have equal bytes."""
    recipe = recipe_of("fedgpad", place, "fp32", data=_sites("fedgpad", place, ("site", "public")), rounds=100)
    workspace = Workspace(METHODS["fedgpad"], recipe, set_up(recipe, METHODS["fedgpad"]).compute)
    lent = state_of(workspace.net, *METHODS["fedgpad"].parts_at(Home.LENT))
    turn = 0
    caches = {
        "on the device": StateCache(),
        "on the CPU": StateCache(free_on_device=lambda device: 0),
        "in files": StateCache(room=0, free_on_device=lambda device: 0),
    }
    device = workspace.compute.device
    for kept, state_cache in caches.items():
        sites = []
        for kind in ("site", "public"):
            view = View.of(PreparedSet.open(set_of("fedgpad", place, kind)), "train")
            store = SiteStore(place.folder / "state" / kept / kind, state_cache)
            sites.append(SiteWorker(kind, view, view, store, workspace))
        copies, seconds = [], []
        for _ in range(1 + (1 if place.tiny else REPEATS)):
            turn += 1
            for site in sites:
                site.execute(Order("train", turn, dict(lent), turn))
                place.synchronize()
                counter, began = CopiesToCpu(), time.perf_counter()
                with counter:
                    site.end_visit()
                place.synchronize()
                seconds.append(time.perf_counter() - began)
                copies.append(counter.bytes)
        stored = sites[0].store.load()
        places = sorted({value.device.type for value in stored.values()})
        size = sum(value.nbytes for value in stored.values()) / 1e6
        holds = places == [device.type] and sum(copies) == 0 if kept == "on the device" else None
        yield row(
            f"state of FedGPAD, {kept}: end of a visit",
            f"{1000 * median(seconds):.1f} ms for {size:.0f} MB, {sum(copies) / 1e6:.0f} MB copied, held on {places}",
            holds,
            seconds=seconds,
            copied=copies,
        )
        if kept == "on the device":
            yield _same_commit(place, sites[0])
        for site in sites:
            site.store.state_cache.clear(site.store.directory)


def _same_commit(place: Place, site: SiteWorker) -> Row:
    """Compare the committed bytes of state on the device with those of the same state in a file."""
    other = SiteStore(place.folder / "state" / "other", StateCache(room=0, free_on_device=lambda device: 0))
    other.save(site.store.load())
    contents = []
    for store in (site.store, other):
        store.commit(1)
        contents.append(store.committed_content())
    return row(
        "state: committed bytes, on the device and in a file", f"{len(contents[0])} bytes", contents[0] == contents[1]
    )


# Two sites and two workers on one device.


def workers(place: Place) -> Rows:
    """Train two sites of FedPAD one after another, and in two processes on the same device."""
    models, seconds = [], []
    for count in (1, 2):
        data = _sites("fedpad", place, ("site", "public"))
        recipe = recipe_of("fedpad", place, "fp32", data=data, deterministic=True, workers=count)
        out, rounds = place.folder / f"workers-{count}", Rounds(place)
        began = time.perf_counter()
        run(Request(recipe, out, place.folder / "cache"), rounds)
        whole = time.perf_counter() - began
        models.append((out / "model.safetensors").read_bytes())
        seconds.append(rounds.ends[-1] - rounds.ends[0])
        metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        yield row(
            f"two sites, {count} worker{'s' if count > 1 else ''}",
            f"{seconds[-1]:.2f} s for {len(rounds.ends) - 1} rounds, {whole:.1f} s in all, "
            f"{metrics['peak_rss_mb']:.0f} MiB",
            seconds=seconds[-1],
        )
    yield row(
        "two workers on one device: time against one", f"{seconds[0] / seconds[1]:.2f}", ratio=seconds[0] / seconds[1]
    )
    yield row("two workers on one device: bytes of the model", f"{len(models[0])} bytes", models[0] == models[1])


# Repeatable algorithms.


def deterministic(place: Place) -> Rows:
    """Train twice with and without ``runtime.deterministic``, and compare the bytes."""
    for name in PAPERS:
        for requested in (True, False):
            title = f"{name} twice, deterministic: {str(requested).lower()}"
            try:
                with report_nondeterminism():
                    digests, seconds = _train_twice(place, name, requested)
            except UserError as error:
                yield row(title, str(error)[:120], False if requested else None)
                continue
            equal = digests[0] == digests[1]
            measured = f"bytes {'equal' if equal else 'differ'}, {min(seconds):.2f} s"
            yield row(title, measured, equal if requested else None, equal=equal, seconds=seconds)
            _free()


def _train_twice(place: Place, name: str, requested: bool) -> tuple[list[str], list[float]]:
    digests, seconds = [], []
    batch = min(PAPERS[name].sizes(place.tiny).batch, 16)
    for number in range(2):
        began = time.perf_counter()
        if name == "fedsis":
            data = _sites(name, place, ("site",))
            recipe = recipe_of(name, place, "fp32", batch=min(batch, 6), data=data, deterministic=requested)
            out = place.folder / f"twice-{requested}-{number}"
            run(Request(recipe, out, place.folder / "cache"), Rounds(place))
            digests.append(hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest())
        else:
            recipe = recipe_of(name, place, "fp32", batch=batch, deterministic=requested)
            digests.append(digest_of(take_turn(name, site_of(name, recipe, place))))
        place.synchronize()
        seconds.append(time.perf_counter() - began)
    return digests, seconds


# Too little memory, and compilation.


def memory(place: Place) -> Rows:
    """Limit the memory of this process, and expect the refusal that names a batch that fits."""
    if not place.device.startswith("cuda"):
        yield row("too large a batch", "not run: needs a GPU")
        return
    total = torch.cuda.get_device_properties(torch.device(place.device)).total_memory
    site = site_of("fedpad", recipe_of("fedpad", place), place)
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5 * GIB / total))
    try:
        take_turn("fedpad", site)
    except UserError as error:
        yield row("too large a batch", str(error), error.place == "recipe.training.batch" and " do: " in str(error))
    else:
        yield row("too large a batch", "trained in 1.5 GiB", False)


def compiled(place: Place) -> Rows:
    """Compile FedPAD's blocks with torch.compile, and time a turn."""
    if not place.device.startswith("cuda"):
        yield row("runtime.compile", "not run: needs a GPU")
        return
    from fedvisage.nn.compute import compile_blocks

    rates: list[float] = []
    for compile_network in (False, True):
        site = site_of("fedpad", recipe_of("fedpad", place, "bf16"), place)
        images = sum(len(batch.labels) for batch in batches_of("fedpad", site))
        if compile_network:
            compile_blocks(site.net)
        began = time.perf_counter()
        take_turn("fedpad", site)
        place.synchronize()
        first = time.perf_counter() - began
        title = f"{'compiled' if compile_network else 'not compiled'}, bf16 (first turn {first:.1f} s)"
        rates.append((yield from _timed(place, "fedpad", title, images, partial(take_turn, "fedpad", site))))
    yield row("fedpad: compiled against not compiled", f"{rates[1] / rates[0]:.2f}", ratio=rates[1] / rates[0])


SECTIONS: dict[str, Callable[[Place], Rows]] = {
    "machine": machine,
    **{f"steps-{name}": partial(steps, name=name) for name in PAPERS},
    "loader": loader,
    "state": state,
    "workers": workers,
    "deterministic": deterministic,
    "memory": memory,
    "compiled": compiled,
}


def main() -> None:
    """Run one section and append its rows to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.sections")
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(asked.device, Path(folder), asked.tiny, threads=1 if asked.tiny else 2)
        for values in SECTIONS[asked.section](place):
            with asked.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
