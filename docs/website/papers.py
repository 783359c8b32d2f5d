"""The docstrings of methods and models: their account of the paper, and their deviations from it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from fedvisage import methods
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, FOR_FACES
from fedvisage.methods.models.model import Model

DEVIATIONS = re.compile(r"Deviations from the papers?: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Account:
    """A module's docstring in its parts."""

    title: str
    paragraphs: tuple[str, ...]
    deviations: tuple[str, ...]


def account(module: ModuleType) -> Account:
    """Split a module's docstring into its first line, other paragraphs, and deviations from the paper."""
    first, *rest = (" ".join(part.split()) for part in (inspect.getdoc(module) or "").split("\n\n"))
    paragraphs: list[str] = []
    deviations: list[str] = []
    for part in rest:
        if match := DEVIATIONS.match(part):
            deviations.append(match.group(1))
        else:
            (deviations if deviations else paragraphs).append(part)
    return Account(first, tuple(paragraphs), tuple(deviations))


def files_of(method: Method) -> list[ModuleType]:
    """Return the files that define a method: its own, or its algorithm's and its model's."""
    if method.name in by_name():
        return [by_name()[method.name]]
    algorithm, _, model = method.name.partition("-")
    own = inspect.getmodule(ALGORITHMS[algorithm])
    assert own is not None
    name = model.replace("-", "_") or ("face" if algorithm in FOR_FACES else "resnet18")
    return [own, importlib.import_module(f"fedvisage.methods.models.{name}")]


def file_of(model: Model) -> ModuleType:
    """Return the file that defines a model: the one whose catalogue has it."""
    for module in modules_in("models"):
        if vars(module).get("MODEL") is model or model in vars(module).get("MODELS", {}).values():
            return module
    raise LookupError(model.name)


@cache
def by_name() -> dict[str, ModuleType]:
    """Return the modules of the methods that have their own."""
    modules = [module for folder in ("pad", "recognition") for module in modules_in(folder)]
    methods = ((vars(module).get("METHOD"), module) for module in modules)
    return {method.name: module for method, module in methods if isinstance(method, Method)}


def modules_in(folder: str) -> list[ModuleType]:
    """Return the modules of a folder of methods."""
    package = importlib.import_module(".".join(filter(None, (methods.__name__, folder))))
    return [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
