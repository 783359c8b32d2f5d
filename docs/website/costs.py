"""Bytes on the wire, computed for a recipe from the schema that a site checks before it sends."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn

from fedvisage.federation.method import Call, Home, Method
from fedvisage.federation.wire.schema import ExpectedTensor, schema_of
from fedvisage.recipe import Recipe


@dataclass(frozen=True)
class Field:
    """A field of a site's reply: its kind, its description, and its bytes, or None if they depend on the images."""

    call: str
    name: str
    kind: str
    what: str
    size: int | None


def network(method: Method, recipe: Recipe) -> nn.ModuleDict:
    """Build a method's network, without memory for its weights where that is possible."""
    try:
        with torch.device("meta"):
            return method.network(recipe)
    except RuntimeError:  # its constructor reads weights
        return method.network(recipe)


def fields(method: Method, recipe: Recipe, net: nn.ModuleDict) -> list[Field]:
    """Return the fields of each reply of a site."""
    return [field for name, call in method.calls.items() for field in fields_of(name, call, recipe, net)]


def fields_of(name: str, call: Call, recipe: Recipe, net: nn.ModuleDict) -> list[Field]:
    """Return the fields of one call, tensors of one upload together."""
    schema = schema_of(call.uploads, recipe, net)
    sizes: dict[str, list[int | None]] = defaultdict(list)
    for expected in schema.tensors.values():
        sizes[expected.field].append(size_of(expected))
    fields = []
    for upload in schema.uploads:
        sizes_known = [size for size in sizes[upload.name] if size is not None]
        size = sum(sizes_known) if len(sizes_known) == len(sizes[upload.name]) else None
        parts = ", ".join(f"`{part}`" for part in upload.parts)
        description = "; ".join(filter(None, (parts, upload.guarantee)))
        fields.append(Field(name, upload.name, upload.kind, description, size))
    return fields


def size_of(expected: ExpectedTensor) -> int | None:
    """Return a tensor's bytes, None if its shape varies."""
    return None if -1 in expected.shape else math.prod(expected.shape) * expected.dtype.itemsize


def bytes_lent(method: Method, net: nn.ModuleDict) -> int:
    """Return the bytes of the parts that are lent to a site."""
    state = [value for part in method.parts_at(Home.LENT) for value in net[part].state_dict().values()]
    return sum(value.numel() * value.element_size() for value in state)


def format_bytes(size: int | None) -> str:
    """Return a number of bytes with a unit."""
    if size is None:
        return "varies"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.3g} {unit}"
    return f"{size} B"
