"""Which frames of a video are taken: so many at equal distances, or the places that a protocol names.

``10`` takes the middles of ten equal stretches of the video. ``6,6+n/2`` takes places among the frames in which a face
was found, n of them: the seventh, and the one half of them further on. Where there are fewer, the last one is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedvisage.errors import UserError

_COUNT = re.compile(r"[0-9]{1,6}")
_PLACE = re.compile(r"(?:(?P<first>[0-9]{1,6})(?:\+n/(?P<after>[1-9][0-9]{0,5}))?|n/(?P<share>[1-9][0-9]{0,5}))")


@dataclass(frozen=True)
class Place:
    """A place among n frames: so many from the beginning, and a part of all further on."""

    first: int
    divisor: int | None = None

    def of(self, count: int) -> int:
        """Return the place among so many frames; it may lie behind the last."""
        return self.first + (count // self.divisor if self.divisor else 0)


@dataclass(frozen=True)
class FrameChoice:
    """Either a number of frames at equal distances, or places among the frames with a face."""

    text: str
    count: int = 0
    places: tuple[Place, ...] = ()

    def among(self, count: int) -> tuple[list[int], bool]:
        """Return the places to take among so many frames with a face, and whether the last stands in for a later."""
        wanted = [place.of(count) for place in self.places]
        return sorted({min(place, count - 1) for place in wanted}), any(place >= count for place in wanted)


def read_choice(text: str | int) -> FrameChoice:
    """Read what was asked for. A single number is a count; one place is written with a comma, as ``6,``."""
    words = [word.strip() for word in str(text).split(",")]
    if len(words) == 1 and _COUNT.fullmatch(words[0]):
        if int(words[0]) < 1:
            raise UserError("frames", f"must be at least 1, got {text}")
        return FrameChoice(words[0], count=int(words[0]))
    places = [_PLACE.fullmatch(word) for word in words if word]
    if not places or None in places:
        message = "must be a number of frames, such as 10, or places among those with a face, such as 6,6+n/2 or 6,"
        raise UserError("frames", f"{message}; got {str(text)!r}")
    read = tuple(Place(int(one["first"] or 0), int(one["after"] or one["share"] or 0) or None) for one in places if one)
    return FrameChoice(",".join(words), places=read)
