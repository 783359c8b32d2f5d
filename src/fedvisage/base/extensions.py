"""Methods, models, datasets and trackers of other packages: ``fedvisage.methods``, ``.models`` and so on.

Each is an entry point, looked up by name and loaded on first use, so that listing names imports no foreign code.
"""

from __future__ import annotations

import warnings
from collections.abc import Container
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedvisage.base.errors import UserError
from fedvisage.base.version import VERSION

EXTRAS = {
    "train": ("torch", "torchvision", "timm", "dp_accounting"),
    "report": ("matplotlib", "jinja2", "markupsafe", "scipy", "sklearn", "threadpoolctl", "tensorboardX"),
    "federation": ("nvflare",),
    "serve": ("fastapi", "starlette", "uvicorn", "python_multipart"),
    "export": ("onnxscript", "huggingface_hub"),
    "datasets": ("h5py",),
    "ray": ("ray",),
}
"""The packages of each extra of the wheel, by the names under which they are imported."""


def missing_package(error: ModuleNotFoundError) -> UserError | None:
    """Return the message for a package that is not installed; None for a package that no extra brings."""
    package = (error.name or "").partition(".")[0]
    extras = [extra for extra, packages in EXTRAS.items() if package in packages]
    return missing_extra(extras[0], package) if extras else None


def missing_extra(extra: str, package: str) -> UserError:
    """Return the message for a package of an extra that is not installed; it names the wheel, as no index has it."""
    remedy = f"install the wheel with this extra: pip install 'dist/fedvisage-{VERSION}-py3-none-any.whl[{extra}]'"
    return UserError(f"fedvisage[{extra}]", f"is needed, and its package {package} is not installed; {remedy}")


@cache
def _entries(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"fedvisage.{group}")}


def names(group: str, reserved: Container[str] = ()) -> list[str]:
    """Return the names that other packages add to a group; warn of reserved ones, and leave them out."""
    for entry in _entries(group).values():
        if entry.name in reserved:
            warnings.warn(f"{_place(entry)}: is ignored, because fedvisage has this name; rename it", stacklevel=2)
    return sorted(name for name in _entries(group) if name not in reserved)


def _place(entry: EntryPoint) -> str:
    return f"entry point {entry.group}: {entry.name} of {entry.dist.name if entry.dist else 'unknown origin'}"


def modules() -> set[str]:
    """Return the top-level modules of the packages that add methods or models."""
    entries = (*_entries("methods").values(), *_entries("models").values())
    files = [file for entry in entries if entry.dist for file in entry.dist.files or ()]
    return {file.parts[0].removesuffix(".py") for file in files}


def load_all(group: str, reserved: Container[str], kind: type[Any]) -> dict[str, Any]:
    """Load the objects that other packages add to a group; warn of those that cannot be loaded."""
    loaded = {}
    for name in names(group, reserved):
        try:
            loaded[name] = load(group, name, kind)
        except UserError as error:
            warnings.warn(str(error), stacklevel=2)
    return loaded


def load(group: str, name: str, kind: type[Any] | None = None) -> Any:
    """Load the object that another package registers under a name; return None if there is no such entry."""
    entry = _entries(group).get(name)
    if entry is None:
        return None
    try:
        value = entry.load()
    except Exception as error:  # the module of another package may raise any
        raise UserError(_place(entry), f"{entry.value} cannot be loaded: {type(error).__name__}: {error}") from error
    if kind is not None and not isinstance(value, kind):
        raise UserError(_place(entry), f"{entry.value} is not a {kind.__name__}")
    return value
