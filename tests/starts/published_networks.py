"""Plain implementations of published networks, with the names of their projects and random weights."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}


def randomise(net: nn.Module, seed: int = 0) -> nn.Module:
    """Draw different weights and statistics for every layer, at a scale that keeps features bounded."""
    draw = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(0.3 * torch.randn(module.num_features, generator=draw))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=draw))
            if module.affine:
                module.weight.data.copy_(0.5 + torch.rand(module.num_features, generator=draw))
                module.bias.data.copy_(0.3 * torch.randn(module.num_features, generator=draw))
        elif isinstance(module, nn.PReLU):
            module.weight.data.copy_(0.5 * torch.rand(module.weight.shape, generator=draw))
        elif isinstance(module, nn.Conv2d | nn.Linear):
            inputs = module.weight[0].numel()
            module.weight.data.copy_(torch.randn(module.weight.shape, generator=draw) * inputs**-0.5)
            if module.bias is not None:
                module.bias.data.copy_(0.5 * torch.randn(module.bias.shape, generator=draw))
    return net.eval()


def conv(
    inputs: int, outputs: int, side: int = 3, stride: int = 1, groups: int = 1, pad: int | None = None
) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, stride, side // 2 if pad is None else pad, groups=groups, bias=False)


class InsightBlock(nn.Module):
    """A block of arcface_torch's iresnet."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1, self.bn2 = nn.BatchNorm2d(inputs), conv(inputs, width), nn.BatchNorm2d(width)
        self.prelu, self.conv2, self.bn3 = nn.PReLU(width), conv(width, width, stride=stride), nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return out + (x if self.downsample is None else self.downsample(x))


class Insightface(nn.Module):
    """arcface_torch's iresnet."""

    def __init__(self, depth: int, width: int, embedding: int, size: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.prelu = conv(3, width), nn.BatchNorm2d(width), nn.PReLU(width)
        inputs = width
        for stage, count in enumerate(BLOCKS[depth]):
            outputs = width * 2**stage
            blocks = [InsightBlock(inputs, outputs, 2), *(InsightBlock(outputs, outputs, 1) for _ in range(count - 1))]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            inputs = outputs
        self.bn2, self.fc = nn.BatchNorm2d(inputs), nn.Linear(inputs * (size // 16) ** 2, embedding)
        self.features = nn.BatchNorm1d(embedding)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)  # type: ignore[operator]
        features: Tensor = self.features(self.fc(self.bn2(x).flatten(1)))
        return features


class IRBlock(nn.Module):
    """A block of AdaFace's IR networks."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        if inputs == width:
            self.shortcut_layer: nn.Module = nn.MaxPool2d(1, stride)
        else:
            self.shortcut_layer = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            conv(inputs, width),
            nn.BatchNorm2d(width),
            nn.PReLU(width),
            conv(width, width, stride=stride),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = self.shortcut_layer(x)  # first, as in AdaFace: exported graphs keep this order
        output: Tensor = shortcut + self.res_layer(x)
        return output


class AdaFace(nn.Module):
    """AdaFace's and CVLface's IR network, which returns a feature of unit length and its norm."""

    def __init__(self, depth: int, width: int, embedding: int, size: int) -> None:
        super().__init__()
        self.input_layer = nn.Sequential(conv(3, width), nn.BatchNorm2d(width), nn.PReLU(width))
        blocks, inputs = [], width
        for stage, count in enumerate(BLOCKS[depth]):
            outputs = width * 2**stage
            blocks += [IRBlock(inputs, outputs, 2), *(IRBlock(outputs, outputs, 1) for _ in range(count - 1))]
            inputs = outputs
        self.body = nn.Sequential(*blocks)
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Dropout(0.4),
            nn.Flatten(),
            nn.Linear(inputs * (size // 16) ** 2, embedding),
            nn.BatchNorm1d(embedding, affine=False),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.output_layer(self.body(self.input_layer(x)))
        norm = feature.norm(dim=1, keepdim=True)
        return feature / norm, norm


def sequential(**parts: nn.Module) -> nn.Sequential:
    net = nn.Sequential()
    for name, part in parts.items():
        net.add_module(name, part)
    return net


def conv_block(
    inputs: int,
    outputs: int,
    side: int = 1,
    stride: int = 1,
    groups: int = 1,
    pad: int | None = None,
    prelu: bool = True,
) -> nn.Sequential:
    parts = {"conv": conv(inputs, outputs, side, stride, groups, pad), "bn": nn.BatchNorm2d(outputs)}
    return sequential(**parts, **({"prelu": nn.PReLU(outputs)} if prelu else {}))


class DepthWise(nn.Module):
    """A bottleneck of InsightFace_Pytorch's MobileFaceNet."""

    def __init__(self, inputs: int, outputs: int, groups: int, stride: int, residual: bool) -> None:
        super().__init__()
        self.conv = conv_block(inputs, groups)
        self.conv_dw = conv_block(groups, groups, 3, stride, groups)
        self.project = conv_block(groups, outputs, prelu=False)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.conv_dw(self.conv(x)))
        return x + out if self.residual else out


class MobileFaceNet(nn.Module):
    """InsightFace_Pytorch's MobileFaceNet."""

    def __init__(self, width: int, embedding: int, size: int) -> None:
        super().__init__()
        w, d, last = width, 2 * width, 8 * width
        self.conv1, self.conv2_dw = conv_block(3, w, 3, 2), conv_block(w, w, 3, groups=w)
        self.conv_23 = DepthWise(w, w, 2 * w, 2, residual=False)
        self.conv_3 = sequential(model=nn.Sequential(*(DepthWise(w, w, 2 * w, 1, residual=True) for _ in range(4))))
        self.conv_34 = DepthWise(w, d, 4 * w, 2, residual=False)
        self.conv_4 = sequential(model=nn.Sequential(*(DepthWise(d, d, 4 * w, 1, residual=True) for _ in range(6))))
        self.conv_45 = DepthWise(d, d, 8 * w, 2, residual=False)
        self.conv_5 = sequential(model=nn.Sequential(*(DepthWise(d, d, 4 * w, 1, residual=True) for _ in range(2))))
        self.conv_6_sep = conv_block(d, last)
        self.conv_6_dw = conv_block(last, last, size // 16, groups=last, pad=0, prelu=False)
        self.linear, self.bn = nn.Linear(last, embedding, bias=False), nn.BatchNorm1d(embedding)

    def forward(self, x: Tensor) -> Tensor:
        for part in (
            self.conv1,
            self.conv2_dw,
            self.conv_23,
            self.conv_3,
            self.conv_34,
            self.conv_4,
            self.conv_45,
            self.conv_5,
            self.conv_6_sep,
            self.conv_6_dw,
        ):
            x = part(x)
        features: Tensor = self.bn(self.linear(x.flatten(1)))
        return features


class InvertedBottleneck(nn.Module):
    """A bottleneck of foamliu's MobileFaceNet."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        wide = nn.Sequential(conv(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6())
        each = nn.Sequential(conv(inner, inner, 3, stride, inner), nn.BatchNorm2d(inner), nn.ReLU6())
        self.conv = nn.Sequential(wide, each, conv(inner, outputs, 1), nn.BatchNorm2d(outputs))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


class Foamliu(nn.Module):
    """foamliu's MobileFaceNet: one layer more, ReLU6, a bias before the last BatchNorm."""

    def __init__(self, width: int, embedding: int, size: int) -> None:
        super().__init__()
        w, last = width, 8 * width
        self.conv1 = nn.Sequential(conv(3, w, stride=2), nn.BatchNorm2d(w), nn.ReLU6())
        self.dw_conv = sequential(
            depthwise=conv(w, w, groups=w), pointwise=conv(w, w, 1), bn1=nn.BatchNorm2d(w), bn2=nn.BatchNorm2d(w)
        )
        blocks, inputs = [], w
        for expansion, outputs, count, stride in (
            (2, w, 5, 2),
            (4, 2 * w, 1, 2),
            (2, 2 * w, 6, 1),
            (4, 2 * w, 1, 2),
            (2, 2 * w, 2, 1),
        ):
            for index in range(count):
                blocks.append(InvertedBottleneck(inputs, outputs, stride if index == 0 else 1, expansion))
                inputs = outputs
        self.conv2 = nn.Sequential(conv(inputs, last, 1), nn.BatchNorm2d(last), nn.ReLU6())
        self.gdconv = sequential(depthwise=conv(last, last, size // 16, groups=last, pad=0), bn=nn.BatchNorm2d(last))
        self.conv3, self.bn = nn.Conv2d(last, embedding, 1), nn.BatchNorm2d(embedding)
        self.features = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x, layers = self.conv1(x), self.dw_conv
        x = layers.bn1(layers.depthwise(x)).relu()  # type: ignore[operator]
        x = layers.bn2(layers.pointwise(x)).relu()  # type: ignore[operator]
        features: Tensor = self.bn(self.conv3(self.gdconv(self.conv2(self.features(x)))))
        return features.flatten(1)


class SqueezeExcitation(DepthWise):
    """A bottleneck of Minivision's MiniFASNet that scales its channels before it adds them."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__(inputs, outputs, groups, 1, residual=False)
        narrow = outputs // 4
        self.se_module = sequential(
            fc1=conv(outputs, narrow, 1),
            bn1=nn.BatchNorm2d(narrow),
            fc2=conv(narrow, outputs, 1),
            bn2=nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        out, se = super().forward(x), self.se_module
        gate = se.bn1(se.fc1(out.mean((2, 3), keepdim=True))).relu()  # type: ignore[operator]
        scaled: Tensor = out * se.bn2(se.fc2(gate)).sigmoid()  # type: ignore[operator]
        return x + scaled


MINIFASNETS = {
    "v1": ([13, 26, 13, 52], 231, [154, 52, 26, 52, 26, 26], 308, [26, 26]),
    "v2": ([13, 13, 13, 13], 231, [231, 52, 26, 77, 26, 26], 308, [26, 26]),
}


class MiniFASNet(nn.Module):
    """Minivision's MiniFASNet, from BGR pixels between 0 and 255 to three classes."""

    def __init__(self, variant: str, size: int) -> None:
        super().__init__()
        first, to_second, second, to_third, third = MINIFASNETS[variant[:2]]
        self.conv1, self.conv2_dw = conv_block(3, 32, 3, 2), conv_block(32, 32, 3, groups=32)
        self.conv_23, self.conv_3 = DepthWise(32, 64, 103, 2, residual=False), self.blocks(64, first, variant)
        self.conv_34, self.conv_4 = DepthWise(64, 128, to_second, 2, residual=False), self.blocks(128, second, variant)
        self.conv_45, self.conv_5 = DepthWise(128, 128, to_third, 2, residual=False), self.blocks(128, third, variant)
        self.conv_6_sep = conv_block(128, 512)
        self.conv_6_dw = conv_block(512, 512, size // 16, groups=512, pad=0, prelu=False)
        self.linear, self.bn = nn.Linear(512, 128, bias=False), nn.BatchNorm1d(128)
        self.prob = nn.Linear(128, 3, bias=False)

    @staticmethod
    def blocks(width: int, inner: list[int], variant: str) -> nn.Sequential:
        blocks: list[nn.Module] = [DepthWise(width, width, groups, 1, residual=True) for groups in inner]
        if variant.endswith("se"):
            blocks[-1] = SqueezeExcitation(width, width, inner[-1])
        return sequential(model=nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.named_children():
            x = part(x.flatten(1) if name == "linear" else x)
        return x
