"""The base of all recipe sections: frozen, validated, with an error for unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from fedvisage.recipe.mistakes import format_value


class Section(BaseModel):
    """A frozen part of a recipe in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
    unset: ClassVar[frozenset[str]] = frozenset()
    """Keys without a value that a resolved recipe leaves out: later additions, or keys of a single task."""

    @model_validator(mode="before")
    @classmethod
    def _types_are_not_converted(cls, tree: Any) -> Any:
        for key, field in cls.model_fields.items() if isinstance(tree, Mapping) else ():
            if fault := _type_fault(tree.get(key), field.annotation):
                raise PydanticCustomError("another_type", "{fault}", {"fault": fault, "keys": (key,)})
        return tree

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = whole(self)
        later = {key for kind in type(self).__mro__ for key in vars(kind).get("unset", ())}
        return {key: value for key, value in tree.items() if value is not None or key not in later}


class MethodOptions(Section):
    """The base of a method's own options: the method's name."""

    name: str
    """See ``fedvisage methods``; the method's own options are keys of the same section."""


def _type_fault(value: Any, annotation: Any) -> str | None:
    """Return the fault of a text or truth value in place of a number, or of a text or number in place of a truth value.

    Containers are checked, too; nested sections check their own values.
    """
    types, texts = _accepted(annotation)
    if bool in types:
        expected, wrong = "true or false", {str, int, float} - types
    elif {int, float} & types:
        expected, wrong = "a number" if float in types else "a whole number", {str, bool} - types
    else:
        return None
    if any(issubclass(kind, BaseModel) for kind in types):
        return None
    items = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else (value,)
    faults = [item for item in items if type(item) in wrong and not (isinstance(item, str) and item in texts)]
    return f"must be {expected}, got {format_value(faults[0])}" if faults else None


def _accepted(annotation: Any) -> tuple[set[type], set[str]]:
    """Return the types of a key's values, or of those in its list or mapping, and the single texts that it accepts."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {bool for value in inner if isinstance(value, bool)}, {
            value for value in inner if isinstance(value, str)
        }
    types, texts = {annotation} if isinstance(annotation, type) else set[type](), set[str]()
    for part in inner[1:] if origin is dict else inner:
        more_types, more_texts = _accepted(part)
        types, texts = types | more_types, texts | more_texts
    return types, texts
