"""The docstrings of methods and models: their account of the paper, and their deviations from it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

from fedvisage import methods
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, FOR_FACES, MODELS
from fedvisage.methods.models.face import MODEL as FACE
from fedvisage.methods.models.model import Model

DEVIATIONS = re.compile(r"Deviations from the papers?: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Account:
    """A module's docstring in its parts."""

    title: str
    paragraphs: tuple[str, ...]
    deviations: tuple[str, ...]


def account(module: ModuleType, described: Method | Model | None = None) -> Account:
    """Split a docstring into its first line, other paragraphs, and deviations from the paper.

    The text is the one below the definition of a method or model, or else the module's.
    """
    text = text_below(module, described) or inspect.getdoc(module) or ""
    first, *rest = (" ".join(part.split()) for part in text.split("\n\n"))
    paragraphs: list[str] = []
    deviations: list[str] = []
    for part in rest:
        if match := DEVIATIONS.match(part):
            deviations.append(match.group(1))
        else:
            (deviations if deviations else paragraphs).append(part)
    return Account(first, tuple(paragraphs), tuple(deviations))


def text_below(module: ModuleType, described: Method | Model | None) -> str:
    """Return the text below the statement that defines a method or model; empty without one."""
    for statement, below in pairwise(ast.parse(inspect.getsource(module)).body):
        match statement, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                if described is not None and vars(module)[name] is described:
                    return text
    return ""


def files_of(method: Method) -> list[ModuleType]:
    """Return the files that define a method: its own, or its algorithm's and its model's."""
    if method.name in by_name():
        return [by_name()[method.name]]
    algorithm, _, model = method.name.partition("-")
    own = inspect.getmodule(ALGORITHMS[algorithm])
    assert own is not None
    return [own, file_of(MODELS[model or (FACE.name if algorithm in FOR_FACES else "resnet18")])]


def file_of(model: Model) -> ModuleType:
    """Return the file that defines a model: the one whose catalogue has it."""
    for module in modules_in("models"):
        if any(value is model for value in (*vars(module).values(), *vars(module).get("MODELS", {}).values())):
            return module
    raise LookupError(model.name)


@cache
def by_name() -> dict[str, ModuleType]:
    """Return the modules of the methods that have their own."""
    modules = [module for folder in ("pad", "recognition") for module in modules_in(folder)]
    return {value.name: module for module in modules for value in vars(module).values() if isinstance(value, Method)}


def modules_in(folder: str) -> list[ModuleType]:
    """Return the modules of a folder of methods."""
    package = importlib.import_module(".".join(filter(None, (methods.__name__, folder))))
    return [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]
