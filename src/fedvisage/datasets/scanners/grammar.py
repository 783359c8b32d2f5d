"""How the files of a dataset are called: read from the end of a path, and built from the same fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Parsed:
    """The fields of a path, and the end of it that they were read from."""

    fields: dict[str, str]
    name: str


class Grammar:
    """Whole components of a path: a template such as ``{part}_files/{phone}_{file}`` and an expression a field.

    A template is without the file's ending. The folders above are not part of the name, so a copy may lie anywhere.
    """

    def __init__(self, template: str, **fields: str) -> None:
        """Take the template and what each of its fields may be."""
        if sorted(_FIELD.findall(template)) != sorted(fields):
            raise ValueError(f"{template} does not have just the fields {', '.join(fields)}")
        self.template, self.fields = template, fields

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        pieces = _FIELD.split(self.template)  # text, field, text, field, …, text
        written = [
            f"(?P<{piece}>{self.fields[piece]})" if place % 2 else re.escape(piece)
            for place, piece in enumerate(pieces)
        ]
        return re.compile(rf"(?:.*/)?(?P<whole_>{''.join(written)})", re.ASCII)

    def parse(self, path: str) -> Parsed | None:
        """Return the fields of a path without ending, or None if it is no name of this kind."""
        found = self._expression.fullmatch(path)
        if found is None:
            return None
        fields = found.groupdict(default="")
        return Parsed(fields, fields.pop("whole_"))

    def build(self, values: Mapping[str, str]) -> str:
        """Return the path without ending that has these fields."""
        for name, value in values.items():
            if not re.fullmatch(self.fields[name], value, re.ASCII):
                raise ValueError(f"{name} cannot be {value!r}")
        return self.template.format_map(values)
