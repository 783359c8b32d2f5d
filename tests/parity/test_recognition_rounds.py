"""Whole rounds of FedFR and PrivacyFace at a site and at the server, redone by hand with plain steps of SGD."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.lent_site import site_of
from tests.federation.wires import Wire
from tests.toy import Sets, make_people, run_toy, tree
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot, softplus

from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedfr, privacyface, privacyface_loss

RATE = 0.01
SGD: dict[str, Any] = {"training__optimizer": {"name": "sgd", "lr": RATE}, "training__local": {"batches": 3}}
PEOPLE = 3
"""Number of people at the site; public people have the numbers after theirs."""


def step_down(loss: Tensor, parameters: Sequence[Tensor]) -> None:
    """Move parameters one step of SGD."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter -= RATE * gradient


def clone_leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()


def check_model(site: Site, twin: Site, reply: Message) -> None:
    """Compare the reply and the site's own model with the twin's network, which has moved."""
    for name, value in twin.net["model"].state_dict().items():
        torch.testing.assert_close(reply[f"model.{name}"], value, rtol=1e-3, atol=2e-6)
        assert torch.equal(site.kept[f"{face.LOCAL}model.{name}"], reply[f"model.{name}"]), "of after the training"
    moved = [float((value - site.lent[name]).abs().max()) for name, value in reply.items() if name.startswith("model.")]
    assert max(moved) > 1e-3


def test_fedfrs_round_at_a_site_is_sgd_down_eq_7(sets: Sets, tmp_path: Path) -> None:
    """In the first round Eq. 5 has no gradient, so Eq. 3 and Eq. 6 move the model, each class, branch, Π and b."""
    site, twin = (
        site_of(sets, tmp_path / name, method__hard_negatives=-1, method__contrast={"weight": 5.0}, **SGD)
        for name in ("site", "twin")
    )
    model, fedfr_options = twin.net["model"], twin.recipe.options(fedfr.Options)
    view = fedfr.with_hard_negatives(twin)
    own = clone_leaf(face.mean_features(twin))
    branches, public = clone_leaf(own), clone_leaf(twin.net["centres"].get_parameter("weight"))
    transformation, bias = clone_leaf(torch.eye(own.shape[1])), clone_leaf(torch.zeros(PEOPLE))
    everything = [*model.parameters(), own, branches, public, transformation, bias]
    assert (fedfr_options.customisation.weight, fedfr_options.cosface) == (10.0, 1.0)
    for batch in twin.batches_of(view):
        labels = batch.identities
        assert labels is not None
        features = model(batch.images)
        # Eq. 3: CosFace with s = 30 and m = 0.4 over own and public classes.
        cosine = normalize(features) @ normalize(torch.cat([own, public])).T
        balanced = cross_entropy(30 * (cosine - 0.4 * one_hot(labels, len(own) + len(public))), labels)
        # Eq. 6: a branch per own person, with t = 3 and λ = 0.7.
        stretched = 2 * ((normalize(features @ transformation.T) @ normalize(branches).T + 1) / 2) ** 3 - 1
        mine = labels[:, None] == torch.arange(PEOPLE)
        positive = 0.7 * softplus(-30 * (stretched - 0.4) - bias)
        negative = 0.3 * softplus(30 * (stretched + 0.4) + bias)
        binary = torch.where(mine, positive, negative).sum(dim=1).mean() / 30
        step_down(balanced + 10 * binary, everything)
    reply = fedfr.train(site, site.lent)
    check_model(site, twin, reply)
    torch.testing.assert_close(reply["centres.weight"], public.detach(), rtol=1e-3, atol=2e-6)
    for name, value in {
        face.OWN_CENTRES: own,
        fedfr.BRANCHES: branches,
        fedfr.TRANSFORMATION: transformation,
        fedfr.BIAS: bias,
    }.items():
        torch.testing.assert_close(site.own(name, lambda: torch.empty(0)), value, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.long
def test_fedfrs_server_weights_sites_by_their_images(sets: Sets, tmp_path: Path) -> None:
    """Eq. 2 with the paper's weights: sites of 9, 15 and 15 training images."""
    sites = {name: str(sets[name].with_name(f"people-{name}")) for name in "BC"}
    sites["A"] = str(make_people(tmp_path / "larger", "A", 5, identities=6))
    sent = list[tuple[str, Message]]()
    tapped = partial(Wire, record=lambda site, _, message: sent.append((site, message)))
    run_toy(tree(sets, "fedfr", data__sites=sites, training__rounds=1), tmp_path / "run", wire=tapped)
    uploads = {name: message for name, message in sent if "examples" in message}
    images = {name: int(upload["examples"]) for name, upload in uploads.items()}
    assert images["A"] > images["B"] == images["C"]
    for name, value in load_file(tmp_path / "run" / "model.safetensors").items():
        if value.is_floating_point():
            mean = sum(images[site] * upload[name].double() for site, upload in uploads.items()) / sum(images.values())
            torch.testing.assert_close(value.double(), mean, rtol=1e-6, atol=1e-7)


def test_privacyfaces_round_at_a_site_trains_on_its_people_and_then_on_the_first_public_ones(
    sets: Sets, tmp_path: Path
) -> None:
    """Eq. 5 with one cluster of another site, then CosFace on two of four public people with centres of their own."""
    loss = {"method__loss": "cosface", "method__scale": 16.0, "method__margin": 0.35}
    changes: dict[str, Any] = {**SGD, **loss, "method__public_identities": 2, "method__minimum": 2}
    site, twin = (site_of(sets, tmp_path / name, name="privacyface", **changes) for name in ("site", "twin"))
    model, rho = twin.net["model"], 1.3
    cluster = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    own = clone_leaf(face.mean_features(twin))
    for batch in twin.batches_of(twin.data):
        assert batch.identities is not None
        features = normalize(model(batch.images))
        apart = ((features @ normalize(cluster).T).acos() - rho).clamp(min=0)
        logits = 16 * (features @ normalize(own).T - 0.35 * one_hot(batch.identities, PEOPLE))
        logits = torch.cat([logits, 16 * apart.cos()], dim=1)
        step_down(cross_entropy(logits, batch.identities), [*model.parameters(), own])

    assert twin.public is not None
    people = sorted(set(twin.public.subjects.tolist()))
    assert len(people) == 4
    view = twin.public.subset(np.flatnonzero(np.isin(twin.public.subjects, people[:2])).astype(np.int64))
    features = normalize(twin.embed(model, view))
    public = clone_leaf(normalize(torch.stack([features[view.subjects == who].mean(dim=0) for who in people[:2]])))
    for batch in twin.batches_of(view, epochs=1, purpose="public"):
        assert batch.identities is not None
        labels = batch.identities - PEOPLE
        logits = 16 * (normalize(model(batch.images)) @ normalize(public).T - 0.35 * one_hot(labels, 2))
        step_down(cross_entropy(logits, labels), [*model.parameters(), public])

    assert privacyface_loss.public_people(site).identities.tolist() == people[:2]
    reply = privacyface_loss.train_model(site, site.lent, cluster)
    check_model(site, twin, reply)
    for name, value in {face.OWN_CENTRES: own, privacyface_loss.PUBLIC_CENTRES: public}.items():
        torch.testing.assert_close(site.own(name, lambda: torch.empty(0)), value, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize("epochs", [1, 2])
def test_step_of_fedsgd_is_down_the_mean_over_images_with_a_smaller_last_batch(
    epochs: int, sets: Sets, tmp_path: Path
) -> None:
    """A.2.1: the gradient of CosFace over all images at once, on the model that the server lent."""
    changes: dict[str, Any] = {**SGD, "training__local": {"epochs": epochs}, "training__batch": 6}
    changes |= {"method__loss": "cosface", "method__scale": 16.0, "method__margin": 0.35}
    changes |= {"method__algorithm": "fedsgd", "method__public_epochs": 0, "training__augment": {}}
    site, twin = (site_of(sets, tmp_path / name, name="conventional", **changes) for name in ("site", "twin"))
    model, own = twin.net["model"], clone_leaf(face.mean_features(twin))
    sizes = [len(batch.labels) for batch in twin.batches_of(twin.data)]
    assert len(set(sizes)) == 2
    (batch,) = twin.plain_batches(twin.data)
    assert batch.identities is not None
    assert sum(sizes) == epochs * len(batch.labels)
    cosine = normalize(model(batch.images)) @ normalize(own).T
    logits = 16 * (cosine - 0.35 * one_hot(batch.identities, PEOPLE))
    step_down(cross_entropy(logits, batch.identities), [*model.parameters(), own])
    check_model(site, twin, privacyface_loss.train_model(site, site.lent, None))
    torch.testing.assert_close(site.own(face.OWN_CENTRES, lambda: torch.empty(0)), own, rtol=1e-4, atol=1e-7)


def test_privacyface_clusters_the_class_centres_as_trained(sets: Sets, tmp_path: Path) -> None:
    """Three centres near one axis, far from the people's mean features, give the cluster of that axis."""
    site = site_of(
        sets,
        tmp_path,
        number=2,
        name="privacyface",
        privacy={"epsilon": 1e6, "delta": 0.9, "noise": "derived"},
        method__clustering="paper",
        method__epsilon=1e5,
        method__minimum=3,
        method__rho=0.5,
    )
    axis = torch.eye(16)[5]
    means = face.mean_features(site)
    assert float((means @ axis).abs().max()) < math.cos(0.5), "else the two cannot be told apart"
    near = torch.stack([axis, axis + 0.1 * torch.eye(16)[0], axis + 0.1 * torch.eye(16)[1]])
    site.kept["own/W"] = 3 * near
    released = privacyface.cluster(site, site.lent)["clusters"]
    torch.testing.assert_close(released, normalize(normalize(near).mean(dim=0, keepdim=True)), atol=1e-3, rtol=0)
