"""Exported graphs say what torch says, of every kind of model; what does not fit is refused and leaves nothing."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tests.refusals import check_keywords, failed, refused
from tests.toy import SITES, SIZE, recipe_of, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.base.onnx_graphs import open_session
from fedvisage.base.streams import torch_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.device.exported import Exported
from fedvisage.federation.method import Member
from fedvisage.methods import METHODS, find
from fedvisage.nn.texture import ColourTexture
from fedvisage.runs.export.export import export
from fedvisage.runs.export.graph import Graph, measure, require_parity
from fedvisage.tasks.catalogue import set_up
from fedvisage.tasks.finished_model import FinishedModel, open_model
from fedvisage.tasks.saved_model import SavedModel

NARROW = {"name": "mobilefacenet", "width": 8, "embedding": 16}


def crops(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (count, SIZE, SIZE, 3), dtype=np.uint8)


def untrained(
    sets: Mapping[str, Path], name: str, members: int = 1, section: Mapping[str, Any] | None = None, **changes: object
) -> FinishedModel:
    """Return a model of a method with its first weights, as a run would leave them."""
    content = tree(sets, name, **changes)
    recipe = recipe_of(content | {"method": section or content["method"]})
    setup = set_up(recipe, find(recipe.method))
    scorer = setup.scorer()
    whose = [""] if members == 1 else [f"{site}/" for site in SITES[:members]]
    finished = {f"{one}{key}": value for one in whose for key, value in scorer.net.state_dict().items()}
    return FinishedModel(Path("nowhere"), setup, SavedModel({}, finished, {}, {}), scorer)


def test_the_graph_gives_the_probabilities_of_the_model(pad_run: Path, pad: Path) -> None:
    shown = crops(7)
    expected = open_model(pad_run).score(torch.from_numpy(shown).permute(0, 3, 1, 2))
    model = Exported.open(pad)
    assert model.run(shown) == pytest.approx(expected, abs=1e-4)
    (score,) = model.session.run(["score"], {"images": shown})
    assert score == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-4)


def test_the_directory_is_what_a_hub_takes(pad_run: Path, pad: Path) -> None:
    files = {path.relative_to(pad).as_posix() for path in pad.rglob("*") if path.is_file()}
    assert files == {"README.md", "config.json", "model.safetensors", "onnx/model.onnx", "parity.json"}
    card = ModelCard.load(pad / "README.md")
    assert card.data.library_name == "fedvisage"
    assert {one.metric_type for one in card.data.eval_results} >= {"hter", "auc"}
    assert "AUC of 0.37 on real prints" in card.content, "the card warns of simulated attacks"
    ours, theirs = load_file(pad / "model.safetensors"), load_file(pad_run / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_description_names_the_model_and_its_operating_point(pad_run: Path, pad: Path) -> None:
    settings = json.loads((pad_run / "model.json").read_text())
    said = json.loads((pad / "config.json").read_text())["float32"]["description"]
    assert said["model_sha256"] == settings["weights_sha256"]
    assert said["threshold"]["value"] == settings["thresholds"][""]["logit"]
    assert said["threshold"]["rule"] == "source-eer"
    assert said["crop"]["detector"]["name"] == "mtcnn"
    assert "adapted" not in said, "this is the model that was trained"
    inside = {one.key: json.loads(one.value) for one in onnx.load(pad / "onnx/model.onnx").metadata_props}
    assert {f"fedvisage.{name}": value for name, value in said.items()}.items() <= inside.items()


def test_the_comparison_is_kept(pad: Path) -> None:
    said = json.loads((pad / "parity.json").read_text())
    assert [one["batch"] for one in said["batches"]] == [1, 5]
    assert all(one["score_difference"] <= 1e-4 for one in said["batches"])


def test_nothing_in_it_names_a_site_or_a_place_of_this_machine(sets: Mapping[str, Path], pad: Path) -> None:
    roots = (str(Path(__file__).parents[3]), str(sets["A"].parent), "secret-")
    for path in pad.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [root for root in roots if root.encode() in content], path


def test_a_recognition_model_without_a_threshold_is_exported_with_a_notice(
    recognition_run: Path, tmp_path: Path
) -> None:
    model = open_model(recognition_run)
    without = replace(model, saved=replace(model.saved, thresholds={}))
    written = export(without, tmp_path / "out", cache=tmp_path)
    assert Exported.open(tmp_path / "out").threshold is None
    (notice,) = (line for line in written.notices if "threshold" in line)
    check_keywords(notice, ("evaluation.recognition.fmr", "held-out", "serve"))
    assert notice in (tmp_path / "out/README.md").read_text()


@pytest.mark.slow
def test_features_are_exported_at_unit_length(sets: Mapping[str, Path], tmp_path: Path) -> None:
    compare_graph(untrained(sets, "fedavg"), tmp_path)


def test_no_part_of_a_graph_is_called_by_a_word_of_python(sets: Mapping[str, Path]) -> None:
    model = untrained(sets, "fedavg", method__network=NARROW)
    graph = Graph(model, [model.saved.finished])
    names = {part for name, _ in graph.named_modules() for part in name.split(".")}
    assert not any(keyword.iskeyword(name) for name in names)
    shown = torch.from_numpy(crops(2))
    features = model.net(shown.permute(0, 3, 1, 2) / 255)
    assert torch.allclose(graph.eval()(shown)[0], features / features.norm(dim=1, keepdim=True), atol=1e-5)


@pytest.mark.slow
def test_mobilefacenet_is_exported(sets: Mapping[str, Path], tmp_path: Path) -> None:
    compare_graph(untrained(sets, "fedavg", method__network=NARROW), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_model_of_every_method_is_exported(sets: Mapping[str, Path], tmp_path: Path, name: str) -> None:
    members = 2 if METHODS[name].members == "mean" else 1
    compare_graph(untrained(sets, name, members), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["mobilenetv3_small_050", "efficientnet_lite0", "convnext_atto"])
def test_networks_of_timm_are_exported(sets: Mapping[str, Path], tmp_path: Path, arch: str) -> None:
    method = {"name": "fedprox", "model": "timm", "network": {"arch": arch}}
    compare_graph(untrained(sets, "fedpad", section=method), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("network", [{"encoder": "resnet18"}, {"stem": "unshuffled"}], ids=str)
def test_fedgpads_other_encoders_are_exported(
    sets: Mapping[str, Path], tmp_path: Path, network: Mapping[str, str]
) -> None:
    compare_graph(untrained(sets, "fedgpad", method__network={"width": 8, **network}), tmp_path)


def compare_graph(model: FinishedModel, place: Path) -> None:
    """Write a graph and compare it with the method's own target, image by image."""
    from fedvisage.federation.server import members_of
    from fedvisage.runs.export.graph import write_graph

    path, method = place / "model.onnx", model.setup.method
    members = [one for _, one in sorted(members_of(model.saved.finished).items())]
    write_graph(Graph(model, members), path, SIZE)
    session = open_session(str(path), path.read_bytes(), 1, remedy="")
    shown = crops(5)
    found = session.run(None, {"images": shown})[-1]
    assert session.run(None, {"images": shown[:1]})[-1] == pytest.approx(found[:1], abs=1e-4)
    expected = model.net(torch.from_numpy(shown).permute(0, 3, 1, 2).float() / 255).detach()
    if method.prediction.draw_spread is not None:
        return  # it draws; its mean is tested beside the method
    if method.task == "recognition":
        expected = expected / expected.norm(dim=1, keepdim=True)
    assert found == pytest.approx(expected.numpy(), abs=1e-4)


def test_what_draws_is_exported_as_the_mean_over_its_blocks(sets: Mapping[str, Path]) -> None:
    model = untrained(sets, "vit-h-is", method__inference={"blocks": "all"})
    images = torch.rand(3, 6, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        member = Member(model.scorer.net, images, torch_rng(0, "draws"), model.recipe)
        prediction = model.setup.method.prediction
        assert prediction.exportable_predict is not None
        found, expected = prediction.exportable_predict(member), prediction.predict(member)
    assert torch.allclose(found, expected, atol=1e-6)


def test_texture_is_counted_alike_in_a_graph() -> None:
    images = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    texture = ColourTexture()
    assert torch.equal(texture.as_graph(images), texture(images))


def test_members_are_one_graph(sets: Mapping[str, Path]) -> None:
    model = untrained(sets, "fused", 2)
    weights = model.scorer.net.state_dict()
    torch.manual_seed(0)
    others = {
        name: one + 0.01 * torch.randn_like(one) if one.is_floating_point() else one for name, one in weights.items()
    }
    shown = torch.from_numpy(crops(4))
    with torch.no_grad():
        alone = [Graph(model, [one]).eval()(shown)[0] for one in (weights, others)]
        both = Graph(model, [weights, others]).eval()(shown)[0]
    assert both.numpy() == pytest.approx((alone[0] + alone[1]).numpy() / 2, abs=1e-6)
    assert not torch.allclose(alone[0], alone[1], atol=1e-4)


def test_an_export_is_refused_when_it_says_another_thing_than_torch() -> None:
    shown = crops(10)

    def of(shift: float) -> object:
        return lambda part: part.mean(axis=(1, 2, 3)) / 255 + shift

    require_parity(measure(of(0.0), of(1e-5), shown, "pad"))  # type: ignore[arg-type]
    with failed(RunFailed, "torch", "batches of 1"):
        require_parity(measure(of(0.0), of(1e-2), shown, "pad"))  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="cosine"):
        require_parity(
            measure(lambda part: np.eye(2)[[0] * len(part)], lambda part: np.ones((len(part), 2)), shown, "x")
        )
    with pytest.raises(RunFailed):
        require_parity(measure(of(0.0), of(float("nan")), shown, "pad"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_export_that_fails_leaves_nothing(pad_run: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    model = open_model(pad_run)
    swapped = dict(model.saved.finished)
    name = next(key for key in swapped if key.endswith("fc.bias"))

    def late(text: str) -> None:
        if "comparing" in text:  # the weights change between graph and comparison
            swapped[name].add_(1.0)

    changed = FinishedModel(
        model.directory, model.setup, SavedModel(**{**vars(model.saved), "finished": swapped}), model.scorer
    )
    with pytest.raises(RunFailed, match="torch"):
        export(changed, tmp_path / "out" / "model", cache=tmp_path, say=late)
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_calls_are_told_by_place(pad_run: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    model = open_model(pad_run)
    with refused("full", "empty"):
        export(model, tmp_path / "full", cache=tmp_path)
    with refused("--member", "--member"):
        export(model, tmp_path / "out", member="A", cache=tmp_path)
    with refused("no-set", "directory"):
        export(model, tmp_path / "out", data=str(tmp_path / "no-set"), cache=tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_target_is_compared_on_generated_pictures(
    sets: Mapping[str, Path], pad_run: Path, tmp_path: Path
) -> None:
    model = untrained(sets, "fedpad", data__target=None)
    with_threshold = replace(model, saved=replace(model.saved, thresholds=open_model(pad_run).saved.thresholds))
    assert export(with_threshold, tmp_path / "model", cache=tmp_path).compared_on == "generated pictures"


@pytest.mark.slow
def test_exporting_changes_no_byte_of_the_run_and_repeats(pad_run: Path, pad: Path, tmp_path: Path) -> None:
    before = weights(pad_run)
    export(open_model(pad_run), tmp_path / "again", cache=tmp_path)
    assert weights(pad_run) == before
    assert (tmp_path / "again/onnx/model.onnx").read_bytes() == (pad / "onnx/model.onnx").read_bytes()


def test_crops_of_the_set_go_through_both(pad: Path, sets: Mapping[str, Path]) -> None:
    images = PreparedSet.open(sets["U"]).images
    model = Exported.open(pad)
    assert model.run(images[:5]) == pytest.approx(
        np.concatenate([model.run(one[None]) for one in images[:5]]), abs=1e-5
    )
