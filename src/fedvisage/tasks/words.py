"""How figures are put into words, for every task."""


def percent(value: float | None) -> str:
    """Return a share in per cent, or a dash where there is none."""
    return "   –  " if value is None else f"{100 * value:6.2f} %"
