"""Map files of weights to our networks: face networks, MiniFASNet, FedPAD's ResNet-18, and any network of timm's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import get_args

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from fedvisage.base.errors import UserError, choice_hint
from fedvisage.nn.face_networks import LAST, FaceNetwork, NetworkName, face_network
from fedvisage.nn.inputs import CHANNELS
from fedvisage.nn.minifasnet import INNER, MiniFASNet, Variant, minifasnet
from fedvisage.nn.resnet import ResNet18, pooled_features, resnet18
from fedvisage.nn.text_head import TEXTS
from fedvisage.nn.timm_network import TimmNetwork, timm_network
from fedvisage.nn.vit import IMAGENET_MEAN, IMAGENET_STD, REDUCTION
from fedvisage.recipe import Input
from fedvisage.starts.files import WeightsFile
from fedvisage.starts.layouts import (
    COUNTER,
    Colour,
    ConvertedNetwork,
    FitResult,
    LayerRow,
    WeightsLayout,
    check_fit,
    fit_tensors,
    layouts_of,
    match_in_order,
    minivision,
    prefix_of,
    to_rgb,
)

# Networks of timm. A file has timm's names, or names that timm's own tables translate. CLIP's and OpenCLIP's image
# towers, DINOv2, DINOv3, SigLIP and others have such tables, which also interpolate positions for another size of
# pictures. The last layer belongs to other classes and is left out.


def convert_timm(
    source: WeightsFile, arch: str, size: int | None, colour: Colour | None, texts: Tensor | None = None
) -> ConvertedNetwork:
    """Map a file to an architecture of timm's; refuse mismatches by name.

    With the directions of texts, the result also has these, and the tower's projection into their space.
    """
    import timm

    published = timm.get_pretrained_cfg(arch)
    side = size or (published.input_size[-1] if published is not None else 224)
    outputs = 0 if texts is None else texts.shape[1]
    model = timm_network(TimmNetwork(arch=arch), Input(size=side, colour="rgb"), outputs)
    expected, renamed_tensors = model.network.state_dict(), rename_tensors(source, model.network)
    projection = renamed_tensors.get("head.weight")
    if texts is not None and (projection is None or len(projection) != outputs):
        lacks = "has no projection into the space of texts (head.weight); it is for towers of CLIP and OpenCLIP"
        problem = lacks if projection is None else f"projects to {len(projection)} numbers; texts have {outputs}"
        raise UserError("--texts", f"{source.path} {problem}")
    # Names that only appear after timm's translation come from another project.
    is_translated = bool((renamed_tensors.keys() & expected.keys()) - source.tensors.keys())
    values = [tuple(float(value) for value in channel.flatten()) for channel in (model.mean, model.std)]
    project = "a project that timm renames" if is_translated else "timm"
    fitted = FitResult(WeightsLayout(project, (), mean=values[0], std=values[1]), "")
    for name, present in expected.items():
        value = renamed_tensors.get(name)
        if value is None and name.endswith(COUNTER):
            value = torch.zeros_like(present)
        if value is None:
            fitted.lacking.append(name)
        elif value.shape != present.shape:
            fitted.wrong.append(f"{name} {tuple(value.shape)} for {tuple(present.shape)}")
        else:
            fitted.state[name] = value.to(present.dtype).contiguous().clone()
            fitted.pairs.append((name, name))
    # A published classifier is an expected extra; any other extra tensor is a mismatch.
    classifier = getattr(published, "classifier", None) or ("head", "fc", "classifier")
    heads = tuple(f"{name}." for name in ((classifier,) if isinstance(classifier, str) else classifier))
    spare = [name for name in (renamed_tensors if is_translated else source.tensors) if name not in expected]
    fitted.left_out.extend(sorted(name for name in spare if name.startswith(heads)))
    fitted.unknown.extend(sorted(name for name in spare if not name.startswith(heads) and not name.endswith(COUNTER)))
    check_fit(source.path, arch, fitted)
    state = to_rgb(fitted.state, model.network, colour or "rgb")
    model.network.load_state_dict(state)
    name = "timm" if texts is None else f"text-anchored, embedding: {outputs}"
    return ConvertedNetwork(
        fitted=fitted,
        net=model.eval(),
        weights=state if texts is None else state | {TEXTS: texts},
        colour=colour or "rgb",
        size=side,
        network={"arch": arch},
        use=f"method: {{name: fedavg, model: {{name: {name}, arch: {arch}, weights: FILE}}}}\n"
        f"input: {{size: {side}, colour: rgb}}",
    )


def rename_tensors(source: WeightsFile, network: nn.Module) -> dict[str, Tensor]:
    """Return a file's tensors under timm's names, with the positions that timm's own table interpolates."""
    table = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if table is None:
        return dict(source.tensors)
    try:
        return dict(table(dict(source.tensors), network))
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(str(source.path), f"is not what timm expects for this architecture ({error})") from error


FACES = tuple(name for name in get_args(NetworkName) if not name.startswith(("sphere", "timm")))
MINIFASNETS: dict[str, Variant] = {f"minifasnet-{variant}": variant for variant in get_args(Variant)}
PUBLISHED_MARGINS: dict[Variant, float] = {"v2": 2.7, "v1se": 4.0}
"""The margins of the two published files of MiniFASNet."""
OPTION = "--as"


def convert_to_network(
    source: WeightsFile,
    name: str,
    size: int | None,
    colour: Colour | None,
    margin: float | None = None,
    texts: Tensor | None = None,
) -> ConvertedNetwork:
    """Map a file to one of our networks; refuse mismatches by name."""
    if texts is not None and name in (*MINIFASNETS, *FACES, "resnet18"):
        raise UserError("--texts", f"is for image towers of CLIP and OpenCLIP; leave it out for {name}")
    if name in MINIFASNETS:
        return _convert_minifasnet(source, MINIFASNETS[name], colour, margin)
    if margin is not None:
        raise UserError("--margin", f"is the margin of a detector's crops; leave it out for {name}")
    if name in FACES:
        return _convert_face(source, name, size, colour)
    if name == "resnet18":
        return _convert_resnet18(source, colour)
    import timm

    if not timm.is_model(name):
        choices = [*FACES, *MINIFASNETS, "resnet18", "an architecture of timm's"]
        raise UserError(OPTION, f"{name!r} is not a known network{choice_hint(name, choices)}")
    return convert_timm(source, name, size, colour, texts)


def _convert_face(source: WeightsFile, name: str, size: int | None, colour: Colour | None) -> ConvertedNetwork:
    """Map a file to a face recognition network by the layout that fits best."""
    candidates = [_fit_layout(source, layout, name) for layout in layouts_of(name)]
    # The best layout has no mismatch; otherwise the fewest missing tensors make the clearest message.
    options, side, fitted = min(
        candidates, key=lambda candidate: (bool(candidate[2].problem), len(candidate[2].lacking))
    )
    check_fit(source.path, name, fitted)
    # The last layer of a face network determines the size of its pictures.
    if size is not None and size != side:
        raise UserError("--size", f"is {size}, but the last layer of this network expects images of {side} pixels")
    order = colour or fitted.colour
    # Some layouts exist for both orders of colours, and the order is never guessed.
    if order is None:
        raise UserError(
            "--colour", f"is needed: files of {fitted.layout.project} with these names are for rgb or for bgr"
        )
    net = face_network(options, side)
    net.load_state_dict(to_rgb(fitted.state, net, order))
    # Sizes that a recipe must state because they differ from the defaults.
    defaults = FaceNetwork()
    sizes = {"width": (options.width, defaults.width), "embedding": (options.embedding, defaults.embedding)}
    network = {"name": name} | {key: value for key, (value, default) in sizes.items() if value != default}
    settings = ", ".join(f"{key}: {value}" for key, value in network.items())
    return ConvertedNetwork(
        fitted=fitted,
        net=net.eval(),
        weights={f"model.{key}": value for key, value in net.state_dict().items()},
        colour=order,
        size=side,
        network=network,
        use=f"method: {{name: fedavg, network: {{{settings}}}}}\ninput: {{size: {side}, colour: rgb}}\n"
        "training: {start: FILE}",
    )


def _fit_layout(source: WeightsFile, layout: WeightsLayout, name: str) -> tuple[FaceNetwork, int, FitResult]:
    """Return the network's sizes according to the file, and the file mapped to a layout by names or by order."""
    tensors: Mapping[str, Tensor] = source.tensors
    options, side = _sizes(tensors, layout, name)
    fitted = fit_tensors(tensors, layout, _outline(options, side))
    if not fitted.problem or not source.layers:
        return options, side, fitted
    # Exporters may replace the names of a graph's layers; their order remains.
    named = match_in_order(source.layers, layout, _outline(options, side))
    if named is None:
        return options, side, fitted
    options, side = _sizes(named, layout, name)
    ordered = fit_tensors(named, layout, _outline(options, side))
    return options, side, fitted if ordered.problem else ordered


def _outline(options: FaceNetwork, side: int) -> nn.Module:
    """Return a face network without memory for its weights."""
    with torch.device("meta"):
        return face_network(options, side)


def _sizes(tensors: Mapping[str, Tensor], layout: WeightsLayout, name: str) -> tuple[FaceNetwork, int]:
    """Read width, feature length and picture side from the shapes of a file's first and last layers."""
    prefix, sources = prefix_of(tensors, layout.rows), {row.target: row.source for row in layout.rows}

    def shape(target: str) -> tuple[int, ...] | None:
        weight = tensors.get(f"{prefix}{sources.get(target)}.weight")
        return None if weight is None else tuple(weight.shape)

    first = shape("stem.0") or shape("convolution.0")
    last = shape("linear") or shape("features.0")
    kernel = shape("global.0")
    if first is None or last is None or len(last) < 2:
        return FaceNetwork.model_validate({"name": name}), 112
    # A linear layer's input is channels times area; a global convolution's kernel is the side itself.
    channels = LAST * first[0]
    side = kernel[-1] if kernel else round((last[1] / channels) ** 0.5)
    sizes = {"name": name, "width": first[0], "embedding": last[0]}
    try:
        return FaceNetwork.model_validate(sizes), max(1, side) * REDUCTION
    except ValidationError:
        raise UserError(
            OPTION,
            f"{name} has a different shape: the file's first layer has {first[0]} channels, and its "
            f"features have {last[0]} numbers",
        ) from None


def _convert_minifasnet(
    source: WeightsFile, variant: Variant, colour: Colour | None, margin: float | None
) -> ConvertedNetwork:
    """Map a file to MiniFASNet, whose last kernel determines the size of its pictures."""
    margin = margin or PUBLISHED_MARGINS.get(variant)
    if margin is None:
        raise UserError("--margin", f"is needed: the authors published no weights of {variant} and so no margin")
    layout = minivision([len(stage) for stage in INNER[variant.removesuffix("se")]], variant.endswith("se"))
    # The last convolution covers its whole input, so its kernel tells the size of the pictures.
    kernel = source.tensors.get(f"{prefix_of(source.tensors, layout.rows)}conv_6_dw.conv.weight")
    size = REDUCTION * (5 if kernel is None else kernel.shape[-1])
    net = minifasnet(MiniFASNet(variant=variant), "rgb", size)
    fitted = fit_tensors(source.tensors, layout, net)
    check_fit(source.path, f"minifasnet-{variant}", fitted)
    order = colour or fitted.colour or "bgr"
    net.load_state_dict(to_rgb(fitted.state, net, order))
    return ConvertedNetwork(
        fitted=fitted,
        net=net.eval(),
        weights={f"model.{key}": value for key, value in net.state_dict().items()},
        colour=order,
        size=size,
        network={"name": "minifasnet", "variant": variant},
        margin=margin,
        use=f"method: {{name: fedavg, model: {{name: minifasnet, variant: {variant}}}}}\n"
        f"input: {{size: {size}, colour: rgb, margin: {margin:g}}}\ntraining: {{start: FILE}}",
    )


def _convert_resnet18(source: WeightsFile, colour: Colour | None) -> ConvertedNetwork:
    """Map a file to FedPAD's ResNet-18, which takes pixels from 0 to 1 in six channels.

    ImageNet's normalisation is folded into the first layers, and the additional channels begin with zero weights.
    """
    first = source.tensors.get(f"{prefix_of(source.tensors, [LayerRow('conv1', 'conv1')])}conv1.weight")
    width = 64 if first is None else first.shape[0]
    try:
        options = ResNet18(width=width)
    except ValidationError:
        raise UserError(
            OPTION, f"resnet18 has a different shape: the file's first layer has {width} channels"
        ) from None
    net = resnet18(options, "rgb")
    layers = [
        name
        for name, module in net.named_modules()
        if name != "fc" and not list(module.children()) and module.state_dict()
    ]
    layout = WeightsLayout(
        "timm and torchvision",
        tuple(LayerRow(name, name) for name in layers),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        left_out=("fc.",),
    )
    fitted = fit_tensors(source.tensors, layout, net)
    check_fit(source.path, "resnet18", fitted)
    order = colour or "rgb"
    state = to_rgb(fitted.state, net, order)
    # Fold (x − mean) / deviation into the first convolution and the mean of the BatchNorm behind it.
    mean, std = (torch.tensor(values)[None, :, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    state["conv1.weight"] = state["conv1.weight"] / std
    offset = -(state["conv1.weight"] * mean).sum(dim=(1, 2, 3))
    state["bn1.running_mean"] = state["bn1.running_mean"] - offset
    # FedPAD's network also has HSV channels; with zero weights they do not change the features.
    six_channel_net = resnet18(options, "rgb+hsv")
    added = CHANNELS["rgb+hsv"] - 3
    padding = state["conv1.weight"].new_zeros(width, added, *state["conv1.weight"].shape[2:])
    state["conv1.weight"] = torch.cat([state["conv1.weight"], padding], dim=1)
    six_channel_net.load_state_dict(state, strict=False)
    use = "method: {name: fedpad}\ninput: {size: 224}\ntraining: {start: {file: FILE, strict: false}}"
    return ConvertedNetwork(
        fitted=fitted,
        net=_PooledFeatures(six_channel_net.eval()),
        weights={f"model.{key}": value for key, value in state.items()},
        colour=order,
        size=224,
        network={"width": width},
        use=use,
        note="the mean of ImageNet's pixels is folded into the first layer, which sees another one beyond the "
        "border of a picture",
        tolerance=0.1,
    )


class _PooledFeatures(nn.Module):
    """The features of a ResNet with six input channels for RGB pictures; the other channels have no influence yet."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return pooled_features(self.net, torch.cat([images, torch.zeros_like(images)], dim=1))
