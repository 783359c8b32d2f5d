"""A training step reads no value back from the device; on a device without values every read is an error.

Tensors of torch's ``meta`` device have shapes and no numbers. Reading one (``item``, ``cpu``, ``tolist``, ``bool``,
choosing by a mask) fails there, where it would make this process wait for a GPU: a whole step that passes reads none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.toy import Sets, open_run_data, recipe_of, tree
from torch import Tensor

from fedvisage.base.streams import seed_global_rng
from fedvisage.data.batches import View
from fedvisage.federation.site import OWNED, Batch, Site
from fedvisage.federation.wire.message import state_of
from fedvisage.methods import find
from fedvisage.methods.models import face, resnet18
from fedvisage.methods.models.face import sample_classes
from fedvisage.methods.pad import fedgpad, fedma, vit_h_is
from fedvisage.methods.recognition import fedfr
from fedvisage.nn.compute import Compute

DEVICE = torch.device("meta")
ALL = {"flip": 0.5, "shift": 0.1, "brightness": 0.1, "contrast": 0.1, "saturation": 0.1, "hue": 0.05}
Loss = Callable[[Site, Batch], Tensor]


def site_at(name: str, sets: Sets, folder: Path, device: torch.device = DEVICE, **changes: Any) -> Site:
    """Return a site in its second round, whose network is on a device."""
    content, method = tree(sets, name, **{"training__local": {"batches": 2}, **changes}), find({"name": name})
    recipe, data = recipe_of(content), open_run_data(content, folder)
    with seed_global_rng(0, "initial weights"):
        net = method.network(recipe)
    lent = {name: value.to(device) for name, value in state_of(net, *net).items()}
    compute = Compute(device, half=False)
    compute.place(net)
    public = None if data.people is None else data.people.public
    site, *_ = sorted(data.sites)  # a pooled method has one
    return Site(site, recipe, 2, data.sites[site].train, net.train(), compute, {}, {}, public=public, lent=lent)


def all_images(site: Site) -> View:
    """Return the site's images and the public ones."""
    assert site.public is not None
    return View.join([site.data, site.public])


def train(site: Site, loss: Loss) -> int:
    """Take a round's steps."""
    optimizer, steps = site.optimizer(*site.net), 0
    for batch in site.batches():
        site.learn(optimizer, lambda part: loss(site, part), batch)
        steps += 1
    return steps


ADAM, SGD = {"name": "adam", "clip_norm": 1.0}, {"name": "sgd", "momentum": 0.9}


@pytest.mark.parametrize(
    ("name", "loss", "optimizer"),
    [
        ("fedpad", resnet18.MODEL.loss, ADAM),
        ("fedgpad", fedgpad.loss, SGD),
        ("fedma", fedma.loss, ADAM),
        pytest.param("vit-h-is", vit_h_is.loss, ADAM, marks=pytest.mark.slow),
    ],
)
def test_attack_detection_reads_nothing_back(
    name: str, loss: Loss, optimizer: dict[str, Any], sets: Sets, tmp_path: Path
) -> None:
    site = site_at(name, sets, tmp_path, training__augment=ALL, training__optimizer=optimizer)
    assert train(site, loss) == 2
    assert all(loss.device == DEVICE for loss in site.losses)


def test_capture_changes_happen_before_the_transfer(sets: Sets, tmp_path: Path) -> None:
    changes = dict.fromkeys(("margin", "blur", "noise", "jpeg", "cutmix"), 1.0)
    assert train(site_at("fedpad", sets, tmp_path, training__augment=changes), resnet18.MODEL.loss) == 2


@pytest.mark.parametrize("customisation", ["binary", "cosface"])
def test_recognition_reads_nothing_back(customisation: str, sets: Sets, tmp_path: Path) -> None:
    own = {"method__customisation": {"loss": customisation}, "training__augment": {"flip": 0.5}}
    site = prepare_faces_site(sets, tmp_path, **own)
    optimizer = site.optimizer("model", "centres", own=site.held["own"])
    for batch in site.batches_of(all_images(site)):
        site.learn(optimizer, lambda part: fedfr.loss(site, part), batch)
    assert len(site.losses) == 2


def test_classes_are_sampled_on_the_cpu(sets: Sets, tmp_path: Path) -> None:
    site = prepare_faces_site(sets, tmp_path)
    centres = face.class_centres(site, public=True)
    optimizer = site.optimizer("model", "centres", own=site.held["own"])
    with sample_classes(site, optimizer, 4, centres):
        for batch in site.batches_of(all_images(site)):
            site.learn(optimizer, lambda part: fedfr.loss(site, part), batch)
    assert len(site.losses) == 2


def prepare_faces_site(sets: Sets, folder: Path, **changes: Any) -> Site:
    """Return FedFR's site in a later round, with what it keeps for itself and its frozen models."""
    on_cpu = site_at("fedfr", sets, folder, torch.device("cpu"), **changes)
    on_cpu.lent = on_cpu.tensors(*on_cpu.net)
    on_cpu.held["own"] = fedfr.own_parameters(on_cpu)
    site = site_at("fedfr", sets, folder, **changes)
    site.kept.update({f"{OWNED}{name}": on_cpu.own(name, torch.Tensor).detach() for name in on_cpu.held["own"]})
    site.kept.update({f"{face.LOCAL}{name}": value for name, value in site.lent.items() if name.startswith("model.")})
    site.held["own"] = fedfr.own_parameters(site)
    fedfr.hold_frozen(site, all_images(site))
    return site


@pytest.mark.parametrize("read", [Tensor.item, Tensor.tolist, bool, Tensor.cpu, lambda value: value[value > 0]])
def test_reading_a_value_within_a_step_fails_on_the_meta_device(
    read: Callable[[Tensor], object], sets: Sets, tmp_path: Path
) -> None:
    def loss(site: Site, batch: Batch) -> Tensor:
        value = resnet18.MODEL.loss(site, batch)
        read(value.detach())
        return value

    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        train(site_at("fedpad", sets, tmp_path, training__batch=2), loss)
