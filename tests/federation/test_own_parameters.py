"""Private parameters of a site, and the batches of recognition."""

from pathlib import Path

import torch
from tests.federation.lent_site import site_of
from tests.toy import Sets

from fedvisage.data.batches import View


def test_private_parameter_is_created_once_trained_and_kept(sets: Sets, tmp_path: Path) -> None:
    site, calls = site_of(sets, tmp_path), []

    def make() -> torch.Tensor:
        calls.append(1)
        return torch.ones(3, 16)

    weight = site.own("W", make)
    assert site.own("W", make) is weight
    optimizer = site.optimizer("model", own=("W",))
    site.step(optimizer, (weight * torch.arange(16.0)).sum())
    kept = site.private_state()
    assert not torch.equal(kept["own/W"], torch.ones(3, 16))
    again = site_of(sets, tmp_path, 2)
    again.kept.update(kept)
    assert torch.equal(again.own("W", make), kept["own/W"])
    assert calls == [1]
    assert {key.split("/")[1] for key in kept if key.startswith("optimizer/")} <= {"model+W"}


def test_batches_of_a_round_repeat_a_view_once_per_epoch(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path, training__local={"epochs": 2}, training__batch=4, training__augment={})
    assert site.public is not None
    view = View.join([site.data, site.public.subset(torch.arange(5).numpy())])
    batches = list(site.batches_of(view))
    assert [len(batch.images) for batch in batches] == [4, 4, 4, 2] * 2
    classes = [torch.cat([batch.class_numbers for batch in half]).tolist() for half in (batches[:4], batches[4:])]
    expected = sorted([*site.classes_of(site.data.subjects), *site.classes_of(site.public.subjects[:5])])
    assert sorted(classes[0]) == sorted(classes[1]) == expected
    assert classes[0] != classes[1]
    later = site_of(sets, tmp_path, 2, training__local={"epochs": 2}, training__batch=4, training__augment={})
    actual = [batch.class_numbers.tolist() for batch in later.batches_of(view)]
    assert actual != [batch.class_numbers.tolist() for batch in batches]


def test_fixed_number_of_batches_wraps_around_a_small_view(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path, training__local={"batches": 7}, training__batch=4)
    assert len(list(site.batches_of(site.data))) == 7


def test_features_are_those_of_the_stored_images_in_both_modes(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path)
    actual = site.embed(site.net["model"].train(), site.data)
    assert site.net["model"].training
    images = site.data.batch(torch.arange(len(site.data)).numpy()).images.float() / 255
    with torch.no_grad():
        assert torch.allclose(actual, site.net["model"].eval()(images), atol=1e-5)


def test_public_features_are_computed_once_per_lent_model(sets: Sets, tmp_path: Path) -> None:
    site = site_of(sets, tmp_path)
    first = site.public_features("model")
    assert site.public_features("model") is first
    with torch.no_grad():
        for value in site.net["model"].parameters():
            value.add_(0.1)
    assert site.public_features("model") is first, "what was lent is the same"
    site.lent = site.tensors("model", "centres")
    assert (site.public_features("model") != first).any()
