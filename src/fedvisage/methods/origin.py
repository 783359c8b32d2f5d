"""The origin of a method: the catalogue, or a caller who passed it in from Python.

A method that was passed in is identified by a digest of its source: the functions and classes that it consists of, the
values that these carry, and the text of their modules outside of fedvisage. Functions of fedvisage count by name and
source, so an algorithm of the package on a model of the package has the same digest for every caller.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from fedvisage.base import extensions
from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, METHODS, MODELS, find, method_named, on
from fedvisage.recipe import MethodOptions

PACKAGE = "fedvisage"
NAMED = ("name", "title", "paper", "advice")
"""Fields of a method that do not affect its results."""


def check_name(method: Method) -> None:
    """Reject a method that has the name of a listed method but differs from it."""
    if method.name not in METHODS and method.name not in extensions.names("methods"):
        return
    # The methods of that name: the one of the bare name, and an algorithm on each model.
    models = [model for model in MODELS.values() if model.task == method.task and method.name in ALGORITHMS]
    listed = [method_named(method.name), *(on(method.name, model.name) for model in models)]
    if not any(method is other or digest_of(method) == digest_of(other) for other in listed if other is not None):
        raise UserError(
            "method",
            f"{method.name} is already the name of a listed method; give this method another name: "
            "dataclasses.replace(method, name=...)",
        )


def origin_of(method: Method, section: MethodOptions) -> dict[str, str] | None:
    """Return the modules, functions and source digest of a method; None if it is the one that the recipe names."""
    try:
        listed = find(section)
    except UserError:  # its name is not in the catalogue
        listed = None
    if listed is not None and (listed is method or digest_of(listed) == digest_of(method)):
        return None
    outside = [part for part in _parts(method) if _is_code(part) and not _is_of_package(part)]
    modules, functions = sorted({part.__module__ for part in outside}), sorted({_name(part) for part in outside})
    return {"module": ", ".join(modules) or PACKAGE, "code": ", ".join(functions), "sha256": digest_of(method)}


def digest_of(method: Method) -> str:
    """Return a digest of a method's code and values."""
    digest = hashlib.sha256()
    for part in _parts(method):
        text = repr(part)
        if _is_code(part):
            module = None if _is_of_package(part) else sys.modules.get(part.__module__)
            text = f"{_name(part)}\n{_source(part)}\n{_source(module)}"
        digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()


def _parts(method: Method) -> Iterator[Any]:
    """Yield the code and plain values of a method, in a fixed order."""
    seen: set[int] = set()
    for field in fields(method):
        if field.name not in NAMED:
            yield field.name
            yield from _walk_value(getattr(method, field.name), seen)


def _walk_value(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a value if it is code or plain, then its contents; code is yielded once."""
    if _is_code(value):
        if id(value) in seen:
            return
        seen.add(id(value))
        yield value
    elif isinstance(value, str | int | float | bytes | Enum | None):
        yield value
        return
    else:
        yield type(value).__qualname__
    # The options of a class; the defaults and closure of a function; the contents of a container, a bound function or
    # a dataclass. Other values count by their type.
    contents: list[Any] = []
    if isinstance(value, type):
        contents = sorted(getattr(value, "model_fields", ()))
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        contents = [value.__defaults__, value.__kwdefaults__, *cells]
    elif isinstance(value, partial):
        contents = [value.func, value.args, value.keywords]
    elif isinstance(value, MethodType):
        contents = [value.__func__, value.__self__]
    elif isinstance(value, Mapping):
        contents = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        contents = [*value]
    elif is_dataclass(value):
        contents = [getattr(value, field.name) for field in fields(value)]
    for part in contents:
        yield from _walk_value(part, seen)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type)


def _is_of_package(code: Any) -> bool:
    return str(code.__module__).partition(".")[0] == PACKAGE


def _name(code: Any) -> str:
    return f"{code.__module__}.{code.__qualname__}"


def _source(code: Any) -> str:
    """Return the source of a function, class or module, or the byte code of a function without source."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return code.__code__.co_code.hex() if isinstance(code, FunctionType) else ""
