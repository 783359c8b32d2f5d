"""The origin of a method: the catalogue, or a caller who passed it in from Python.

A method that was passed in is identified by a digest of its source: the functions and classes that it consists of, the
values that these carry, and the functions of their own package that they call. Functions of fedvisage count by name and
source, so an algorithm of the package on a model of the package has the same digest for every caller.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from fedvisage.base import extensions
from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, METHODS, MODELS, find, method_named, on
from fedvisage.recipe import MethodOptions

PACKAGE = "fedvisage"
NAMED = ("name", "title", "paper")
"""Fields of a method that do not affect its results."""

Code = FunctionType | type[Any]


def check_name(method: Method) -> None:
    """Reject a method that has the name of a listed method but differs from it."""
    if method.name not in METHODS and method.name not in extensions.names("methods"):
        return
    digest = digest_of(method)
    if not any(method is listed or digest == digest_of(listed) for listed in _listed_methods(method)):
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
    functions = sorted({_name(value) for value in _parts(method) if _is_code(value) and _package(value) != PACKAGE})
    modules = sorted({value.__module__ for value in _parts(method) if _is_code(value) and _package(value) != PACKAGE})
    return {"module": ", ".join(modules) or PACKAGE, "code": ", ".join(functions), "sha256": digest_of(method)}


def digest_of(method: Method) -> str:
    """Return a digest of a method's code and values."""
    digest = hashlib.sha256()
    for value in _parts(method):
        text = f"{_name(value)}\n{_source(value)}" if _is_code(value) else repr(value)
        digest.update(f"{len(text)} {text}".encode())
    return digest.hexdigest()


def _listed_methods(method: Method) -> Iterator[Method]:
    """Yield the listed methods of a name: the method of the bare name, and an algorithm on each model."""
    if (listed := method_named(method.name)) is not None:
        yield listed
    if method.name in ALGORITHMS:
        yield from (on(method.name, model.name) for model in MODELS.values() if model.task == method.task)


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
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            for inner in _attached_values(value):
                yield from _walk_value(inner, seen)
    elif isinstance(value, str | int | float | bytes | Enum | None):
        yield value
    else:
        yield type(value).__qualname__
        for inner in _contents(value):
            yield from _walk_value(inner, seen)


def _contents(value: Any) -> Iterator[Any]:
    """Yield the contents of a container, a bound function or a dataclass; other values count by their type."""
    if isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, Mapping):
        yield from (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        yield from value
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))


def _attached_values(code: Code) -> Iterator[Any]:
    """Yield what a class or function carries besides its source: options, closure, defaults, code of its package."""
    if isinstance(code, type):
        yield from sorted(getattr(code, "model_fields", ()))
        return
    yield from (code.__defaults__, code.__kwdefaults__)
    for cell in code.__closure__ or ():
        yield cell.cell_contents
    if _package(code) != PACKAGE:
        for name in sorted(_names_in(code.__code__)):
            value = code.__globals__.get(name)
            if isinstance(value, str | int | float) or (_is_code(value) and _package(value) == _package(code)):
                yield from (name, value)


def _names_in(code: CodeType) -> set[str]:
    """Return the global names that code uses, including those of its inner functions."""
    inner = (_names_in(const) for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names}.union(*inner)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type)


def _package(code: Any) -> str:
    return str(code.__module__).partition(".")[0]


def _name(code: Any) -> str:
    return f"{code.__module__}.{code.__qualname__}"


def _source(code: Any) -> str:
    """Return the source of a function or class, or its byte code if there is no source."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return code.__code__.co_code.hex() if isinstance(code, FunctionType) else ""
