"""The network of FedPAD: its shape, its seed, and the features before its last layer."""

import pytest
import torch
from pydantic import ValidationError
from timm.models.resnet import BasicBlock
from timm.models.resnet import ResNet as TimmResNet

from fedvisage.nn.compute import resolve_compute
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18


def test_the_papers_width_has_the_weights_of_a_resnet_18() -> None:
    """torchvision's ResNet-18 has 11,689,512; here six input channels and one output instead of three and 1,000."""
    model = resnet18(ResNet18(), "rgb+hsv")
    expected = 11_689_512 + 3 * 64 * 49 - 999 * 512 - 999
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_any_size_gives_one_logit_that_follows_from_the_features() -> None:
    model = resnet18(ResNet18(width=8), "rgb").eval()
    for size in (16, 40):
        images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        features = pooled_features(model, images)
        assert features.shape == (2, 64)
        assert torch.equal(model.get_submodule("fc")(features), model(images))


@pytest.mark.parametrize(("width", "colour"), [(8, "rgb"), (16, "rgb+hsv"), (64, "rgb+hsv")])
def test_network_has_the_names_weights_outputs_and_gradients_of_timms(width: int, colour: str) -> None:
    torch.manual_seed(width)
    own = resnet18(ResNet18(width=width), colour)
    after_own = torch.get_rng_state()
    torch.manual_seed(width)
    channels = (width, 2 * width, 4 * width, 8 * width)
    other = TimmResNet(BasicBlock, (2, 2, 2, 2), num_classes=1, in_chans=CHANNELS[colour], channels=channels)
    assert torch.equal(torch.get_rng_state(), after_own)
    assert list(own.state_dict()) == list(other.state_dict())
    assert all(torch.equal(own.state_dict()[name], value) for name, value in other.state_dict().items())
    images = torch.rand(3, CHANNELS[colour], 40, 40)
    for net in (own, other):
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(0.01)  # no residual branch is zero any more
        net(images).square().sum().backward()
        net.eval()
    for mine, theirs in zip(own.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0)
    assert torch.equal(own(images), other(images))


@pytest.mark.parametrize("width", [0, 12, 128])
def test_unsupported_widths_are_refused(width: int) -> None:
    with pytest.raises(ValidationError):
        ResNet18(width=width)


def test_full_precision_computes_in_float32() -> None:
    compute = resolve_compute("cpu", "fp32")
    with compute.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with resolve_compute("cpu", "bf16").autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
