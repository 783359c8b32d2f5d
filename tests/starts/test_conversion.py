"""Converted files of other projects give the features of plain implementations of their networks."""

import hashlib
import json
import re
import shlex
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.checkpoints import MakesDirectory
from tests.commands import output_of, refusal_of
from tests.documented import ROOT
from tests.refusals import refused
from tests.starts import published_networks
from tests.starts.published_networks import randomise
from torch import Tensor, nn
from typer.main import get_command

import fedvisage as fv
from fedvisage.base.files import parse_json
from fedvisage.cli import app
from fedvisage.methods import find
from fedvisage.nn.face_networks import FaceNetwork, face_network
from fedvisage.recipe import Start
from fedvisage.starts.convert import Conversion, convert, make_pictures

SIZE, WIDTH, LENGTH = 32, 8, 16
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def centre(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.5


def normalise_imagenet(images: Tensor) -> Tensor:
    return (images - MEAN) / STD


def centre_bgr(images: Tensor) -> Tensor:
    return centre(images.flip(1))


DEEP = "insightface 50, parallel"
NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, str, Callable[[Tensor], Tensor]]] = {
    "insightface": (lambda: published_networks.Insightface(18, WIDTH, LENGTH, SIZE), "iresnet18", "", centre),
    DEEP: (lambda: published_networks.Insightface(50, WIDTH, LENGTH, SIZE), "iresnet50", "module.", centre),
    "adaface": (lambda: published_networks.AdaFace(18, WIDTH, LENGTH, SIZE), "iresnet18", "model.", centre_bgr),
    "cvlface": (lambda: published_networks.AdaFace(18, WIDTH, LENGTH, SIZE), "iresnet18", "net.", centre),
    "mobilefacenet": (lambda: published_networks.MobileFaceNet(WIDTH, LENGTH, SIZE), "mobilefacenet", "", centre),
    "foamliu": (lambda: published_networks.Foamliu(WIDTH, LENGTH, SIZE), "mobilefacenet-dw", "", normalise_imagenet),
}


def write_weights(net: nn.Module, path: Path, prefix: str = "") -> Path:
    save_file({f"{prefix}{name}": value.clone() for name, value in net.state_dict().items()}, path)
    return path


def features_of(net: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        output: Any = net(images)
    features: Tensor = output[0] * output[1] if isinstance(output, tuple) else output
    return features


def check_features(conversion: Conversion, name: str, expected: Callable[[Tensor], Tensor]) -> None:
    """Check that the converted network gives the expected features of pictures."""
    images = make_pictures(SIZE)
    features = expected(images)
    assert features.std() > 0.1, "the features differ between pictures"
    torch.testing.assert_close(features_of(build_converted(conversion, name), images), features, rtol=1e-3, atol=1e-3)


def build_converted(conversion: Conversion, name: str) -> nn.Module:
    """Return the network that a recipe with the printed lines would build, with the file in it."""
    net = face_network(FaceNetwork(name=name, width=WIDTH, embedding=LENGTH), SIZE)
    net.load_state_dict({key.removeprefix("model."): value for key, value in load_file(conversion.destination).items()})
    return net.eval()


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=pytest.mark.slow) if name == DEEP else name for name in NETWORKS]
)
def test_converted_file_gives_the_features_of_its_source(layout: str, tmp_path: Path) -> None:
    build, name, prefix, normalise = NETWORKS[layout]
    net = randomise(build())
    conversion = convert(write_weights(net, tmp_path / "a.safetensors", prefix), name, tmp_path / "b.safetensors")
    check_features(conversion, name, lambda images: features_of(net, normalise(images)))
    assert conversion.result.size == SIZE


def test_converted_file_states_source_and_licence(tmp_path: Path) -> None:
    path = write_weights(randomise(NETWORKS["insightface"][0]()), tmp_path / "a.safetensors")
    convert(path, "iresnet18", tmp_path / "b.safetensors", licence="for research only")
    with safe_open(tmp_path / "b.safetensors", framework="pt") as file:
        metadata = parse_json(file.metadata()["fedvisage"])
    assert metadata["source"] == {
        "name": "a.safetensors",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "project": "insightface arcface_torch",
    }
    assert metadata["licence"] == "for research only"
    assert metadata["network"] == {"name": "iresnet18", "width": WIDTH, "embedding": LENGTH}
    assert metadata["input"] == {"size": SIZE, "colour": "rgb"}


def test_mismatched_tensors_are_refused_by_name(tmp_path: Path) -> None:
    state = {name: value.clone() for name, value in randomise(NETWORKS["insightface"][0]()).state_dict().items()}
    for change, keyword in (
        ({"layer2.0.se.weight": torch.zeros(3)}, "extra tensors layer2.0.se.weight"),
        ({"layer3.1.bn2.bias": None}, "lacks layer3.1.bn2.bias"),
        ({"layer3.1.conv1.weight": torch.zeros(8, 8, 3, 3)}, "layer3.1.conv1.weight (8, 8, 3, 3)"),
    ):
        changed: dict[str, Any] = {**state, **change}
        save_file({key: value for key, value in changed.items() if value is not None}, tmp_path / "a.safetensors")
        with refused("a.safetensors", keyword):
            convert(tmp_path / "a.safetensors", "iresnet18", tmp_path / "b.safetensors")
        assert not (tmp_path / "b.safetensors").exists()


def test_class_centres_are_left_out_and_named(tmp_path: Path) -> None:
    state = {f"model.{key}": value for key, value in randomise(NETWORKS["adaface"][0]()).state_dict().items()}
    save_file({**state, "head.kernel": torch.zeros(LENGTH, 5)}, tmp_path / "a.safetensors")
    conversion = convert(tmp_path / "a.safetensors", "iresnet18", tmp_path / "b.safetensors")
    assert conversion.result.fitted.left_out == ["head.kernel"]
    assert any("head.kernel" in line and "left out" in line for line in conversion.lines())


def test_ambiguous_colour_order_must_be_given(tmp_path: Path) -> None:
    net = randomise(NETWORKS["adaface"][0]())
    path = write_weights(net, tmp_path / "a.safetensors")
    with refused("--colour", "rgb", "bgr"):
        convert(path, "iresnet18", tmp_path / "b.safetensors")
    conversion = convert(path, "iresnet18", tmp_path / "b.safetensors", colour="bgr")
    check_features(conversion, "iresnet18", lambda images: features_of(net, centre_bgr(images)))


def test_convert_command_prints_a_valid_recipe_and_lists_tensors_as_json(tmp_path: Path) -> None:
    path = write_weights(randomise(NETWORKS["foamliu"][0]()), tmp_path / "a.safetensors")
    words = ["model", "convert", path, tmp_path / "b.safetensors", "--as", "mobilefacenet-dw"]
    lines = output_of(*words).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("a recipe"))
    printed = yaml.safe_load(textwrap.dedent("\n".join(lines[start + 1 :])))
    printed["training"]["rounds"] = 1
    recipe = fv.load({**printed, "data": {"sites": {"A": "sets/A"}}})
    assert recipe.training.starts_from == Start(file=str(tmp_path / "b.safetensors"))
    assert recipe.input.size == SIZE
    words[3] = tmp_path / "c.safetensors"
    mapping = json.loads(output_of(*words, "--json"))["tensors"]
    assert mapping["gdconv.bn.weight"] == "global.1.weight"
    assert "exists" in refusal_of(*words).message


def test_recipes_and_commands_of_the_pages_on_starts_are_valid() -> None:
    page = (ROOT / "docs" / "starts.md").read_text(encoding="utf-8")
    stacked, adapters, texts, of_faces = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    rest = {"data": {"sites": {"A": "sets/A"}}, "input": {"colour": "rgb"}, "training": {"rounds": 1}}
    assert fv.load({**rest, **yaml.safe_load(stacked)}).method.name == "fedstackfpad"
    recipe = fv.load({**yaml.safe_load(adapters), **rest})
    assert find(recipe.method).title == "FedAvg (adapters)"
    assert find(fv.load({**yaml.safe_load(texts), **rest}).method).title == "FedAvg (text-anchored)"
    assert find(fv.load({**yaml.safe_load(of_faces), **rest}).method).task == "recognition"
    page += (ROOT / "docs" / "real.md").read_text(encoding="utf-8")
    commands = "".join(re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)).splitlines()
    verb = get_command(app).commands["model"].commands["convert"]  # type: ignore[attr-defined]
    conversions = [words[3:] for words in map(shlex.split, commands) if words[1:3] == ["model", "convert"]]
    assert len(conversions) == 3
    for words in conversions:
        verb.make_context("convert", words)


# Checkpoints of torch.


@pytest.mark.long
def test_checkpoint_weights_are_read_from_their_key(tmp_path: Path) -> None:
    net = randomise(NETWORKS["adaface"][0]())
    state = {f"model.{key}": value for key, value in net.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer_states": [{"lr": 0.1}]}, tmp_path / "a.ckpt")
    conversion = convert(tmp_path / "a.ckpt", "iresnet18", tmp_path / "b.safetensors")
    check_features(conversion, "iresnet18", lambda images: features_of(net, centre_bgr(images)))


@pytest.mark.long
def test_checkpoint_with_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": MakesDirectory(tmp_path / "harm")}, tmp_path / "a.pt")
    with refused("a.pt", "tensors", "state_dict()"):
        convert(tmp_path / "a.pt", "iresnet18", tmp_path / "b.safetensors")
    assert not (tmp_path / "harm").exists()


# Graphs.


def export_graph(net: nn.Module, path: Path, *, folded: bool) -> Path:
    """Export by the tracer of published graphs, which folds BatchNorm in evaluation mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = torch.onnx.TrainingMode.EVAL if folded else torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(
            net,
            (torch.zeros(1, 3, SIZE, SIZE),),
            path,
            dynamo=False,
            training=mode,
            do_constant_folding=folded,
            input_names=["input.1"],
        )
    return path


@pytest.mark.long
@pytest.mark.parametrize("folded", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("layout", ["insightface", "adaface", "mobilefacenet", "foamliu"])
def test_graph_is_converted_and_compared_with_itself(layout: str, folded: bool, tmp_path: Path) -> None:
    build, name, _, normalise = NETWORKS[layout]
    net = randomise(build())
    colour: Any = "bgr" if layout == "adaface" else None
    path = export_graph(net, tmp_path / "a.onnx", folded=folded)
    conversion = convert(path, name, tmp_path / "b.safetensors", colour=colour)
    assert conversion.agreement is not None
    assert conversion.agreement.furthest < 1e-4
    check_features(conversion, name, lambda images: features_of(net, normalise(images)))


def test_reference_with_other_weights_is_refused(tmp_path: Path) -> None:
    build = NETWORKS["insightface"][0]
    path = write_weights(randomise(build()), tmp_path / "a.safetensors")
    graph = export_graph(randomise(build(), seed=1), tmp_path / "other.onnx", folded=True)
    with refused("--reference", "other.onnx", "features"):
        convert(path, "iresnet18", tmp_path / "b.safetensors", reference=graph)
    assert not (tmp_path / "b.safetensors").exists()


def test_reference_detects_the_wrong_colour_order(tmp_path: Path) -> None:
    """The graph takes RGB and exchanges the colours itself."""
    net = randomise(NETWORKS["insightface"][0]())
    graph = export_graph(nn.Sequential(ExchangedColours(), net).eval(), tmp_path / "a.onnx", folded=True)
    path = write_weights(net, tmp_path / "a.safetensors")
    with refused("--reference", "a.onnx", "features"):
        convert(path, "iresnet18", tmp_path / "b.safetensors", reference=graph)


class ExchangedColours(nn.Module):
    """A layer that reverses the colour order."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(1)


# Networks of timm, and the one of FedPAD.


def timm_state(arch: str, **more: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = timm.create_model(arch, num_classes=5, **more)
    return net.eval(), {name: value.clone() for name, value in net.state_dict().items()}


def test_timm_file_is_converted_without_its_last_layer(tmp_path: Path) -> None:
    from fedvisage.nn.timm_network import TimmNetwork, load_weights, timm_network
    from fedvisage.recipe import Input

    net, state = timm_state("test_vit")
    save_file(state, tmp_path / "a.safetensors")
    conversion = convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors")
    assert conversion.result.fitted.left_out == ["head.bias", "head.weight"]
    whole = timm_network(
        TimmNetwork(arch="test_vit"), Input(size=conversion.result.size, colour="rgb"), outputs=1
    ).eval()
    load_weights(whole, tmp_path / "b.safetensors")
    images = make_pictures(conversion.result.size)
    normalised = (images - whole.mean) / whole.std
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(normalised), pre_logits=True)  # type: ignore[operator]
        torch.testing.assert_close(whole.pool_features(images), expected)


def test_position_embeddings_are_interpolated_to_the_size(tmp_path: Path) -> None:
    _, state = timm_state("test_vit")
    save_file(state, tmp_path / "a.safetensors")
    conversion = convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors", size=96)
    tokens = state["pos_embed"].shape[1] - 1
    assert conversion.result.weights["pos_embed"].shape[1] == 36 + 1 != tokens + 1


def clip_tower(net: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a timm transformer under the names of CLIP's image tower."""
    state = dict(net.state_dict())
    renamed = {
        "visual.class_embedding": state["cls_token"][0, 0],
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
    }
    for ours, name in (("norm_pre", "ln_pre"), ("norm", "ln_post")):
        renamed |= {f"visual.{name}.{kind}": state[f"{ours}.{kind}"] for kind in ("weight", "bias")}
    inner = {
        "norm1.": "ln_1.",
        "norm2.": "ln_2.",
        "attn.qkv.": "attn.in_proj_",
        "attn.proj.": "attn.out_proj.",
        "mlp.fc1.": "mlp.c_fc.",
        "mlp.fc2.": "mlp.c_proj.",
    }
    for index in range(len(net.blocks)):  # type: ignore[arg-type]
        for ours, name in inner.items():
            for kind in ("weight", "bias"):
                renamed[f"visual.transformer.resblocks.{index}.{name}{kind}"] = state[f"blocks.{index}.{ours}{kind}"]
    return {name: value.clone() for name, value in renamed.items()}


def test_image_tower_of_clip_is_renamed(tmp_path: Path) -> None:
    net, _ = timm_state("vit_base_patch32_clip_224", embed_dim=32, depth=2, num_heads=2)
    state = clip_tower(net)
    from fedvisage.starts.files import WeightsFile
    from fedvisage.starts.networks import rename_tensors

    renamed = rename_tensors(WeightsFile(tmp_path, "safetensors", "", {**state, "text.weight": torch.zeros(1)}), net)
    expected = net.state_dict()
    assert {name for name in expected if not name.startswith("head.")} <= renamed.keys()
    shared = [name for name in renamed if name in expected and not name.startswith("head.")]
    assert all(torch.equal(renamed[name], expected[name]) for name in shared)


def test_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    _, state = timm_state("test_resnet")
    save_file(state, tmp_path / "a.safetensors")
    with refused("a.safetensors", "lacks cls_token", "extra tensors bn1.bias"):
        convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors")
    with refused("--as", "'iresnet51'", "iresnet50"):
        convert(tmp_path / "a.safetensors", "iresnet51", tmp_path / "b.safetensors")


@pytest.mark.long
def test_resnet18_is_converted_to_fedpads_network_without_its_last_layer(tmp_path: Path) -> None:
    """The outputs of the first layer are equal, except at the border of the picture."""
    net, state = timm_state("resnet18")
    save_file(state, tmp_path / "a.safetensors")
    conversion = convert(tmp_path / "a.safetensors", "resnet18", tmp_path / "b.safetensors")
    assert not any(name.startswith("model.fc") for name in conversion.result.weights)
    images = make_pictures(64)
    six = torch.cat([images, torch.rand(4, 3, 64, 64)], dim=1)
    here = conversion.result.net.get_submodule("net")
    with torch.no_grad():
        expected = net.bn1(net.conv1(normalise_imagenet(images)))  # type: ignore[operator]
        actual = here.bn1(here.conv1(six))  # type: ignore[operator]
    torch.testing.assert_close(actual[..., 2:-2, 2:-2], expected[..., 2:-2, 2:-2], rtol=1e-3, atol=1e-4)
    assert conversion.result.note
