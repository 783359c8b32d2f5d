"""The two chains of protections: their order, and what follows from it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.wires import Wire
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.federation.protections.combine import norm_of_update
from fedvisage.federation.protections.steps import step_names
from fedvisage.federation.wire.message import Message, Order
from fedvisage.recipe import Federation

CLIP = 0.5
DP = {"clip": CLIP, "noise": 0}
HOSTILE = {"sites": ["B"], "how": "scaling", "factor": 100.0}


def recording_transport(sent: dict[str, tuple[Message, Message]]) -> partial[Wire]:
    """Return a transport that records each site's order and reply of training."""

    def record(site: str, order: Order, message: Message) -> None:
        if "loss" in message:
            sent[site] = dict(order.message), dict(message)

    return partial(Wire, record=record)


def lengths(sent: Mapping[str, tuple[Message, Message]]) -> dict[str, float]:
    """Return how long the update of each site is on the wire."""
    return {site: norm_of_update({n: reply[n] for n in lent}, lent) for site, (lent, reply) in sent.items()}


@pytest.mark.parametrize(
    ("section", "site", "server"),
    [
        ({}, [], ["admit", "combine"]),
        ({"dp": {"clip": 1.0, "noise": 1.0, "delta": 1e-5}}, ["clip"], ["admit", "clip", "combine", "noise"]),
        ({"dp": DP}, ["clip"], ["admit", "clip", "combine"]),
        ({"combine": {"rule": "norm-clip", "bound": 1.0}}, [], ["admit", "clip", "combine"]),
        ({"combine": "norm-clip"}, [], ["admit", "combine"]),
        ({"secure": True, "dp": DP}, ["clip", "mask"], ["admit", "clip", "combine"]),
        ({"poisoned": HOSTILE, "secure": True}, ["poison", "mask"], ["admit", "combine"]),
        ({"poisoned": HOSTILE, "secure": True, "dp": DP}, ["clip", "poison", "mask"], ["admit", "clip", "combine"]),
    ],
)
def test_recipe_uses_only_its_configured_steps(section: dict[str, Any], site: list[str], server: list[str]) -> None:
    assert step_names(Federation.model_validate(section)) == {"site": site, "server": server}


@pytest.mark.long
def test_server_clips_poisoned_uploads_again(sets: Sets, tmp_path: Path) -> None:
    sent: dict[str, tuple[Message, Message]] = {}
    content = tree(sets, training__rounds=1, federation={"dp": DP, "poisoned": HOSTILE})
    run_toy(content, tmp_path / "run", wire=recording_transport(sent))
    actual = lengths(sent)
    assert 0.8 * CLIP < actual["A"] <= CLIP
    assert 0.8 * CLIP < actual["C"] <= CLIP
    assert actual["B"] > 10 * CLIP
    model, lent = load_file(tmp_path / "run" / "model.safetensors"), next(iter(sent.values()))[0]
    assert norm_of_update(model, {name: lent[name] for name in model}) <= CLIP * (1 + 1e-6)


@pytest.mark.long
def test_uploads_are_clipped_before_masking(sets: Sets, tmp_path: Path) -> None:
    """The mean of clipped updates is no longer than the clip; that of unclipped ones is, here by far."""
    recipe = tree(sets, training__rounds=1, federation={"secure": {"entropy": "derived"}})
    start: dict[str, tuple[Message, Message]] = {}
    plain = tree(sets, training__rounds=1)
    run_toy(plain, tmp_path / "plain", wire=recording_transport(start))
    lent = next(iter(start.values()))[0]
    run_toy(recipe, tmp_path / "free")
    run_toy(recipe | {"federation": {"secure": {"entropy": "derived"}, "dp": DP}}, tmp_path / "clipped")
    moved = {
        name: norm_of_update(
            model := load_file(tmp_path / name / "model.safetensors"), {key: lent[key] for key in model}
        )
        for name in ("free", "clipped")
    }
    assert moved["free"] > 2 * CLIP
    assert moved["clipped"] <= CLIP


@pytest.mark.long
def test_noise_is_on_the_mean_not_on_single_uploads(sets: Sets, tmp_path: Path) -> None:
    """With clipping to next to nothing the model is what was lent and noise of a known size on each number."""
    sent: dict[str, tuple[Message, Message]] = {}
    section = {"clip": 1e-3, "noise": 100.0, "delta": 1e-5, "entropy": "derived"}
    run_toy(
        tree(sets, training__rounds=1, federation={"dp": section}), tmp_path / "run", wire=recording_transport(sent)
    )
    assert max(lengths(sent).values()) <= 1e-3
    lent, model = next(iter(sent.values()))[0], load_file(tmp_path / "run" / "model.safetensors")
    weights = [name for name, value in model.items() if value.dim() == 4]
    noise = torch.cat([(model[name] - lent[name]).flatten() for name in weights])
    assert noise.std().item() == pytest.approx(100.0 * 1e-3 / 3, rel=0.02)
    assert np.isclose(noise.mean().item(), 0, atol=1e-3)


def test_uploads_are_checked_before_any_other_step(sets: Sets, tmp_path: Path) -> None:
    """A weight that is not finite would survive clipping as such, and is refused before."""

    def spoil(order: Order, message: Message) -> Message:
        if "loss" in message:
            next(value for value in message.values() if value.dim() == 4).fill_(torch.nan)
        return message

    content = tree(sets, training__rounds=1, federation={"combine": {"rule": "norm-clip", "bound": 1.0}})
    run_toy(content, tmp_path / "run", wire=partial(Wire, up=spoil))
    rounds = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert '"B": "refused' in rounds
    assert recipe_of(content).federation.quorum == 1
