"""How figures and numbers of things are put into words, wherever they are printed."""


def percent(value: float | None) -> str:
    """Return a share in per cent, or a dash where there is none."""
    return "   –  " if value is None else f"{100 * value:6.2f} %"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its word: "1 file", "2 files", "1 person", "2 people"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
