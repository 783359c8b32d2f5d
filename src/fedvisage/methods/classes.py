"""The classes of recognition's softmax at a site: all of them, or with ``sampled_classes`` a sample for each batch.

A sample is for sites with, or beside, very many identities, see :mod:`fedvisage.nn.partial`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import Optimizer

from fedvisage.federation.site import Batch, Site
from fedvisage.nn.partial import Classes, Sampler
from fedvisage.streams import numpy_rng

SAMPLER = "classes"
"""Where a visit holds what draws its classes."""


@contextmanager
def sampling(site: Site, optimizer: Optimizer, wanted: int | None, centres: list[nn.Parameter]) -> Iterator[None]:
    """Train on samples of the classes for a while; with `wanted` None on all of them."""
    if wanted is None:
        yield
        return
    rng = numpy_rng(site.recipe.runtime.seed, site.name, site.round, SAMPLER)
    sampler = site.held[SAMPLER] = Sampler(optimizer, centres, wanted, rng)
    try:
        yield
    finally:
        sampler.finish()
        del site.held[SAMPLER]


def classes_of(site: Site, batch: Batch, centres: list[nn.Parameter]) -> Classes:
    """Return the classes of a batch: all whose centres are given, or those of the batch's sample among them."""
    assert batch.identities is not None
    sampler: Sampler | None = site.held.get(SAMPLER)
    if sampler is not None:
        return sampler.of(batch.at_hand).of_first(sum(map(len, centres)))
    return Classes(torch.cat([*centres]) if len(centres) > 1 else centres[0], batch.identities)
