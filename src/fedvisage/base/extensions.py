"""Methods, models, datasets and trackers of other packages: ``fedvisage.methods``, ``.models`` and so on.

Each is an entry point, looked up by name and loaded on first use, so that listing names imports no foreign code.
"""

from __future__ import annotations

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


def names(group: str) -> list[str]:
    """Return the names that other packages add to a group."""
    return sorted(_entries(group))


def load(group: str, name: str, kind: type[Any] | None = None) -> Any:
    """Load the object that another package registers under a name; return None if there is no such entry."""
    entry = _entries(group).get(name)
    if entry is None:
        return None
    place = f"entry point fedvisage.{group}: {name}"
    try:
        value = entry.load()
    except (ImportError, AttributeError) as error:
        raise UserError(place, f"{entry.value} cannot be loaded: {error}") from error
    if kind is not None and not isinstance(value, kind):
        raise UserError(place, f"{entry.value} is not a {kind.__name__}")
    return value
