"""Files that other projects write become starts: the same features, by a network written plainly in their layout."""

from __future__ import annotations

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
from tests.documented import ROOT
from tests.refusals import refused
from tests.starts import theirs
from torch import Tensor, nn
from typer.main import get_command
from typer.testing import CliRunner

import fedvisage as fv
from fedvisage.base.errors import UserError
from fedvisage.base.files import parse_json
from fedvisage.cli import app
from fedvisage.nn.face_networks import FaceNetwork, face_network
from fedvisage.recipe import Start
from fedvisage.starts.convert import Conversion, convert, make_pictures

SIZE, WIDTH, LENGTH = 32, 8, 16
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def centred(images: Tensor) -> Tensor:
    return (images - 0.5) / 0.5


def for_imagenet(images: Tensor) -> Tensor:
    return (images - MEAN) / STD


def backwards(images: Tensor) -> Tensor:
    return centred(images.flip(1))


DEEP = "insightface 50, parallel"
NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, str, Callable[[Tensor], Tensor]]] = {
    "insightface": (lambda: theirs.Insightface(18, WIDTH, LENGTH, SIZE), "iresnet18", "", centred),
    DEEP: (lambda: theirs.Insightface(50, WIDTH, LENGTH, SIZE), "iresnet50", "module.", centred),
    "adaface": (lambda: theirs.AdaFace(18, WIDTH, LENGTH, SIZE), "iresnet18", "model.", backwards),
    "cvlface": (lambda: theirs.AdaFace(18, WIDTH, LENGTH, SIZE), "iresnet18", "net.", centred),
    "mobilefacenet": (lambda: theirs.MobileFaceNet(WIDTH, LENGTH, SIZE), "mobilefacenet", "", centred),
    "foamliu": (lambda: theirs.Foamliu(WIDTH, LENGTH, SIZE), "mobilefacenet-dw", "", for_imagenet),
}


def as_file(net: nn.Module, path: Path, prefix: str = "") -> Path:
    save_file({f"{prefix}{name}": value.clone() for name, value in net.state_dict().items()}, path)
    return path


def features_of(net: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        found = net(images)
    return found[0] * found[1] if isinstance(found, tuple) else found


def opened(done: Conversion, name: str) -> nn.Module:
    """Return the network that a recipe with the printed lines would build, with the file in it."""
    net = face_network(FaceNetwork(name=name, width=WIDTH, embedding=LENGTH), SIZE)  # type: ignore[arg-type]
    net.load_state_dict({key.removeprefix("model."): value for key, value in load_file(done.destination).items()})
    return net.eval()


@pytest.mark.parametrize(
    "layout", [pytest.param(one, marks=pytest.mark.slow) if one == DEEP else one for one in NETWORKS]
)
def test_a_converted_file_has_the_features_of_its_source(layout: str, tmp_path: Path) -> None:
    build, name, prefix, taken = NETWORKS[layout]
    net = theirs.shaken(build())
    done = convert(as_file(net, tmp_path / "a.safetensors", prefix), name, tmp_path / "b.safetensors")
    images = make_pictures(SIZE)
    expected, found = features_of(net, taken(images)), features_of(opened(done, name), images)
    assert expected.std() > 0.1, "the features tell pictures apart"
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert done.result.size == SIZE


def test_the_file_says_where_it_comes_from_and_under_which_licence(tmp_path: Path) -> None:
    import hashlib

    path = as_file(theirs.shaken(NETWORKS["insightface"][0]()), tmp_path / "a.safetensors")
    convert(path, "iresnet18", tmp_path / "b.safetensors", licence="for research only")
    with safe_open(tmp_path / "b.safetensors", framework="pt") as file:
        said = parse_json(file.metadata()["fedvisage"])
    assert said["source"] == {
        "name": "a.safetensors",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "project": "insightface arcface_torch",
    }
    assert said["licence"] == "for research only"
    assert said["network"] == {"name": "iresnet18", "width": WIDTH, "embedding": LENGTH}
    assert said["input"] == {"size": SIZE, "colour": "rgb"}


def test_what_is_left_over_or_lacking_or_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    state = {name: value.clone() for name, value in theirs.shaken(NETWORKS["insightface"][0]()).state_dict().items()}
    for change, named in (
        ({"layer2.0.se.weight": torch.zeros(3)}, "extra tensors layer2.0.se.weight"),
        ({"layer3.1.bn2.bias": None}, "lacks layer3.1.bn2.bias"),
        ({"layer3.1.conv1.weight": torch.zeros(8, 8, 3, 3)}, "layer3.1.conv1.weight (8, 8, 3, 3)"),
    ):
        changed: dict[str, Any] = {**state, **change}
        save_file({key: value for key, value in changed.items() if value is not None}, tmp_path / "a.safetensors")
        with refused("a.safetensors", named):
            convert(tmp_path / "a.safetensors", "iresnet18", tmp_path / "b.safetensors")
        assert not (tmp_path / "b.safetensors").exists()


def test_the_class_centres_of_training_are_left_out_and_named(tmp_path: Path) -> None:
    state = {f"model.{key}": value for key, value in theirs.shaken(NETWORKS["adaface"][0]()).state_dict().items()}
    save_file({**state, "head.kernel": torch.zeros(LENGTH, 5)}, tmp_path / "a.safetensors")
    done = convert(tmp_path / "a.safetensors", "iresnet18", tmp_path / "b.safetensors")
    assert done.result.left_out == ["head.kernel"]
    assert any("head.kernel" in line and "left out" in line for line in done.lines())


def test_an_order_of_colours_that_names_do_not_tell_must_be_said(tmp_path: Path) -> None:
    net = theirs.shaken(NETWORKS["adaface"][0]())
    path = as_file(net, tmp_path / "a.safetensors")
    with refused("--colour", "rgb", "bgr"):
        convert(path, "iresnet18", tmp_path / "b.safetensors")
    done = convert(path, "iresnet18", tmp_path / "b.safetensors", colour="bgr")
    images = make_pictures(SIZE)
    expected = features_of(net, backwards(images))
    torch.testing.assert_close(features_of(opened(done, "iresnet18"), images), expected, rtol=1e-3, atol=1e-3)


def test_the_command_prints_a_recipe_that_is_read_and_lists_the_tensors_as_json(tmp_path: Path) -> None:
    path = as_file(theirs.shaken(NETWORKS["foamliu"][0]()), tmp_path / "a.safetensors")
    asked = ["model", "convert", str(path), str(tmp_path / "b.safetensors"), "--as", "mobilefacenet-dw"]
    result = CliRunner().invoke(app, asked)
    assert result.exception is None, result.exception
    said = result.output.splitlines()
    start = next(index for index, line in enumerate(said) if line.startswith("a recipe"))
    shown = yaml.safe_load(textwrap.dedent("\n".join(said[start + 1 :])))
    shown["training"]["rounds"] = 1
    recipe = fv.load({**shown, "data": {"sites": {"A": "sets/A"}}})
    assert recipe.training.starts_from == Start(file=str(tmp_path / "b.safetensors"))
    assert recipe.input.size == SIZE
    asked[3] = str(tmp_path / "c.safetensors")
    mapping = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["tensors"]
    assert mapping["gdconv.bn.weight"] == "global.1.weight"
    again = CliRunner().invoke(app, asked)
    assert isinstance(again.exception, UserError)
    assert "exists" in str(again.exception)


def test_the_pages_on_starts_and_real_cameras_show_recipes_and_commands_that_are_read() -> None:
    page = (ROOT / "docs" / "starts.md").read_text(encoding="utf-8")
    stacked, shown, of_faces = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    rest = {"data": {"sites": {"A": "sets/A"}}, "input": {"colour": "rgb"}, "training": {"rounds": 1}}
    assert fv.load({**rest, **yaml.safe_load(stacked)}).method.name == "fedstackfpad"
    recipe = fv.load({**yaml.safe_load(shown), **rest})
    assert fv.methods.find(recipe.method).title == "FedAvg (adapters)"
    assert fv.methods.find(fv.load({**yaml.safe_load(of_faces), **rest}).method).task == "recognition"
    page += (ROOT / "docs" / "real.md").read_text(encoding="utf-8")
    commands = "".join(re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)).splitlines()
    verb = get_command(app).commands["model"].commands["convert"]  # type: ignore[attr-defined]
    conversions = [words[3:] for words in map(shlex.split, commands) if words[1:3] == ["model", "convert"]]
    assert len(conversions) == 3
    for words in conversions:
        verb.make_context("convert", words)


# Checkpoints of torch's.


def test_a_checkpoint_is_read_where_its_weights_stand(tmp_path: Path) -> None:
    net = theirs.shaken(NETWORKS["adaface"][0]())
    state = {f"model.{key}": value for key, value in net.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer_states": [{"lr": 0.1}]}, tmp_path / "a.ckpt")
    done = convert(tmp_path / "a.ckpt", "iresnet18", tmp_path / "b.safetensors")
    images = make_pictures(SIZE)
    expected = features_of(net, backwards(images))
    torch.testing.assert_close(features_of(opened(done, "iresnet18"), images), expected, rtol=1e-3, atol=1e-3)


class Harmful:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": Harmful(tmp_path / "harm")}, tmp_path / "a.pt")
    with refused("a.pt", "tensors", "state_dict()"):
        convert(tmp_path / "a.pt", "iresnet18", tmp_path / "b.safetensors")
    assert not (tmp_path / "harm").exists()


# Graphs.


def written(net: nn.Module, path: Path, *, folded: bool) -> Path:
    """Export by the tracer that published graphs were made with; in evaluation mode it folds BatchNorm."""
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


@pytest.mark.parametrize("folded", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("layout", ["insightface", "adaface", "mobilefacenet", "foamliu"])
def test_a_graph_is_converted_and_compared_with_itself(layout: str, folded: bool, tmp_path: Path) -> None:
    build, name, _, taken = NETWORKS[layout]
    net = theirs.shaken(build())
    colour: Any = "bgr" if layout == "adaface" else None
    path = written(net, tmp_path / "a.onnx", folded=folded)
    done = convert(path, name, tmp_path / "b.safetensors", colour=colour)
    assert done.agreement is not None
    assert done.agreement.furthest < 1e-4
    images = make_pictures(SIZE)
    expected = features_of(net, taken(images))
    torch.testing.assert_close(features_of(opened(done, name), images), expected, rtol=1e-3, atol=1e-3)


def test_a_reference_of_other_weights_is_refused_and_nothing_written(tmp_path: Path) -> None:
    build = NETWORKS["insightface"][0]
    path = as_file(theirs.shaken(build()), tmp_path / "a.safetensors")
    graph = written(theirs.shaken(build(), seed=1), tmp_path / "other.onnx", folded=True)
    with refused("--reference", "other.onnx", "features"):
        convert(path, "iresnet18", tmp_path / "b.safetensors", reference=graph)
    assert not (tmp_path / "b.safetensors").exists()


def test_a_reference_notices_the_wrong_order_of_colours(tmp_path: Path) -> None:
    """The graph here takes RGB, as if somebody had put the exchange of colours into it."""
    net = theirs.shaken(NETWORKS["insightface"][0]())
    graph = written(nn.Sequential(Exchanged(), net).eval(), tmp_path / "a.onnx", folded=True)
    path = as_file(net, tmp_path / "a.safetensors")
    with refused("--reference", "a.onnx", "features"):
        convert(path, "iresnet18", tmp_path / "b.safetensors", reference=graph)


class Exchanged(nn.Module):
    """Takes colours in the other order."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flip(1)


# Networks of timm's, and FedPAD's.


def timm_state(arch: str, **more: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = timm.create_model(arch, num_classes=5, **more)
    return net.eval(), {name: value.clone() for name, value in net.state_dict().items()}


def test_timms_names_become_weights_for_timm_and_the_last_layer_stays_out(tmp_path: Path) -> None:
    from fedvisage.nn.timm_network import TimmNetwork, load_weights, timm_network
    from fedvisage.recipe import Input

    net, state = timm_state("test_vit")
    save_file(state, tmp_path / "a.safetensors")
    done = convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors")
    assert done.result.left_out == ["head.bias", "head.weight"]
    whole = timm_network(TimmNetwork(arch="test_vit"), Input(size=done.result.size, colour="rgb"), outputs=1).eval()
    load_weights(whole, tmp_path / "b.safetensors")
    images = make_pictures(done.result.size)
    taken = (images - whole.mean) / whole.std
    with torch.no_grad():
        theirs_ = net.forward_head(net.forward_features(taken), pre_logits=True)  # type: ignore[operator]
        torch.testing.assert_close(whole.pool_features(images), theirs_)


def test_positions_are_fitted_to_the_size_that_is_asked_for(tmp_path: Path) -> None:
    _, state = timm_state("test_vit")
    save_file(state, tmp_path / "a.safetensors")
    done = convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors", size=96)
    tokens = state["pos_embed"].shape[1] - 1
    assert done.result.weights["pos_embed"].shape[1] == 36 + 1 != tokens + 1


def clip_tower(net: nn.Module) -> dict[str, Tensor]:
    """Write a transformer of timm's as OpenAI's CLIP writes its image tower."""
    state = dict(net.state_dict())
    there = {
        "visual.class_embedding": state["cls_token"][0, 0],
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
    }
    for ours, name in (("norm_pre", "ln_pre"), ("norm", "ln_post")):
        there |= {f"visual.{name}.{kind}": state[f"{ours}.{kind}"] for kind in ("weight", "bias")}
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
                there[f"visual.transformer.resblocks.{index}.{name}{kind}"] = state[f"blocks.{index}.{ours}{kind}"]
    return {name: value.clone() for name, value in there.items()}


def test_the_image_tower_of_clip_is_renamed(tmp_path: Path) -> None:
    net, _ = timm_state("vit_base_patch32_clip_224", embed_dim=32, depth=2, num_heads=2)
    state = clip_tower(net)
    from fedvisage.starts.files import WeightsFile
    from fedvisage.starts.networks import rename_tensors

    found = rename_tensors(WeightsFile(tmp_path, "safetensors", "", {**state, "text.weight": torch.zeros(1)}), net)
    kept = net.state_dict()
    assert {name for name in kept if not name.startswith("head.")} <= found.keys()
    assert all(torch.equal(found[name], kept[name]) for name in found if name in kept and not name.startswith("head."))


def test_a_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    _, state = timm_state("test_resnet")
    save_file(state, tmp_path / "a.safetensors")
    with refused("a.safetensors", "lacks cls_token", "extra tensors bn1.bias"):
        convert(tmp_path / "a.safetensors", "test_vit", tmp_path / "b.safetensors")
    with refused("--as", "'iresnet51'", "iresnet50"):
        convert(tmp_path / "a.safetensors", "iresnet51", tmp_path / "b.safetensors")


def test_a_resnet_of_photographs_becomes_fedpads_but_for_its_last_layer(tmp_path: Path) -> None:
    """Where no border of the picture is seen, the first layer's outputs are the same."""
    net, state = timm_state("resnet18")
    save_file(state, tmp_path / "a.safetensors")
    done = convert(tmp_path / "a.safetensors", "resnet18", tmp_path / "b.safetensors")
    assert not any(name.startswith("model.fc") for name in done.result.weights)
    images = make_pictures(64)
    six = torch.cat([images, torch.rand(4, 3, 64, 64)], dim=1)
    here = done.result.net.get_submodule("net")
    with torch.no_grad():
        expected = net.bn1(net.conv1(for_imagenet(images)))  # type: ignore[operator]
        found = here.bn1(here.conv1(six))  # type: ignore[operator]
    torch.testing.assert_close(found[..., 2:-2, 2:-2], expected[..., 2:-2, 2:-2], rtol=1e-3, atol=1e-4)
    assert done.result.note
