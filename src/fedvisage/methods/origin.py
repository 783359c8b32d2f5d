"""The origin of a method: the catalogue, an entry point of another package, or a caller who passed it in from Python.

A method of the latter two is identified by a digest of its source: the functions and classes that it consists of, the
values that these carry, and the text of their modules outside of fedvisage and of the modules that these import, except
libraries. Functions of fedvisage count by name and source, so an algorithm of the package on a model of the package has
the same digest for every caller.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from importlib.util import decode_source, find_spec, resolve_name
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from fedvisage.base import extensions
from fedvisage.base.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.methods.catalogue import ALGORITHMS, METHODS, MODELS, find, method_named, on
from fedvisage.recipe import MethodOptions

PACKAGE = "fedvisage"
CODE = (FunctionType, type)
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
    """Return the modules, functions and source digest of a method; None if the recipe names it and fedvisage has it."""
    listed = find(section) if section.name in METHODS else None
    outside = [part for part in _parts(method) if isinstance(part, CODE) and not _is_of_package(part)]
    if listed is not None and not outside and (listed is method or digest_of(listed) == digest_of(method)):
        return None
    modules = sorted({part.__module__ for part in outside})
    functions = sorted({f"{part.__module__}.{part.__qualname__}" for part in outside})
    return {"module": ", ".join(modules) or PACKAGE, "code": ", ".join(functions), "sha256": digest_of(method)}


def digest_of(method: Method) -> str:
    """Return a digest of a method's code and values."""
    digest, imported = hashlib.sha256(), dict[str, str]()
    for part in _parts(method):
        text = repr(part)
        if isinstance(part, CODE):
            module = None if _is_of_package(part) else sys.modules.get(part.__module__)
            text = f"{part.__module__}.{part.__qualname__}\n{_source(part)}\n{_source(module)}"
            _add_imports(_source(module), getattr(module, "__package__", None) or "", imported)
        digest.update(f"{len(text)} {text}".encode())
    digest.update("".join(f"{name} {len(text)} {text}" for name, text in sorted(imported.items())).encode())
    return digest.hexdigest()


def _add_imports(text: str, package: str, sources: dict[str, str]) -> None:
    """Add the sources, by name, of the modules that a source imports, and of their imports; leave out libraries."""
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)):
        base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for name in (base, *(f"{base}{'.' if base.strip('.') else ''}{alias.name}" for alias in node.names)):
            with suppress(ImportError, ValueError, OSError, SyntaxError):  # not a module, or not installed
                module = resolve_name(name, package)
                top = module.partition(".")[0]
                if module in sources or top in (PACKAGE, *sys.stdlib_module_names):
                    continue
                if re.search("(site|dist)-packages", str(find_spec(top))) and top not in extensions.modules():
                    continue
                spec = find_spec(module)  # imports the packages of the module, but not the module
                if spec is not None and str(spec.origin).endswith(".py"):
                    sources[module] = decode_source(Path(str(spec.origin)).read_bytes())
                    _add_imports(sources[module], spec.parent or "", sources)


def _parts(method: Method) -> Iterator[Any]:
    """Yield the code and plain values of a method, in a fixed order."""
    seen: set[int] = set()
    for field in fields(method):
        if field.name not in NAMED:
            yield field.name
            yield from _walk_value(getattr(method, field.name), seen)


def _walk_value(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a value if it is code or plain, then its contents; code is yielded once."""
    if isinstance(value, CODE):
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


def _is_of_package(code: Any) -> bool:
    return str(code.__module__).partition(".")[0] == PACKAGE


def _source(code: Any) -> str:
    """Return the source of a function, class or module, or the byte code of a function without source."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return code.__code__.co_code.hex() if isinstance(code, FunctionType) else ""
