"""Signs, divisors and which model is which: equations whose mistakes leave every value plausible, redone by hand."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federation.lent_site import site_of
from tests.parity.gradients import gradient_by_differences, unit
from tests.parity.test_recognition_methods import spreadout_by_loops
from tests.toy import Sets, recipe_of, run_toy, tree

from fedvisage.base.streams import torch_rng
from fedvisage.federation.privacy.mechanisms import DerivedDraws
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.methods.models import face
from fedvisage.methods.recognition import fedface, fedfr, privacyface_baselines


def seen_by(site: Site, weights: Message, images: torch.Tensor) -> np.ndarray:
    """Return the features that a model with other weights has of images."""
    with torch.no_grad():
        features: torch.Tensor = site.frozen(weights, "model")["model"](images)
    return features.numpy().astype(np.float64)


def add_noise(site: Site, by: float, seed: int) -> dict[str, torch.Tensor]:
    """Return a model like the lent one, with noise on its weights."""
    draws = torch.Generator().manual_seed(seed)
    return {
        name: value + by * value.std() * torch.randn(value.shape, generator=draws)
        for name, value in site.lent.items()
        if name.startswith("model.") and value.dim() > 1
    }


def test_fedfrs_contrast_pulls_to_the_global_model_and_away_from_the_previous_one(sets: Sets, tmp_path: Path) -> None:
    """Eq. 5 with three different models; exchanging two of them gives another value."""
    site = site_of(sets, tmp_path)
    previous, present = site.lent | add_noise(site, 0.5, 1), site.lent | add_noise(site, 0.3, 2)
    site.kept.update({f"{face.LOCAL}{name}": value for name, value in previous.items() if name.startswith("model.")})
    fedfr.hold_frozen(site, site.data)
    batch = next(iter(site.batches_of(site.data)))
    of = {"global": site.lent, "previous": previous, "present": present}
    own, wanted, unwanted = (unit(seen_by(site, of[name], batch.images)) for name in ("present", "global", "previous"))
    near, far = (np.exp((own * other).sum(axis=1) / 0.5) for other in (wanted, unwanted))
    actual = fedfr.contrast(site, batch, torch.from_numpy(own).float()).item()
    assert actual == pytest.approx(-np.log(near / (near + far)).mean(), rel=1e-4)
    assert actual != pytest.approx(-np.log(far / (near + far)).mean(), rel=1e-2)


def test_fedfrs_customisation_is_eq_6_with_public_people_as_negatives(sets: Sets, tmp_path: Path) -> None:
    """Π is no longer the identity and not symmetric, so that its transpose is another; b is not zero."""
    site = site_of(sets, tmp_path, method__hard_negatives=-1)
    view = fedfr.with_hard_negatives(site)
    rng = np.random.default_rng(0)
    pi, shifts = rng.normal(size=(16, 16)), rng.normal(size=3)
    fedfr.own_parameters(site)
    with torch.no_grad():
        site.own(fedfr.TRANSFORMATION, lambda: torch.empty(0)).copy_(torch.from_numpy(pi))
        site.own(fedfr.BIAS, lambda: torch.empty(0)).copy_(torch.from_numpy(shifts))
    # A batch with people of the site and public people.
    batch = next(one for one in site.batches_of(view) if len(set((one.class_numbers < 3).tolist())) == 2)
    assert batch.identities is not None
    features = rng.normal(size=(len(batch.identities), 16))
    branches = unit(face.own_centres(site, fedfr.BRANCHES).detach().numpy().astype(np.float64))
    total = 0.0
    for row, label in zip(unit(features @ pi.T), batch.identities.tolist(), strict=True):
        for branch, shift in enumerate(shifts):
            stretched = 2 * ((row @ branches[branch] + 1) / 2) ** 3 - 1
            mine = label == branch
            logit = -30 * (stretched - 0.4) - shift if mine else 30 * (stretched + 0.4) + shift
            total += (0.7 if mine else 0.3) * np.log1p(np.exp(logit))
    actual = fedfr.customisation(site, batch, torch.from_numpy(features).float()).item()
    assert actual == pytest.approx(total / len(features) / 30, rel=1e-4)


def test_sampled_public_images_count_in_a_sites_weight(sets: Sets, tmp_path: Path) -> None:
    """N_l of Eq. 2 in the text, and what the released code weighs by: all public images are sampled here."""
    sent = {}
    for count in ("local", "sampled"):
        site = site_of(sets, tmp_path, method__count=count, method__hard_negatives=-1)
        sent[count] = int(fedfr.train(site, site.lent)["examples"])
    assert site.public is not None
    assert sent == {"local": len(site.data), "sampled": len(site.data) + len(site.public)}


def spread_out(
    centres: dict[str, np.ndarray], sampled: int | None, number: int = 1, schedule: str = "constant"
) -> tuple[dict[str, np.ndarray], float]:
    """Return the centres as FedFace's server moves them, and the length of its step at the full rate."""
    content = {
        "method": {
            "name": "fedface",
            "network": {"name": "sphere20", "width": 8, "embedding": 8},
            "spreadout": {"weight": 3.0, "margin": 0.9, "sampled": sampled},
        },
        "data": {"sites": {"A": "nowhere"}},
        "input": {"colour": "rgb"},
        "training": {"rounds": 4, "optimizer": {"name": "sgd", "lr": 0.02}, "schedule": {"name": schedule}},
    }
    server: Any = SimpleNamespace(recipe=recipe_of(content), round=number, rng=lambda *purpose: torch_rng(0, *purpose))
    sent = {name: torch.from_numpy(rows) for name, rows in centres.items()}
    actual = fedface.spread_centres(server, sent, server.recipe.options(fedface.Options).spreadout)
    return {name: rows.numpy() for name, rows in actual.items()}, 3.0 * 0.02


def closeness(centres: Mapping[str, np.ndarray]) -> float:
    """Return the highest cosine between centres of two sites."""
    return float((unit(centres["A"]) @ unit(centres["B"]).T).max())


def test_fedfaces_server_steps_down_the_regulariser_and_drives_sites_centres_apart() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=4)
    centres = {name: common + 0.3 * rng.normal(size=(rows, 4)) for name, rows in (("A", 2), ("B", 3))}
    actual, length = spread_out(centres, None)
    stacked, owners = np.concatenate(list(centres.values())), [0, 0, 1, 1, 1]
    slope = gradient_by_differences(lambda rows: spreadout_by_loops(rows, owners, 0.9), stacked)
    np.testing.assert_allclose(np.concatenate(list(actual.values())), stacked - length * slope, rtol=1e-5, atol=1e-8)
    assert closeness(actual) < closeness(centres)


def test_fedfaces_server_steps_at_the_rate_to_which_the_schedule_has_fallen() -> None:
    """In the third round of four a cosine is at ½(1 + cos π/2), half of what it began with."""
    centres = {"A": np.array([[1.0, 0.2, 0.1, 0.0]]), "B": np.array([[0.9, 0.0, 0.3, 0.1]])}
    full, _ = spread_out(centres, None, number=3)
    fallen, _ = spread_out(centres, None, number=3, schedule="cosine")
    for name, before in centres.items():
        np.testing.assert_allclose(fallen[name] - before, (full[name] - before) / 2, rtol=1e-6)
        assert np.abs(full[name] - before).max() > 1e-3


def test_server_moves_only_the_sampled_centres_of_each_site() -> None:
    rng = np.random.default_rng(1)
    common = rng.normal(size=4)
    centres = {name: common + 0.3 * rng.normal(size=(rows, 4)) for name, rows in (("A", 6), ("B", 1))}
    actual, length = spread_out(centres, 2)
    rows = {name: np.flatnonzero((actual[name] != centres[name]).any(axis=1)) for name in centres}
    assert {name: len(places) for name, places in rows.items()} == {"A": 2, "B": 1}
    stacked = np.concatenate([centres[name][places] for name, places in rows.items()])
    slope = gradient_by_differences(lambda chosen: spreadout_by_loops(chosen, [0, 0, 1], 0.9), stacked)
    expected = np.concatenate([actual[name][places] for name, places in rows.items()])
    np.testing.assert_allclose(expected, stacked - length * slope, rtol=1e-5, atol=1e-8)


def test_server_compares_a_bounded_number_of_centres() -> None:
    """A site may send 2^24 numbers: all pairs of these rows would need terabytes."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=8).astype(np.float32)
    rows = {"A": 1, "B": 2**20, "C": 2**20}
    centres = {name: common + 0.1 * rng.random((count, 8), np.float32) for name, count in rows.items()}
    actual, _ = spread_out(centres, None)
    moved = {name: int((actual[name] != centres[name]).any(axis=1).sum()) for name in centres}
    assert moved == {"A": 1, "B": fedface.MOST_CENTRES // 3, "C": fedface.MOST_CENTRES // 3}


def test_server_compares_all_centres_of_unequal_sites() -> None:
    rng = np.random.default_rng(0)
    rows = {"A": 1, "B": fedface.MOST_CENTRES // 4, "C": 1, "D": 1, "E": 1}
    centres = {name: np.float32(1) + 0.1 * rng.random((count, 8), np.float32) for name, count in rows.items()}
    actual, _ = spread_out(centres, None)
    assert {name: int((actual[name] != centres[name]).any(axis=1).sum()) for name in centres} == rows


@pytest.mark.long
def test_fedsgd_takes_one_step_down_the_mean_over_its_batches(sets: Sets, tmp_path: Path) -> None:
    """Two batches of four have the gradient of one of eight: the loss is a mean over images, which no layer mixes."""
    trained = {}
    for name, batches, size in (("two", 2, 4), ("one", 1, 8), ("none", 1, 8)):
        content = tree(
            sets,
            "conventional",
            training__rounds=1,
            training__local={"batches": batches},
            training__batch=size,
            training__augment={},
            training__optimizer={"name": "sgd", "lr": 0.05 if name != "none" else 1e-12},
        )
        content["method"] |= {"algorithm": "fedsgd", "public_epochs": 0}
        run_toy(content, tmp_path / name)
        trained[name] = load_file(tmp_path / name / "model.safetensors")
    step = {key: trained["one"][key] - value for key, value in trained["none"].items()}
    longest = max(float(value.abs().max()) for value in step.values())
    gap = max(float((trained["two"][key] - value).abs().max()) for key, value in trained["one"].items())
    assert longest > 1e-4
    assert gap < 1e-3 * longest


@pytest.mark.parametrize("delta", [None, 1e-3])
def test_naive_noise_has_the_deviation_for_its_number_of_queries(
    sets: Sets, tmp_path: Path, delta: float | None
) -> None:
    """A.2.2: σ = Δ √(2 ln(1.25 n/δ)) n/ε with Δ = 2, one query for each of n people; δ is n^-1.1 unless it is given."""
    site = site_of(
        sets,
        tmp_path,
        name="privacyface-naive",
        privacy={"epsilon": 1e4, "delta": 0.9, "noise": "derived"},
        method__epsilon=40.0,
        method__delta=delta,
    )
    features = unit(site.embed(site.net["model"], site.data).numpy().astype(np.float64))
    people = site.data.identities
    centres = unit(np.stack([features[site.data.subjects == who].mean(axis=0) for who in people]))
    count = len(people)
    sigma = 2 * np.sqrt(2 * np.log(1.25 * count / (delta or count**-1.1))) * count / 40
    sent = privacyface_baselines.release_centres(site, site.lent)
    drawn = DerivedDraws(site.rng("noise", "round 1, class centres")).normal(tuple(centres.shape)).numpy()
    np.testing.assert_allclose(sent["clusters"].numpy(), unit(centres + sigma * drawn), atol=1e-5)


def test_affine_transformation_trains_its_bias_in_the_personal_model(sets: Sets, tmp_path: Path) -> None:
    """Π(f) = Af + c: with c = 0 nothing is another, with another c features move by it, at the site as in training."""
    plain, affine = (site_of(sets, tmp_path, method__customisation=section) for section in ({}, {"affine": True}))
    batch = next(iter(plain.batches_of(plain.data)))
    values = []
    for site in (plain, affine):
        names = fedfr.own_parameters(site)
        values.append(fedfr.customisation(site, batch, face.features_of(site, batch.images)))
    assert names.count(face.SHIFT) == 1
    assert values[0].item() == pytest.approx(values[1].item())
    (gradient,) = torch.autograd.grad(values[1], affine.own(face.SHIFT, lambda: torch.empty(0)))
    assert float(gradient.abs().max()) > 0
    with torch.no_grad():
        affine.own(face.SHIFT, lambda: torch.empty(0)).add_(0.25)
    affine.private_state()
    rows = torch.arange(32.0).reshape(2, 16)
    torch.testing.assert_close(face.own_transformation(affine)(rows), rows + 0.25)
