"""Checks of a Python function's arguments by their annotations: a wrong one is a ``UserError`` that names it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fedvisage.base.errors import UserError, suggestion

P = ParamSpec("P")
T = TypeVar("T")

PLAIN: Mapping[type, str] = {bool: "True or False", float: "a number", int: "a whole number", str: "text"}
"""The accepted values of arguments of a plain type, in words."""


def check_arguments(advice: str = "", **accepted: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that checks a function's arguments; ``accepted`` describes the valid values by argument.

    ``advice`` ends the message about an unknown argument.
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
            return function(*args, **kwargs)

        return call

    return decorate


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
