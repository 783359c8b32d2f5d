"""Media held still and straight in front of the camera."""

from fedvisage.render.media import Holding, MediumView, draw_view

STILL = Holding(zoom=(1, 1), shift=0, turn=0, tilt=0, shake=0)
HALF_AS_LARGE = Holding(zoom=(0.5, 0.5), shift=0, turn=0, tilt=0, shake=0)


def straight_view(size: int, holding: Holding = STILL) -> MediumView:
    """Return the camera's view of a medium."""
    return draw_view([holding], [1], [2], size)
