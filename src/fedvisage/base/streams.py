"""Random streams derived from names, never from a global generator.

Every draw in a run comes from a stream that is named after its purpose, such as ``(seed, site, round, purpose)``.
Streams with different names are independent, and no stream depends on earlier draws from others. A resumed run, another
order of sites or another transport therefore gives the same bytes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # loading torch takes seconds, and many processes only draw with NumPy
    import torch


def derive(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for the stream with these names."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_rng(seed: int, *names: str | int) -> np.random.Generator:
    """Return NumPy's generator for the stream with these names."""
    return np.random.default_rng(derive(seed, *names))


def torch_rng(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return torch's generator for the stream with these names."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, *names))


@contextmanager
def seed_global_rng(seed: int, *names: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators for library code that needs them (initialisers, dropout) from a stream; then restore.

    These are torch's, NumPy's and Python's. With a device, seed its global generator as well, and no other device's.
    """
    import torch

    generators = [torch.default_generator]
    if device is not None and device.type != "cpu":
        module = torch.get_device_module(device)
        module.init()
        generators.append(module.default_generators[module.current_device() if device.index is None else device.index])
    states = [generator.get_state() for generator in generators]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        for generator in generators:
            generator.manual_seed(derive(seed, *names))
        np.random.seed(derive(seed, *names, "numpy") % 2**32)
        random.seed(derive(seed, *names, "python"))
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
