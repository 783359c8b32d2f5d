"""Exported graphs give the outputs of torch for every kind of model; a failed export writes nothing."""

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
from tests.toy import SITES, SIZE, Sets, recipe_of, run_toy, tree, weights

from fedvisage.base.errors import RunFailed
from fedvisage.base.onnx_graphs import open_session
from fedvisage.base.streams import torch_rng
from fedvisage.data.prepared import PreparedSet
from fedvisage.device.exported import CARD, Exported
from fedvisage.federation.method import Member
from fedvisage.methods import METHODS, find
from fedvisage.metrics.threshold import Threshold
from fedvisage.nn.inputs import colour_channels, prepare
from fedvisage.nn.texture import ColourTexture
from fedvisage.runs.export.export import export
from fedvisage.runs.export.graph import Compute, Graph, measure, require_parity
from fedvisage.tasks.catalogue import set_up
from fedvisage.tasks.finished_model import FinishedModel, open_model
from fedvisage.tasks.saved_model import SavedModel

NARROW = {"name": "mobilefacenet", "width": 8, "embedding": 16}
TIMM = ("mobilenetv3_small_050", "efficientnet_lite0", "convnext_atto")


def crops(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (count, SIZE, SIZE, 3), dtype=np.uint8)


def untrained_model(
    sets: Sets, name: str, members: int = 1, section: Mapping[str, Any] | None = None, **changes: object
) -> FinishedModel:
    """Return a model of a method with its first weights, as a run would leave them."""
    content = tree(sets, name, **changes)
    recipe = recipe_of(content | {"method": section or content["method"]})
    setup = set_up(recipe, find(recipe.method))
    scorer = setup.scorer()
    prefixes = [""] if members == 1 else [f"{site}/" for site in SITES[:members]]
    finished = {f"{prefix}{key}": value for prefix in prefixes for key, value in scorer.net.state_dict().items()}
    return FinishedModel(Path("nowhere"), setup, SavedModel({}, finished, {}, {}), scorer)


def test_graph_gives_the_probabilities_of_the_model(pad_run: Path, pad: Path) -> None:
    pictures = crops(7)
    expected = open_model(pad_run).score(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    model = Exported.open(pad)
    assert model.run(pictures) == pytest.approx(expected, abs=1e-4)
    (score,) = model.session.run(["score"], {"images": pictures})
    assert score == pytest.approx(1 / (1 + np.exp(-expected)), abs=1e-4)


def test_export_directory_has_the_layout_of_a_model_hub(pad_run: Path, pad: Path) -> None:
    files = {path.relative_to(pad).as_posix() for path in pad.rglob("*") if path.is_file()}
    assert files == {"README.md", "config.json", "model.safetensors", "onnx/model.onnx", "parity.json"}
    card = ModelCard.load(pad / "README.md")
    assert card.data.library_name == "fedvisage"
    assert {result.metric_type for result in card.data.eval_results} >= {"hter", "auc"}
    assert "AUC of 0.37 on real prints" in card.content, "the card warns of simulated attacks"
    ours, theirs = load_file(pad / "model.safetensors"), load_file(pad_run / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def figures_of_card(directory: Path) -> dict[str, float]:
    """Return the figures of a model card by name."""
    return {
        result.metric_type: result.metric_value for result in ModelCard.load(directory / CARD).data.eval_results or ()
    }


@pytest.mark.long
def test_card_has_only_figures_of_this_graph_at_this_threshold(
    pad_run: Path, pad: Path, sets: Sets, tmp_path: Path
) -> None:
    metrics = json.loads((pad_run / "metrics.json").read_text())
    species = {f"apcer_{name[6:]}": value for name, value in metrics.items() if name.startswith("apcer.")}
    assert len(species) > 1
    assert figures_of_card(pad) == species | {name: metrics[name] for name in ("hter", "eer", "auc", "bpcer")}
    model = open_model(pad_run)
    moved = replace(model.thresholds[""], value=model.thresholds[""].value + 1)
    export(replace(model, saved=replace(model.saved, thresholds={"": moved})), tmp_path / "moved", cache=tmp_path)
    assert figures_of_card(tmp_path / "moved") == {}
    run_toy(tree(sets, "single", training__rounds=1), tmp_path / "run")
    export(open_model(tmp_path / "run"), tmp_path / "of-B", member="B", cache=tmp_path)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["members.B.hter"] != metrics["hter"]
    assert figures_of_card(tmp_path / "of-B")["hter"] == metrics["members.B.hter"]


def test_description_names_the_model_and_its_operating_point(pad_run: Path, pad: Path) -> None:
    settings = json.loads((pad_run / "model.json").read_text())
    stored = json.loads((pad / "config.json").read_text())["float32"]["description"]
    assert stored["model_sha256"] == settings["weights_sha256"]
    assert stored["threshold"]["value"] == settings["thresholds"][""]["logit"]
    assert stored["threshold"]["rule"] == "source-eer"
    assert stored["crop"]["detector"]["name"] == "mtcnn"
    assert "adapted" not in stored, "this is the model that was trained"
    inside = {entry.key: json.loads(entry.value) for entry in onnx.load(pad / "onnx/model.onnx").metadata_props}
    assert {f"fedvisage.{name}": value for name, value in stored.items()}.items() <= inside.items()


@pytest.mark.long
def test_graph_computes_the_six_channels_of_torch_exactly(tmp_path: Path) -> None:
    """Histograms of rounded channels count a pixel elsewhere if the last bit differs; dark pixels show the addend."""

    class Channels(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return colour_channels(images.permute(0, 3, 1, 2).to(torch.float32) / 255.0, "rgb+hsv")

    pictures = torch.from_numpy(crops(4)) // torch.tensor([1, 4, 16, 64], dtype=torch.uint8)[:, None, None, None]
    program = torch.onnx.export(Channels().eval(), (pictures,), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "channels.onnx")
    session = open_session("", (tmp_path / "channels.onnx").read_bytes(), 1, remedy="")
    (channels,) = session.run(None, {session.get_inputs()[0].name: pictures.numpy()})
    assert np.array_equal(channels, prepare(pictures.permute(0, 3, 1, 2), "rgb+hsv", torch.device("cpu")).numpy())


def test_parity_file_records_the_comparison(pad: Path) -> None:
    stored = json.loads((pad / "parity.json").read_text())
    assert [row["batch"] for row in stored["batches"]] == [1, 5]
    assert all(row["score_difference"] <= 1e-4 for row in stored["batches"])


def test_card_states_where_the_rates_of_a_fixed_threshold_were_measured(pad_run: Path, tmp_path: Path) -> None:
    model = open_model(pad_run)
    fixed = replace(model, saved=replace(model.saved, thresholds={"": Threshold(0.0, "fixed", 0.25, 0.5)}))
    export(fixed, tmp_path / "out", cache=tmp_path)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Threshold: logit 0, fixed beforehand (at the sites: FAR 25.00%, FRR 50.00%)." in card


def test_export_names_no_site_and_no_path(sets: Sets, pad: Path) -> None:
    roots = (str(Path(__file__).parents[3]), str(sets["A"].parent), "secret-")
    for path in pad.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [root for root in roots if root.encode() in content], path


@pytest.mark.long
def test_recognition_model_without_a_threshold_is_exported_with_a_notice(recognition_run: Path, tmp_path: Path) -> None:
    model = open_model(recognition_run)
    without = replace(model, saved=replace(model.saved, thresholds={}))
    written = export(without, tmp_path / "out", cache=tmp_path)
    assert Exported.open(tmp_path / "out").threshold is None
    (notice,) = (line for line in written.notices if "threshold" in line)
    check_keywords(notice, ("evaluation.recognition.fmr", "held-out", "serve"))
    assert notice in (tmp_path / "out/README.md").read_text()


def test_modules_of_a_graph_have_no_keyword_as_name(sets: Sets) -> None:
    model = untrained_model(sets, "fedavg", method__network=NARROW)
    graph = Graph(model, [model.saved.finished])
    names = {part for name, _ in graph.named_modules() for part in name.split(".")}
    assert not any(keyword.iskeyword(name) for name in names)
    pictures = torch.from_numpy(crops(2))
    features = model.net(pictures.permute(0, 3, 1, 2) / 255)
    assert torch.allclose(graph.eval()(pictures)[0], features / features.norm(dim=1, keepdim=True), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_model_of_every_method_is_exported(sets: Sets, tmp_path: Path, name: str) -> None:
    members = 2 if METHODS[name].members == "mean" else 1
    compare_graph(untrained_model(sets, name, members), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg", "network": NARROW},
        {"name": "fedgpad", "network": {"width": 8, "encoder": "resnet18"}},
        {"name": "fedgpad", "network": {"width": 8, "stem": "unshuffled"}},
        *({"name": "fedprox", "model": "timm", "network": {"arch": arch}} for arch in TIMM),
    ],
    ids=str,
)
def test_other_networks_are_exported(sets: Sets, tmp_path: Path, method: Mapping[str, Any]) -> None:
    compare_graph(untrained_model(sets, method["name"], section=method), tmp_path)


def compare_graph(model: FinishedModel, place: Path) -> None:
    """Write a graph, and compare it with the method's prediction, image by image."""
    from fedvisage.federation.server import members_of
    from fedvisage.runs.export.graph import write_graph

    path, method = place / "model.onnx", model.setup.method
    members = [member for _, member in sorted(members_of(model.saved.finished).items())]
    write_graph(Graph(model, members), path, SIZE)
    session = open_session(str(path), path.read_bytes(), 1, remedy="")
    pictures = crops(5)
    outputs = session.run(None, {"images": pictures})[-1]
    assert session.run(None, {"images": pictures[:1]})[-1] == pytest.approx(outputs[:1], abs=1e-4)
    expected = model.net(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255).detach()
    if method.prediction.draw_spread is not None:
        return  # a sampling prediction; the tests of its method compare the mean
    if method.task == "recognition":
        expected = expected / expected.norm(dim=1, keepdim=True)
    assert outputs == pytest.approx(expected.numpy(), abs=1e-4)


def test_sampling_prediction_is_exported_as_the_mean_over_its_blocks(sets: Sets) -> None:
    model = untrained_model(sets, "vit-h-is", method__inference={"blocks": "all"})
    images = torch.rand(3, 6, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        member = Member(model.scorer.net, images, torch_rng(0, "draws"), model.recipe)
        prediction = model.setup.method.prediction
        assert prediction.exportable_predict is not None
        actual, expected = prediction.exportable_predict(member), prediction.predict(member)
    assert torch.allclose(actual, expected, atol=1e-6)


def test_texture_histogram_is_equal_in_a_graph() -> None:
    images = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    texture = ColourTexture()
    assert torch.equal(texture.as_graph(images), texture(images))


def test_members_are_averaged_in_one_graph(sets: Sets) -> None:
    model = untrained_model(sets, "fused", 2)
    weights = model.scorer.net.state_dict()
    torch.manual_seed(0)
    others = {
        name: value + 0.01 * torch.randn_like(value) if value.is_floating_point() else value
        for name, value in weights.items()
    }
    pictures = torch.from_numpy(crops(4))
    with torch.no_grad():
        alone = [Graph(model, [member]).eval()(pictures)[0] for member in (weights, others)]
        both = Graph(model, [weights, others]).eval()(pictures)[0]
    assert both.numpy() == pytest.approx((alone[0] + alone[1]).numpy() / 2, abs=1e-6)
    assert not torch.allclose(alone[0], alone[1], atol=1e-4)


def test_graph_with_other_outputs_than_torch_is_refused() -> None:
    pictures = crops(10)

    def compute(shift: float) -> Compute:
        return lambda part: part.mean(axis=(1, 2, 3)) / 255 + shift

    require_parity(measure(compute(0.0), compute(1e-5), pictures, "pad"))
    with failed(RunFailed, "torch", "batches of 1"):
        require_parity(measure(compute(0.0), compute(1e-2), pictures, "pad"))
    with pytest.raises(RunFailed, match="cosine"):
        require_parity(
            measure(lambda part: np.eye(2)[[0] * len(part)], lambda part: np.ones((len(part), 2)), pictures, "x")
        )
    with pytest.raises(RunFailed):
        require_parity(measure(compute(0.0), compute(float("nan")), pictures, "pad"))


@pytest.mark.slow
def test_failed_export_leaves_no_file(pad_run: Path, sets: Sets, tmp_path: Path) -> None:
    model = open_model(pad_run)
    swapped = dict(model.saved.finished)
    name = next(key for key in swapped if key.endswith("fc.bias"))

    def change_weights(text: str) -> None:
        if "comparing" in text:  # the weights change between graph and comparison
            swapped[name].add_(1.0)

    changed = FinishedModel(
        model.directory, model.setup, SavedModel(**{**vars(model.saved), "finished": swapped}), model.scorer
    )
    with pytest.raises(RunFailed, match="torch"):
        export(changed, tmp_path / "out" / "model", cache=tmp_path, say=change_weights)
    assert list((tmp_path / "out").iterdir()) == []


def test_wrong_export_calls_name_the_place(pad_run: Path, sets: Sets, tmp_path: Path) -> None:
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


@pytest.mark.long
def test_model_without_a_target_is_compared_on_generated_pictures(sets: Sets, pad_run: Path, tmp_path: Path) -> None:
    model = untrained_model(sets, "fedpad", data__target=None)
    with_threshold = replace(model, saved=replace(model.saved, thresholds=open_model(pad_run).saved.thresholds))
    assert export(with_threshold, tmp_path / "model", cache=tmp_path).compared_on == "generated pictures"


@pytest.mark.slow
def test_export_changes_no_byte_of_the_run_and_is_deterministic(pad_run: Path, pad: Path, tmp_path: Path) -> None:
    before = weights(pad_run)
    export(open_model(pad_run), tmp_path / "again", cache=tmp_path)
    assert weights(pad_run) == before
    assert (tmp_path / "again/onnx/model.onnx").read_bytes() == (pad / "onnx/model.onnx").read_bytes()


def test_graph_scores_batches_and_single_crops_alike(pad: Path, sets: Sets) -> None:
    images = PreparedSet.open(sets["U"]).images
    model = Exported.open(pad)
    assert model.run(images[:5]) == pytest.approx(
        np.concatenate([model.run(image[None]) for image in images[:5]]), abs=1e-5
    )
