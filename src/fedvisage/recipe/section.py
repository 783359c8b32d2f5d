"""What every section of a recipe is: frozen, validated, and an unknown key is an error."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Section(BaseModel):
    """A frozen part of a recipe in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    unset: ClassVar[frozenset[str]] = frozenset()
    """Keys that a resolved recipe leaves out where they have no value: those that came later, or are for one task."""

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = whole(self)
        later = {key for kind in type(self).__mro__ for key in vars(kind).get("unset", ())}
        return {key: value for key, value in tree.items() if value is not None or key not in later}


class MethodOptions(Section):
    """What a method's own options extend: its name."""

    name: str
