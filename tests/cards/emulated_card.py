"""Two emulated cards, for tests without a GPU: tensors that claim ``card:0`` or ``card:1`` and compute on the CPU.

Each tensor holds its values in a CPU tensor. As on a GPU, one operation takes the tensors of one device only, values
are read by copying them to the CPU, and a generator serves one device. Speed, memory and kernels are not emulated.
An exception in a backward pass ends the process, because torch cannot pass it on from a backend in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from fedvisage.nn.compute import has_gradient_overrun

CARDS = 2
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
"""The operations that take tensors of two devices."""
INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}
"""The operations whose indices may be on the CPU."""
CONVOLUTIONS = {torch.ops.aten.convolution.default: 1, torch.ops.aten.convolution_backward.default: 2}
"""The positions of the weights in the arguments of convolutions; the stride follows as the second argument after."""
HALVED = (
    *("conv2d", "conv1d", "conv_transpose2d.input", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "prelu"),
    "scaled_dot_product_attention",
)
"""The operations that autocast computes in bf16, as on a CPU."""


class Card(Tensor):
    """A tensor of a card."""

    cpu_values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, device: torch.device) -> Card:
        """Claim a device for values on the CPU."""
        card = Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=device,
        )
        card.cpu_values = values
        return card

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Compute on the CPU."""
        return _compute(func, *args, **(kwargs or {}))

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse to share memory, like a tensor of a GPU."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy; use Tensor.cpu() first")

    def tolist(self) -> Any:
        """Return the values as lists; torch does not do this for subclasses."""
        return self.cpu().tolist()


class CardGenerator(torch.Generator):
    """A generator of a card, or of the CPU."""

    def __new__(cls, device: str | torch.device = "cpu") -> CardGenerator:
        """Create a generator on the CPU that claims a device."""
        generator = super().__new__(cls)
        generator.claimed = _with_index(torch.device(device))
        return generator

    def __init__(self, device: str | torch.device = "cpu") -> None:
        """Take the device."""

    claimed: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The claimed device."""
        return self.claimed


class CardModule(_DummyBackendModule):
    """The module ``torch.card``."""

    default_generators = tuple(torch.Generator() for _ in range(CARDS))
    free_bytes = 1 << 30
    copied_to_cpu = 0
    """Bytes copied from cards to the CPU so far."""

    def init(self) -> None:
        """Do nothing, because the cards need no driver."""

    def device_count(self) -> int:
        """Return the number of cards."""
        return CARDS

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """Return the free and all bytes of a card."""
        return self.free_bytes, 1 << 31

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the formats of autocast."""
        return [torch.bfloat16]


class _CheckCalls(TorchFunctionMode):
    """Refuses draws with the generator of another device, and creates tensors from numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.tensor and kwargs and kwargs.get("device") is not None:  # this function skips the dispatcher
            return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        result, generator = func(*args, **(kwargs or {})), (kwargs or {}).get("generator")
        if generator is not None and isinstance(result, Tensor) and result.device != generator.device:
            raise RuntimeError(f"Expected a '{result.device}' generator, but found '{generator.device}'")
        return result


def _compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Execute an operation with the values of its tensors, and claim its device for the results."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    devices = {leaf.device for leaf in tensors if isinstance(leaf, Card)}
    if func not in COPIES:
        devices |= {leaf.device for leaf in (args[:1] if func in INDEXED else tensors) if leaf.ndim}
        if len(devices) > 1:
            names = " and ".join(sorted(map(str, devices)))
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {names} ({func})")
    wanted = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    if func is torch.ops.aten.copy_.default:
        target = args[0].device
    else:
        target = _with_index(wanted[0]) if wanted else min(devices, key=str)
    draws = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    with _global_generator_of(target) if draws else nullcontext():
        values = func(*_safe_on_cpu(func, tree_map(_on_cpu, args)), **tree_map(_on_cpu, kwargs))
    if target.type == "cpu":
        CardModule.copied_to_cpu += values.nbytes
        return args[0] if func is torch.ops.aten.copy_.default else values
    # As on a GPU, a view of a normal tensor is no inference tensor.
    with torch.inference_mode(args[0].is_inference()) if func.is_view else nullcontext():
        claimed = tree_map(lambda value: Card(value, target) if isinstance(value, Tensor) else value, values)
    return return_and_correct_aliasing(func, args, kwargs, claimed)


@contextmanager
def _global_generator_of(device: torch.device) -> Iterator[None]:
    """Let the CPU draw from the global generator of a card."""
    generator, state = torch.card.default_generators[device.index], torch.get_rng_state()  # type: ignore[attr-defined]
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(state)


def _safe_on_cpu(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a convolution's arguments with the channels first where `Compute.place` demands it of a CPU."""
    position = CONVOLUTIONS.get(func)
    if position is None or not has_gradient_overrun(args[position], args[position + 2]):
        return args
    first = torch.contiguous_format
    return tuple(arg.clone(memory_format=first) if isinstance(arg, Tensor) else arg for arg in args)


def _on_cpu(value: Any) -> Any:
    """Return a card's values, or the CPU instead of a device."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.cpu_values if isinstance(value, Card) else value


def _with_index(device: torch.device) -> torch.device:
    return torch.device(device.type, 0) if device.type == "card" and device.index is None else device


def _halve(operation: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Execute an operation under autocast in bf16."""

    def halve(value: Any) -> Any:
        return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value

    with torch.autocast("card", enabled=False):
        return operation(*tree_map(halve, args), **tree_map(halve, kwargs))


_setup_privateuseone_for_python_backend("card", backend_module=CardModule())
_Library: Any = torch.library.Library
_FACTORIES = _Library("_", "IMPL")
_FACTORIES.fallback(_compute, "PrivateUse1")
_FACTORIES.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_AUTOCAST = _Library("aten", "IMPL")
for _name in HALVED:
    _operation = getattr(torch.ops.aten, _name.partition(".")[0])
    _AUTOCAST.impl(_name, partial(_halve, _operation), "AutocastPrivateUse1")


@contextmanager
def emulated_cards() -> Iterator[None]:
    """Make the cards usable inside the context."""
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # `Tensor.data` cannot exchange the values
    try:
        with (
            patch.object(torch, "Generator", CardGenerator),
            torch.autograd.set_multithreading_enabled(False),  # torch starts one thread for all emulated cards
            _CheckCalls(),
        ):
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
