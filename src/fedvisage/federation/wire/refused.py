"""The refusal of a message, which modules without torch raise, too."""

from __future__ import annotations


class RefusedMessage(Exception):
    """A message that differs from its declaration, with the field and the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        """Return field and reason as one text."""
        return f"{self.field}: {self.reason}"
