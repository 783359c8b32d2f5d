"""What every section of a recipe is: frozen, validated, and an unknown key is an error."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of a recipe in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MethodOptions(Section):
    """What a method's own options extend: its name."""

    name: str
