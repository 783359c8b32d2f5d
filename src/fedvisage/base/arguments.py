"""Checks of a function's arguments by their annotations, and the descriptions of a dataclass's fields as options."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fedvisage.base.errors import RunFailed, UserError, suggestion
from fedvisage.base.files import NO_ROOM

P = ParamSpec("P")
T = TypeVar("T")

PLAIN: Mapping[type, str] = {bool: "True or False", float: "a number", int: "a whole number", str: "text"}
"""The accepted values of arguments of a plain type, in words."""


def check_arguments(advice: str = "", **accepted: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that checks a function's arguments; ``accepted`` describes the valid values by argument.

    ``advice`` ends the message about an unknown argument. Errors of the function name its arguments in place of the
    options of the command line, and a path that the system refuses is a ``UserError``.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters:
                    hint = (
                        suggestion(name, signature.parameters) or f"; it has {', '.join(signature.parameters)}{advice}"
                    )
                    raise UserError(f"{function.__name__}({name}=)", f"there is no such argument{hint}")
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                names = ", ".join(signature.parameters)
                raise UserError(f"{function.__name__}()", f"{error}; its arguments are {names}") from None
            types = get_type_hints(function)
            for name, value in arguments.items():
                if not _accepts(types[name], value):
                    kind = next((kind for kind in PLAIN if kind in _types(types[name])), object)
                    raise wrong_argument(name, accepted.get(name) or PLAIN.get(kind, "another value"), value)
            # Messages name options of the command line; in Python, they name arguments.
            try:
                return function(*args, **kwargs)
            except (UserError, RunFailed) as error:
                place = getattr(error, "place", "")
                error.args = tuple(_in_python(part, types) if isinstance(part, str) else part for part in error.args)
                if isinstance(error, UserError):
                    error.place, error.message = error.args
                    error.place = error.place.partition("=")[0] if place.startswith("--") else place
                raise
            except OSError as error:
                if error.filename is None or error.errno in NO_ROOM:
                    raise
                raise UserError(str(error.filename), f"{error.strerror}; give another path") from error

        return call

    return decorate


def _in_python(text: str, types: Mapping[str, Any]) -> str:
    """Return a message with arguments of a function instead of the options of the same names."""

    def argument(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        name = name if name in types else f"{name}s"  # one --benchmark per set, all of them in benchmarks
        if name not in types:
            return match[0]
        return f"{name}=True" if types[name] is bool else f"{name}="

    return re.sub(r"--([a-z][a-z-]*[a-z])", argument, text)


def wrong_argument(name: str, accepted: str, value: object) -> UserError:
    """Return the error about an argument with a wrong value."""
    return UserError(name, f"must be {accepted}; got {describe(value)}")


def describe(value: object) -> str:
    """Return a value in a few words: its kind, and its name or text if it has one."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    for kind, word in ((FunctionType, "function"), (ModuleType, "module"), (type, "class")):
        if isinstance(value, kind):
            return f"the {word} {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of {value.dtype} {tuple(shape)}"  # type: ignore[attr-defined]
    return type(value).__name__


def _accepts(annotation: Any, value: object) -> bool:
    """Return whether an annotation accepts a value; text is not a sequence, and a truth value is not a number."""
    types = _types(annotation)
    for kind in (str, bool):
        if isinstance(value, kind):
            return kind in types or object in types
    return isinstance(value, (*types, int) if float in types else types)


def _types(annotation: Any) -> tuple[Any, ...]:
    """Return the classes in an annotation, without those of contents."""
    if annotation is Any:
        return (object,)
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _types(part))
    return (NoneType if annotation is None else origin or annotation,)


# Descriptions of a dataclass's fields that become options of a command.


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of a number, for ``Annotated[int, Range(1)]``."""

    least: float | None = None
    most: float | None = None


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class; inherited fields are not part of its source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {}
    for statement, following in pairwise(definition.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docstrings[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return docstrings
