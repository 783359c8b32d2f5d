"""Honest uploads, and the ways in which tests damage one."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedvisage.federation.method import EXAMPLES, LOSS, Upload
from fedvisage.federation.wire.message import Message
from fedvisage.federation.wire.schema import LARGEST_MAGNITUDE

Wrong = Callable[[Message, str, np.random.Generator], str]
"""Damages one tensor of a message and returns a part of the expected reason."""

NET = nn.ModuleDict({"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))})
UPLOADS = (
    Upload("weights", "weights", parts=("model",)),
    Upload("tokens", "activation", shape=(-1, 4), most=40),
    Upload("histogram", "statistic", shape=(2, 5), dtype="int64"),
    EXAMPLES,
    LOSS,
)


def honest(draws: np.random.Generator) -> Message:
    weights = {f"model.{name}": value.clone() for name, value in NET["model"].state_dict().items()}
    return weights | {
        "tokens": torch.from_numpy(draws.normal(size=(int(draws.integers(1, 11)), 4)).astype(np.float32)),
        "histogram": torch.from_numpy(draws.integers(0, 100, (2, 5))),
        "examples": torch.tensor(int(draws.integers(1, 100_000))),
        "loss": torch.tensor(float(draws.random()), dtype=torch.float64),
    }


def plant(value: float, reason: str) -> Wrong:
    def wrong(message: Message, name: str, draws: np.random.Generator) -> str:
        flat = message[name].to(torch.float64).reshape(-1)
        flat[int(draws.integers(len(flat)))] = value
        message[name] = flat.reshape(message[name].shape).to(message[name].dtype)
        return reason

    return wrong


def drop_tensor(message: Message, name: str, draws: np.random.Generator) -> str:
    del message[name]
    return "is missing"


def extra(message: Message, name: str, draws: np.random.Generator) -> str:
    message[f"{name}-too"] = message[name]
    return "is not declared"


def other_type(message: Message, name: str, draws: np.random.Generator) -> str:
    types = [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.complex64]
    types.remove(message[name].dtype)
    message[name] = message[name].to(types[int(draws.integers(len(types)))])
    return "has type"


def broadcastable(message: Message, name: str, draws: np.random.Generator) -> str:
    """A shape that arithmetic would accept."""
    value = message[name]
    smaller = value.reshape(-1)[:1] if value.shape != (1,) else value.reshape(())
    message[name] = value[None] if draws.random() < 0.5 else smaller
    return "has shape"


def empty(message: Message, name: str, draws: np.random.Generator) -> str:
    message[name] = message[name].reshape(-1)[:0].reshape(0, *message[name].shape[1:])
    return "has shape"


def oversize(message: Message, name: str, draws: np.random.Generator) -> str:
    message[name] = torch.zeros(int(draws.integers(11, 10_000)), 4)
    return "at most 40 are allowed"


FLOATS: list[Wrong] = [
    plant(float("nan"), "is not finite"),
    plant(float("inf"), "is not finite"),
    plant(float("-inf"), "is not finite"),
    plant(1e38, "above the limit"),
    plant(-1.01 * LARGEST_MAGNITUDE, "above the limit"),
]
COUNTS: list[Wrong] = [plant(-1, "negative count"), plant(2.0**60, "count above")]
ANY: list[Wrong] = [drop_tensor, extra, other_type, broadcastable, empty]


def spoil(message: Message, draws: np.random.Generator) -> tuple[str, str]:
    """Damage one tensor of a message in one way, and return its name and a part of the expected reason."""
    name = str(draws.choice(sorted(message)))
    wrongs = ANY + (FLOATS if message[name].is_floating_point() else COUNTS)
    if name == "examples":
        wrongs = [*wrongs, plant(0, "must be from 1"), plant(10**9, "must be from 1")]
    if name == "tokens":
        wrongs = [*wrongs, oversize]
    if name.endswith("running_var"):
        wrongs = [*wrongs, plant(-0.01, "is a negative variance")]
    return name, wrongs[int(draws.integers(len(wrongs)))](message, name, draws)
