"""What runs at server and sites while transport is measured: our exchange and a bare NVFlare program, in one job.

Both send the same tensors over the same connections and do the same with them at the sites, in turn. The method trains
nothing: a site loads what it was lent and sends it back, or answers a gradient with tokens of its size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab
from torch import Tensor, nn

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.exchange import Exchange
from fedvisage.federation.method import EXAMPLES, Call, Upload
from fedvisage.federation.record.ledger import JsonLines
from fedvisage.federation.record.store import SiteStore
from fedvisage.federation.server import Server
from fedvisage.federation.site import Site
from fedvisage.federation.site_worker import LocalTransport, SiteWorker, Workspace
from fedvisage.federation.wire.message import Message, Transport, under
from fedvisage.methods import METHODS
from fedvisage.methods.pad import fedpad
from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.resnet import ResNet18, resnet18
from fedvisage.nvflare.job import read_job
from fedvisage.nvflare.kits import own_settings
from fedvisage.nvflare.site_program import SiteProgram
from fedvisage.nvflare.transport import CollabTransport
from fedvisage.recipe import Recipe

NAME = "there-and-back"
REPEATS, RESULT, DATA = 15, "transport.json", "measured on"
TOKENS = (32, 196, 768)
"""A batch of 32 images' tokens in a ViT-B: 19 MB."""


def there_and_back(site: Site, message: Message) -> Message:
    """Load what was lent and send it back, as if it were trained."""
    site.load(message)
    return site.tensors("model") | {"examples": torch.tensor(len(site.data))}


def step(site: Site, message: Message) -> Message:
    """Take a gradient by tokens, and send as many tokens."""
    return {"tokens": message["gradient"]}


METHODS[NAME] = replace(
    fedpad.METHOD,
    name=NAME,
    calls={
        "train": Call(there_and_back, (Upload("weights", "weights", parts=("model",)), EXAMPLES)),
        "step": Call(step, (Upload("tokens", "activation", shape=(-1, *TOKENS[1:]), most=1 << 26),)),
    },
)


class MeasuredSite(SiteProgram):
    """A site of ours that answers a bare program's calls as well."""

    def __init__(self) -> None:
        """Build the network that the bare program works on."""
        super().__init__()
        self.bare = Bare()

    @collab.publish
    def bare_round(self, weights: dict) -> dict:  # type: ignore[type-arg]  # noqa: D102
        return self.bare.round(weights)

    @collab.publish
    def bare_step(self, gradient: dict) -> dict:  # type: ignore[type-arg]  # noqa: D102
        return self.bare.step(gradient)


class Bare:
    """A site as the shortest program has it."""

    def __init__(self) -> None:
        """Build the network."""
        self.net: nn.Module = resnet18(ResNet18(), "rgb+hsv")

    def round(self, weights: Message) -> Message:
        """Load weights and send them back."""
        self.net.load_state_dict(weights)
        return {name: value.detach().clone().contiguous() for name, value in self.net.state_dict().items()}

    def step(self, gradient: Message) -> Message:
        """Send as many tokens as there are gradients."""
        return {"tokens": gradient["gradient"].clone()}


class MeasuringServer:
    """Does the same work four ways in turn, and writes down how long each took."""

    @collab.main
    def run(self) -> None:
        """Measure, and leave the figures where the benchmark looks."""
        context, call = collab.fl_ctx, collab.context
        workspace = context.get_workspace()
        own = own_settings(Path(workspace.get_root_dir()))
        recipe = read_job(Path(workspace.get_app_config_dir(context.get_job_id()))).recipe
        torch.set_num_threads(recipe.runtime.threads)
        seconds = measure(recipe, own, list(call.clients), call.is_aborted)
        (Path(own["state"]) / RESULT).write_text(json.dumps(seconds), encoding="utf-8")


def measure(recipe: Recipe, own: dict[str, str], proxies: list[Any], aborted: Callable[[], bool]) -> dict[str, Any]:
    """Return the seconds of every repetition, by what was done and how."""
    state = Path(own["state"])
    there = CollabTransport(tuple(recipe.data.sites), proxies, recipe.federation, aborted)
    there.restore({})
    over, here = _server(recipe, there, state / "over"), _server(recipe, _local(recipe, Path(own[DATA]), state), state)
    weights = under("model.", over.lent())
    gradient, bare = torch.randn(TOKENS), Bare()
    names = [proxy.name for proxy in proxies]
    ways: dict[str, Callable[[], object]] = {
        "round, ours": lambda: _round(over),
        "round, bare": lambda: _mean([reply for _, reply in collab.clients(timeout=600.0).bare_round(weights)]),
        "round, here": lambda: _round(here),
        "round, bare here": lambda: _mean([bare.round(weights) for _ in names]),
        "step, ours": lambda: _steps(over, gradient),
        "step, bare": lambda: [proxy(timeout=600.0).bare_step({"gradient": gradient}) for proxy in proxies],
        "step, here": lambda: _steps(here, gradient),
        "step, bare here": lambda: [bare.step({"gradient": gradient}) for _ in names],
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(1 + REPEATS):  # the first one opens connections
        for way, work in ways.items():
            began = time.monotonic()
            work()
            seconds[way].append(time.monotonic() - began)
    there.close()
    return {way: repetitions[1:] for way, repetitions in seconds.items()}


def _server(recipe: Recipe, transport: Transport, state: Path) -> Server:
    workspace = Workspace(METHODS[NAME], recipe, resolve_compute("cpu", "fp32"))
    state.mkdir(parents=True, exist_ok=True)
    exchange = Exchange(recipe, transport, workspace.schemas, JsonLines(state / "ledger.jsonl"))
    server = Server(METHODS[NAME], recipe, METHODS[NAME].network(recipe), exchange, workspace.compute)
    exchange.open_round(1)
    return server


def _local(recipe: Recipe, data: Path, state: Path) -> LocalTransport:
    workspace, view = (
        Workspace(METHODS[NAME], recipe, resolve_compute("cpu", "fp32")),
        View.of(PreparedSet.open(data), "train"),
    )
    return LocalTransport(
        [SiteWorker(name, view, view, SiteStore(state / "here" / name), workspace) for name in recipe.data.sites]
    )


def _round(server: Server) -> None:
    reduced = server.reduce("train", server.lent())
    assert len(reduced.replied) == len(server.names), reduced.failed
    server.load(reduced.value)


def _steps(server: Server, gradient: Tensor) -> None:
    for name in server.names:
        with server.visit(name) as site:
            site.ask("step", {"gradient": gradient})
    assert not server.exchange.record.failed


def _mean(replies: list[Message]) -> Message:
    assert replies
    return {name: torch.stack([one[name].double() for one in replies]).mean(dim=0) for name in replies[0]}
