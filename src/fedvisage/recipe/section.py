"""The base of all recipe sections: frozen, validated, with an error for unknown keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A frozen part of a recipe in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    unset: ClassVar[frozenset[str]] = frozenset()
    """Keys without a value that a resolved recipe leaves out: later additions, or keys of a single task."""

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, tree: Any) -> Any:
        for key, field in cls.model_fields.items() if isinstance(tree, Mapping) else ():
            if _has_truth(tree.get(key)) and _has_number(field.annotation):
                raise PydanticCustomError("no_number", "must be a number, got true or false", {"keys": (key,)})
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


def _has_truth(value: Any) -> bool:
    """Return whether a value is a truth value or a container with one; nested sections check their own values."""
    values = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else ()
    return isinstance(value, bool) or any(isinstance(item, bool) for item in values)


def _has_number(kind: Any) -> bool:
    """Return whether a key accepts numbers, but neither truth values nor sections, which may contain some."""
    parts = _parts(kind)
    return bool({int, float} & parts) and bool not in parts and not any(issubclass(part, BaseModel) for part in parts)


def _parts(kind: Any) -> set[type]:
    """Return the plain types in a key's annotation."""
    inner = get_args(kind)
    return set().union(*map(_parts, inner)) if inner else {kind} if isinstance(kind, type) else set()
