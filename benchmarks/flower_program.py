"""FedAvg with Flower's simulation, written as its documentation shows; ``benchmarks.flower`` calls ``simulate``.

Ray's processes import this module, so the job comes from an environment variable.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import psutil
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.nn.resnet import ResNet18, resnet18

client_app, server_app = ClientApp(), ServerApp()
ROUNDS, _, BATCH, BATCHES, WIDTH, *PATHS = json.loads(os.environ["FLOWER_JOB"])


@cache
def load_images(site: int) -> tuple[Tensor, Tensor]:
    """Return a site's training images and labels; a process of Ray reads them once."""
    torch.set_num_threads(1)
    view = View.of(PreparedSet.open(Path(PATHS[site])), "train")
    batch = view.batch(torch.arange(len(view)).numpy())
    return batch.images.float() / 255, batch.labels


def build_network() -> nn.Module:
    """Return the network of both programs."""
    return resnet18(ResNet18(width=WIDTH), "rgb")


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a number of batches from the server's weights."""
    site = int(context.node_config["partition-id"])
    images, labels = load_images(site)
    network = build_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.train()
    optimizer, total = torch.optim.Adam(network.parameters(), lr=1e-3), 0.0
    order = torch.randperm(len(images)).repeat(1 + BATCH * BATCHES // len(images))
    for chosen in order[: BATCH * BATCHES].split(BATCH):
        loss = binary_cross_entropy_with_logits(network(images[chosen]).squeeze(1), labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += float(loss)
    metrics = MetricRecord({"loss": total / BATCHES, "num-examples": len(images)})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the processor time of all processes, before Flower ends those of Ray."""
    del context
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(PATHS), min_available_nodes=len(PATHS))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(build_network().state_dict()), num_rounds=ROUNDS)
    assert len(result.train_metrics_clientapp) == ROUNDS, "a round had no replies"
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    seconds = sum(t.user + t.system + t.children_user + t.children_system for t in times)
    print(json.dumps(seconds), flush=True)


def simulate() -> None:
    """Run the job."""
    run_simulation(server_app, client_app, num_supernodes=len(PATHS), backend_config={"init_args": {"num_cpus": 2}})
