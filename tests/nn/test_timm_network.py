"""timm's networks: cut before their last layer they are the same networks, and weights come from files only."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.refusals import refused
from torch import Tensor

from fedvisage.nn.face_networks import FaceNetwork, face_network
from fedvisage.nn.inputs import as_float, colour_channels
from fedvisage.nn.timm_network import NormalisedNetwork, TimmNetwork, load_weights, timm_network
from fedvisage.recipe import Input

SIDE = 64
FAMILIES = (
    "mobilenetv3_small_050",
    "resnet10t",
    "efficientnet_lite0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "ghostnet_100",
    "regnetx_002",
    "vit_pe_core_tiny_patch16_384",  # attention pools the tokens
    "resnetv2_50",  # its last layer is a convolution of one pixel
    "repvit_m0_9",  # its last layer begins with BatchNorm
    "eva02_tiny_patch14_224",  # 64 pixels are no multiple of its tokens' 14
    "edgenext_xx_small",
    "swin_tiny_patch4_window7_224",
)
TINY = "test_efficientnet"


def build_network(arch: str, colour: str = "rgb+hsv", outputs: int = 1) -> NormalisedNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return timm_network(TimmNetwork(arch=arch), Input(size=SIDE, colour=colour), outputs)


def pixels(channels: int, count: int = 2) -> Tensor:
    return torch.rand(count, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("arch", FAMILIES)
def test_features_and_the_last_layer_compose_to_the_network(arch: str) -> None:
    whole = build_network(arch).eval()
    with torch.no_grad():
        features = whole.pool_features(pixels(6))
        actual, expected = whole.classify(features), whole(pixels(6))
    assert features.ndim == 2
    assert actual.shape == (2, 1)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(expected[0], expected[1]), "the network looks at its images"


@pytest.mark.long
@pytest.mark.parametrize("arch", ["mobilenetv3_small_050", "vit_tiny_patch16_224", "resnetv2_50"])
def test_feature_network_returns_features(arch: str) -> None:
    features, whole = build_network(arch, "rgb", outputs=0).eval(), build_network(arch, "rgb").eval()
    features.network.load_state_dict(
        {name: value for name, value in whole.network.state_dict().items() if name in features.network.state_dict()}
    )
    with torch.no_grad():
        torch.testing.assert_close(features(pixels(3)), whole.pool_features(pixels(3)))


def test_new_network_is_in_training_mode_with_untouched_statistics() -> None:
    whole = build_network(TINY)
    assert all(module.training for module in whole.modules())
    counts = [value for name, value in whole.state_dict().items() if name.endswith("num_batches_tracked")]
    assert counts
    assert not any(counts)


def test_rgb_is_normalised_as_published_and_hsv_to_plus_minus_one() -> None:
    import timm

    whole, images = build_network("mobilenetv3_small_050"), pixels(6)
    published = timm.get_pretrained_cfg("mobilenetv3_small_050")
    with torch.no_grad():
        rgb = torch.stack([(images[:, c] - published.mean[c]) / published.std[c] for c in range(3)], 1)
        expected = whole.eval().network(torch.cat([rgb, 2 * images[:, 3:] - 1], 1))
        assert torch.allclose(whole(images), expected, atol=1e-6)


def test_prepared_images_have_the_channels_of_the_network() -> None:
    stored = torch.randint(0, 255, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    for colour in ("rgb", "rgb+hsv"):
        ready = colour_channels(as_float(stored), colour)
        assert build_network(TINY, colour).eval()(ready).shape == (2, 1)


def test_normalisation_is_not_a_weight() -> None:
    assert all(name.startswith("network.") for name in build_network(TINY).state_dict())


# Weights.


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A file as timm's: three channels and a thousand classes."""
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = timm.create_model(TINY, num_classes=1000)
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer.add_(0.5)
    path = tmp_path / "model.safetensors"
    save_file(network.state_dict(), path)
    return path


def test_a_file_of_three_channels_gives_a_network_of_six_the_same_features(published: Path) -> None:
    import timm

    theirs = timm.create_model(TINY, num_classes=0, checkpoint_path=str(with_no_head(published))).eval()
    whole = build_network(TINY).eval()
    last = {name: value.clone() for name, value in whole.network.get_classifier().state_dict().items()}  # type: ignore[operator]
    load_weights(whole, published)
    images = pixels(6)
    rgb = (images[:, :3] - whole.mean[:3]) / whole.std[:3]
    with torch.no_grad():
        torch.testing.assert_close(whole.pool_features(images), theirs(rgb))
    kept = whole.network.get_classifier().state_dict()  # type: ignore[operator]
    assert all(torch.equal(kept[name], value) for name, value in last.items()), "the last layer is its own"


def with_no_head(path: Path) -> Path:
    from safetensors.torch import load_file

    actual = {name: value for name, value in load_file(path).items() if not name.startswith("classifier")}
    save_file(actual, path.with_name("bare.safetensors"))
    return path.with_name("bare.safetensors")


def test_feature_network_loads_a_file_with_another_head(published: Path) -> None:
    body = build_network(TINY, "rgb", outputs=0)
    load_weights(body, published)
    assert float(dict(body.network.named_buffers())["bn1.running_mean"].mean()) == pytest.approx(0.5)


def check_refused(whole: NormalisedNetwork, path: Path, keyword: str) -> None:
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    with refused("recipe.method.network.weights", keyword):
        load_weights(whole, path)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())


def test_mismatched_file_is_refused_with_the_difference(published: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    actual = load_file(published)
    save_file({name: value for name, value in actual.items() if name != "bn2.weight"}, tmp_path / "less")
    save_file(actual | {"bn2.weight": actual["bn2.weight"][:-1].clone()}, tmp_path / "shape")
    (tmp_path / "no").write_text("tensors")
    check_refused(build_network(TINY), tmp_path / "less", "bn2.weight")
    check_refused(build_network(TINY), tmp_path / "shape", "bn2.weight")
    check_refused(build_network("test_resnet"), published, "conv1.0.weight")
    check_refused(build_network(TINY), tmp_path / "nowhere", "exist")
    with refused(tmp_path / "no", "safetensors"):
        load_weights(build_network(TINY), tmp_path / "no")


# Architectures.


@pytest.mark.parametrize(
    ("arch", "keyword"),
    [
        ("hf-hub:timm/resnet18", "timm.list_models()"),
        ("hf_hub:timm/resnet18.a1_in1k", "timm.list_models()"),
        ("local-dir:/tmp", "timm.list_models()"),
        ("mobilenetv3_smal_050", "mobilenetv3_small_050"),
        ("", "timm.list_models()"),
        ("deit_tiny_distilled_patch16_224", "distilled"),
        ("levit_128s", "distilled"),
        ("inception_v3", "64 pixels"),
        ("volo_d1_224", "features"),
    ],
)
def test_unsupported_network_is_refused_by_place(arch: str, keyword: str) -> None:
    with refused("recipe.method.network.arch", keyword):
        timm_network(TimmNetwork.model_construct(arch=arch), Input(size=SIDE, colour="rgb"), outputs=1)


def test_network_is_built_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a tag, for which timm knows an address, is built without a connection."""
    import socket

    def connect(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert isinstance(build_network("test_efficientnet.r160_in1k"), NormalisedNetwork)


def test_iresnet100_has_as_many_weights_as_published() -> None:
    """65.16 M, as insightface's table of models has it for R100 at 112 pixels.

    Counted here layer by layer: a stem, blocks of two convolutions, of [3, 13, 30, 3], and the fully connected end.
    """
    actual = face_network(FaceNetwork(name="iresnet100", embedding=512), 112)
    count = 3 * 64 * 9 + 2 * 64 + 64
    before = 64
    for width, blocks in zip((64, 128, 256, 512), (3, 13, 30, 3), strict=True):
        for block in range(blocks):
            inputs = before if block == 0 else width
            count += 2 * inputs + 9 * inputs * width + 2 * width + width + 9 * width * width + 2 * width
            count += inputs * width + 2 * width if block == 0 else 0
        before = width
    count += 2 * 512 + 512 * 7 * 7 * 512 + 512 + 2 * 512
    assert count == 65_156_160
    assert sum(value.numel() for value in actual.parameters()) == count


@pytest.mark.parametrize("arch", [TINY, "test_vit"])
def test_network_can_be_built_on_the_meta_device(arch: str) -> None:
    """A finished model's weights are held against one before its network is built."""
    with torch.device("meta"):
        outline = build_network(arch)
    assert all(value.is_meta for value in outline.state_dict().values())
    assert {name: value.shape for name, value in outline.state_dict().items()} == {
        name: value.shape for name, value in build_network(arch).state_dict().items()
    }
