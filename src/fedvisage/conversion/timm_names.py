"""Files for any network of timm's: in timm's names, or in those that timm's own tables rename.

CLIP's and OpenCLIP's image towers, DINOv2, DINOv3, SigLIP and others have such tables; positions for another size of
pictures are interpolated by them. The last layer is for other classes and stays out.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from fedvisage.conversion.converted import Converted
from fedvisage.conversion.layout import COUNTER, Colour, Fitted, Layout, in_rgb, refuse
from fedvisage.conversion.reading import Source
from fedvisage.errors import UserError
from fedvisage.nn.timm_network import TimmNetwork, timm_network
from fedvisage.recipe import Input


def of_timm(source: Source, arch: str, size: int | None, colour: Colour | None) -> Converted:
    """Lay a file beside an architecture of timm's; what does not fit is refused by name."""
    import timm

    published = timm.get_pretrained_cfg(arch)
    side = size or (published.input_size[-1] if published is not None else 224)
    whole = timm_network(TimmNetwork(arch=arch), Input(size=side, colour="rgb"), outputs=0)
    wanted, named = whole.network.state_dict(), renamed(source, whole.network)
    by_others = bool((named.keys() & wanted.keys()) - source.tensors.keys())
    values = [tuple(float(one) for one in channel.flatten()) for channel in (whole.mean, whole.std)]
    project = "a project that timm renames" if by_others else "timm"
    fitted = Fitted(Layout(project, (), mean=values[0], std=values[1]), "")
    _fit(fitted, named, wanted)
    heads = _heads(published)
    spare = [name for name in (named if by_others else source.tensors) if name not in wanted]
    fitted.left_out.extend(sorted(name for name in spare if name.startswith(heads)))
    fitted.unknown.extend(sorted(name for name in spare if not name.startswith(heads) and not name.endswith(COUNTER)))
    refuse(source.path, arch, fitted)
    state = in_rgb(fitted.state, whole.network, colour or "rgb")
    whole.network.load_state_dict(state)
    return Converted(
        project=project,
        net=whole.eval(),
        weights=state,
        pairs=fitted.pairs,
        left_out=fitted.left_out,
        colour=colour or "rgb",
        mean=values[0],
        std=values[1],
        size=side,
        network={"arch": arch},
        use=f"method: {{name: fedavg, model: {{name: timm, arch: {arch}, weights: FILE}}}}\n"
        f"input: {{size: {side}, colour: rgb}}",
    )


def _fit(fitted: Fitted, named: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, ours in wanted.items():
        found = named.get(name)
        if found is None and name.endswith(COUNTER):
            found = torch.zeros_like(ours)
        if found is None:
            fitted.lacking.append(name)
        elif found.shape != ours.shape:
            fitted.wrong.append(f"{name} {tuple(found.shape)} for {tuple(ours.shape)}")
        else:
            fitted.state[name] = found.to(ours.dtype).contiguous().clone()
            fitted.pairs.append((name, name))


def _heads(published: Any) -> tuple[str, ...]:
    """Return how the names of an architecture's last layers begin."""
    named = getattr(published, "classifier", None) or ("head", "fc", "classifier")
    return tuple(f"{name}." for name in ((named,) if isinstance(named, str) else named))


def renamed(source: Source, network: nn.Module) -> dict[str, Tensor]:
    """Return a file's tensors under the names, and with the positions, that timm's own table for them gives."""
    table = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if table is None:
        return dict(source.tensors)
    try:
        return dict(table(dict(source.tensors), network))
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(str(source.path), f"is not what timm expects for this architecture ({error})") from error
