"""The base of all recipe sections: frozen and validated; errors name the place, the rule, the value and a near key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fedvisage.base.errors import UserError, suggestion


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


# Messages for validation errors.

Kind = TypeVar("Kind", bound=BaseModel)
SHOWN = 3
"""Number of mistakes in one message; more would hide the first."""

_SECTION = "must be a section (key: value)"
_WORDS: Mapping[str, str] = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
    "dict_type": _SECTION,
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "too_short": "must have at least {min_length}",
    "too_long": "must have at most {max_length}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
}
"""Messages by pydantic's error types; pydantic supplies the values in braces."""


def read_section(kind: type[Kind], tree: Any, root: str) -> Kind:
    """Return a section made of plain values, or raise an error that names the key: ``root.key`` or ``FILE: key``."""
    check_texts(tree, root.removesuffix(" ").removesuffix(":"))
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise user_error_from(error, root, kind) from error


def check_texts(value: Any, place: str) -> None:
    """Raise an error if a text below a place cannot be written to a file: a half of a character (lone surrogate)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_texts(str(key), place)
            check_texts(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            check_texts(item, place)
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UserError(place, f"contains half a character (a lone surrogate): {ascii(value)[:100]}; write it as UTF-8")


def user_error_from(error: ValidationError, root: str, kind: type[BaseModel] | None = None) -> UserError:
    """Return the first mistakes in a section as one ``UserError``."""
    errors = error.errors(include_url=False)[:SHOWN]
    (place, message), *further = [(_place(item, root), _describe_error(item, root, kind)) for item in errors]
    return UserError(place, message + "".join(f"; {location}: {fault}" for location, fault in further))


def format_value(value: Any) -> str:
    """Return a short form of a value, as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a section"
    return "a list" if isinstance(value, list | tuple) else repr(value)[:100]


def _place(item: Any, root: str) -> str:
    keys = ".".join(map(str, (*item["loc"], *item.get("ctx", {}).get("keys", ()))))
    return f"{root}{'.' if keys and not root.endswith(' ') else ''}{keys}".removesuffix(": ")


def _describe_error(item: Any, root: str, kind: type[BaseModel] | None) -> str:
    if item["type"] == "extra_forbidden":
        *above, key = item["loc"]
        hint, elsewhere = suggestion(str(key), _keys(kind, above)), keys_named(str(key), kind)[:SHOWN]
        if not hint and elsewhere:
            # Keys of other sections are named from the recipe or the file on.
            section = "" if root.endswith(" ") or "." not in root else f"{root.partition('.')[2]}."
            hint = f"; did you mean {' or '.join(f'{section}{name}' for name in elsewhere)}?"
        return f"{_WORDS['extra_forbidden']}{hint}"
    if item["type"] == "missing":
        return _WORDS["missing"]
    value, words = item.get("input"), _WORDS.get(item["type"])
    got = f", got {format_value(value)}" if words or isinstance(value, str | int | float) else ""
    if words is None:  # pydantic puts a prefix before the messages of this project's validators
        return f"{item['msg'].removeprefix('Value error, ')}{got}"
    return f"{words.format_map(item['ctx']) if '{' in words else words}{got}"


def keys_named(key: str, kind: Any) -> list[str]:
    """Return the full names of a key that a section, or sections below it, have: ``training.rounds`` for ``rounds``."""
    return [name for name in _full_names(kind) if name.rpartition(".")[2] == key]


def _full_names(kind: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted name of every key in a section and in the sections below it."""
    section = _find_container(kind)
    if _is_section(section):
        for key, field in section.model_fields.items():
            yield f"{above}{key}"
            yield from _full_names(field.annotation, f"{above}{key}.")


def _keys(kind: Any, above: Sequence[str | int]) -> list[str]:
    """Return the keys of the section at a place."""
    for key in above:
        kind = _find_container(kind)
        if _is_section(kind):
            kind = kind.model_fields[key].annotation if key in kind.model_fields else None
        else:
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0] if kind else None
    kind = _find_container(kind)
    return list(kind.model_fields) if _is_section(kind) else []


def _find_container(kind: Any) -> Any:
    """Return the section, mapping or list among the types that a key accepts, or None."""
    if _is_section(kind) or get_origin(kind) in (dict, list, tuple):
        return kind
    return next((section for part in get_args(kind) if (section := _find_container(part)) is not None), None)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
