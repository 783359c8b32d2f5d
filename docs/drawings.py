"""Draws the pictures of docs/in-pictures.md; ``make reference`` runs it, and a test holds them against it.

An SVG here is readable in light and in dark: it has a background of its own, and follows the reader's setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

from fedvisage.federation.method import Home
from fedvisage.methods import METHODS

FOLDER = Path(__file__).with_name("pictures")
STYLE = """\
.paper{fill:#fff}.panel{fill:#f4f6f7;stroke:#b0bec5}.ink{fill:#1c2529}.soft{fill:#50616a}
.common{fill:#d7e9fb;stroke:#2f6fae}.own{fill:#fdebc8;stroke:#b07a12}.server{fill:#dcd9f5;stroke:#5a4fb0}
.plain{fill:#fff;stroke:#78909c}.line{stroke:#37474f;fill:none}.head{fill:#37474f}
@media (prefers-color-scheme:dark){.paper{fill:#1d2326}.panel{fill:#272f33;stroke:#546e7a}.ink{fill:#eceff1}
.soft{fill:#b0bec5}.common{fill:#1f3f5e;stroke:#6fb1ee}.own{fill:#55411a;stroke:#e3b04b}
.server{fill:#38325f;stroke:#a49bf0}.plain{fill:#303a3f;stroke:#90a4ae}.line{stroke:#cfd8dc}.head{fill:#cfd8dc}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
"""
MARKER = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path class="head" d="M0 0L8 4L0 8z"/></marker>'


@dataclass
class Drawing:
    """Shapes that were drawn so far."""

    width: int
    height: int
    says: str
    shapes: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, w: int, h: int, kind: str, title: str = "", lines: Sequence[str] = ()) -> None:
        """A box with a title and lines below, in the middle of it."""
        self.shapes.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>')
        top = y + h / 2 - (8 * len(lines)) + 5
        if title:
            self.text(x + w // 2, top, title, size=14, weight=600)
        for number, line in enumerate(lines):
            self.text(x + w // 2, top + 17 * (number + 1), line, kind="soft")

    def panel(self, x: int, y: int, w: int, h: int, title: str) -> None:
        """A large box whose title stands at its top."""
        self.shapes.append(f'<rect class="panel" x="{x}" y="{y}" width="{w}" height="{h}" rx="10"/>')
        self.text(x + 14, y + 24, title, size=15, weight=700, anchor="start")

    def text(
        self,
        x: float,
        y: float,
        said: str,
        *,
        size: int = 12,
        weight: int = 400,
        kind: str = "ink",
        anchor: str = "middle",
    ) -> None:
        """A line of text."""
        self.shapes.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}">{escape(said)}</text>'
        )

    def arrow(self, points: Sequence[tuple[int, int]], said: str = "", *, above: int = 7, dashed: bool = False) -> None:
        """A line through points with a head at its end, and a label over the middle of its longest piece."""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(f'<path class="line" d="{path}" stroke-width="1.6" marker-end="url(#head)"{dash}/>')
        pieces = pairwise(points)
        start, end = max(pieces, key=lambda piece: abs(piece[0][0] - piece[1][0]) + abs(piece[0][1] - piece[1][1]))
        for number, line in enumerate(reversed(said.split("\n") if said else [])):
            self.text((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - above - 15 * number, line)

    def svg(self) -> str:
        """The whole picture."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(self.says)}</title>'
        back = f'<rect class="paper" width="{self.width}" height="{self.height}" rx="12"/>'
        return "\n".join([head, f"<style>{STYLE}</style><defs>{MARKER}</defs>", back, *self.shapes, "</svg>"]) + "\n"


def a_round() -> Drawing:
    """One round of an averaging method; narrow, so that a phone shows it legibly."""
    picture = Drawing(600, 590, "A round: the server lends weights, sites train and send weights, the server averages")
    picture.panel(20, 20, 560, 150, "Server")
    picture.box(36, 58, 226, 68, "server", "global model", ["lent to every site"])
    picture.box(338, 58, 226, 68, "server", "combine", ["mean, robust rule or secure sum"])
    picture.arrow([(338, 92), (262, 92)], "4")
    picture.text(300, 154, "4  combines; the next round begins", size=14, kind="soft")
    for x, name in ((20, "bank"), (212, "phone maker"), (404, "border agency")):
        picture.panel(x, 270, 176, 230, f"Site: {name}")
        picture.box(x + 14, 308, 148, 68, "common", "model", ["trained here"])
        picture.box(x + 14, 416, 148, 68, "own", "faces", ["labels, identities"])
        picture.arrow([(x + 88, 416), (x + 88, 376)])
        picture.text(x + 98, 401, "2", size=14, anchor="start")
        picture.arrow([(x + 28, 170), (x + 28, 270)])
        picture.arrow([(x + 148, 270), (x + 148, 170)])
        picture.text(x + 38, 198, "1  weights", size=14, anchor="start")
        picture.text(x + 138, 226, "3  weights,", size=14, anchor="end")
        picture.text(x + 138, 243, "number of", size=14, anchor="end")
        picture.text(x + 138, 260, "images, loss", size=14, anchor="end")
    picture.text(300, 530, "2  trains on its own faces, which never leave", size=14, kind="soft")
    picture.text(300, 564, "The target takes no part: it evaluates the finished model.", size=14, kind="soft")
    return picture


@dataclass(frozen=True)
class Holding:
    """The labels of one method's picture that its declaration lacks."""

    parts: Mapping[str, str]
    own: Sequence[tuple[str, str]]
    down: str
    up: str
    target: str


HOLDINGS = {
    "fedgpad": Holding(
        {
            "encoder": "domain-invariant",
            "classifier": "living or attack",
            "depth": "depth of the face",
            "specific": "this domain only",
            "decoder": "rebuilds the image",
        },
        [("images, depth maps", "and their labels")],
        "encoder, classifier, depth",
        "the same, trained;\nnumber of images, loss",
        "downloads encoder and classifier",
    ),
    "fedsis": Holding(
        {
            "tokenizer": "images to tokens",
            "head": "living or attack",
            "blocks": "self-attention, up to ℓ",
            "adapter": "to a pseudo-class token",
        },
        [("images, labels", "of the site")],
        "pseudo-class tokens, gradients of tokens",
        "tokens; gradients of the head;\nnow and then tokenizer and head",
        "downloads all four parts",
    ),
    "fedfr": Holding(
        {"model": "backbone Θ", "centres": "public class centres Φ"},
        [
            ("W", "class centres of its people"),
            ("Π, Ω, b", "customisation"),
            ("Θ of last round", "to contrast with"),
            ("images", "and identities"),
        ],
        "backbone, public centres",
        "the same, trained;\nnumber of images, loss",
        "downloads the backbone; a site keeps [Θ, Π] for its people",
    ),
    "privacyface": Holding(
        {"model": "backbone"},
        [("W", "class centres of its people"), ("clusters p", "groups of centres"), ("images", "and identities")],
        "backbone; other sites' noisy clusters",
        "noisy clusters p̂ (ε, δ) and what they cost;\nthen weights, number of images, loss",
        "downloads the backbone",
    ),
}


def who_holds_what(name: str) -> Drawing:
    """Which parts of a method live where, from its declaration."""
    method, holding = METHODS[name], HOLDINGS[name]
    at = {home: [(part, holding.parts[part]) for part in method.parts_at(home)] for home in Home}
    left = [
        *((part, "own", says) for part, says in [*at[Home.SITE], *holding.own]),
        *((part, "common", says) for part, says in at[Home.LENT]),
    ]
    right = [
        *((part, "common", says) for part, says in at[Home.LENT]),
        *((part, "server", says) for part, says in at[Home.SERVER]),
    ]
    rows = max((len(left) + 1) // 2, len(right), 3)
    height = 150 + 62 * rows
    picture = Drawing(900, height, f"{method.title}: who holds what")
    picture.panel(20, 20, 390, height - 80, "A site, one of several")
    picture.panel(690, 20, 190, height - 80, "Server")
    for number, (part, kind, says) in enumerate(left):
        picture.box(35 + 185 * (number % 2), 60 + 62 * (number // 2), 175, 52, kind, part, [says])
    for number, (part, kind, says) in enumerate(right):
        picture.box(703, 60 + 62 * number, 164, 52, kind, part, [says])
    picture.arrow([(690, 100), (410, 100)], wrapped(holding.down))
    picture.arrow([(410, 200), (690, 200)], holding.up)
    picture.text(550, 220, "nothing else leaves", kind="soft")
    legend = (
        (35, "own", "stays at the site"),
        (195, "common", "lent, averaged"),
        (340, "server", "server's alone"),
    )
    for x, kind, said in legend:
        picture.box(x, height - 42, 16, 16, kind)
        picture.text(x + 24, height - 29, said, anchor="start", kind="soft")
    picture.text(880, height - 29, f"A target {holding.target}", anchor="end")
    return picture


def wrapped(said: str) -> str:
    """Break a label that is longer than its arrow."""
    return said.replace(", gradients", ",\ngradients").replace("; other", ";\nother") if len(said) > 36 else said


def the_wire() -> Drawing:
    """What a reply passes between a site and the ledger."""
    picture = Drawing(900, 330, "What crosses the wire: declared fields, checked at the exit and at the entrance")
    picture.panel(20, 20, 400, 220, "Site")
    picture.panel(480, 20, 400, 220, "Server")
    picture.box(35, 60, 110, 60, "own", "faces", ["never leave"])
    picture.box(165, 60, 110, 60, "common", "call", ["computes"])
    picture.box(295, 60, 110, 60, "plain", "protect", ["clip, noise, mask"])
    picture.box(295, 160, 110, 60, "plain", "exit", ["declared? finite?"])
    picture.box(495, 160, 110, 60, "plain", "entrance", ["the same check"])
    picture.box(625, 160, 110, 60, "server", "combine", ["what fits"])
    picture.box(755, 160, 110, 60, "server", "model", ["of the round"])
    picture.box(495, 60, 370, 60, "plain", "ledger.jsonl", ["round, site, field, kind, bytes, digest, guarantee"])
    for points in (
        [(145, 90), (165, 90)],
        [(275, 90), (295, 90)],
        [(350, 120), (350, 160)],
        [(605, 190), (625, 190)],
        [(735, 190), (755, 190)],
        [(550, 160), (550, 120)],
    ):
        picture.arrow(points)
    picture.arrow([(405, 190), (495, 190)])
    picture.arrow([(810, 220), (810, 268), (220, 268), (220, 120)], dashed=True)
    picture.text(515, 262, "next round: weights go down, entered in the ledger too")
    refused = (
        "A field that is missing, extra, of another shape, not finite or absurd is refused by name; the round goes on."
    )
    picture.text(450, 306, refused, kind="soft")
    return picture


def the_house() -> Drawing:
    """Draw the packages in their layers."""
    floors = (
        ("commands", ("cli", "api")),
        ("programs", ("studies", "nvflare")),
        ("runs", ("runs", "audit")),
        ("output, tasks", ("report", "tasks")),
        ("definitions", ("methods", "datasets", "starts")),
        ("mechanics, device", ("federation", "device", "render")),
        ("numerics", ("nn", "faces")),
        ("formats", ("recipe", "data", "metrics")),
        ("base", ("base",)),
    )
    picture = Drawing(600, 30 + 72 * len(floors), "Packages import packages below them, never above")
    for number, (says, rooms) in enumerate(floors):
        y = 16 + 72 * number
        picture.shapes.append(f'<rect class="panel" x="20" y="{y}" width="534" height="62" rx="9"/>')
        picture.text(32, y + 36, says, size=13, anchor="start", kind="soft")
        width = (378 - 8 * (len(rooms) - 1)) // len(rooms)
        for place, room in enumerate(rooms):
            kind, x = "common" if room in ("methods", "federation") else "plain", 166 + place * (width + 8)
            picture.box(x, y + 11, width, 40, kind)
            picture.text(x + width / 2, y + 36, room, size=14, weight=600)
    picture.arrow([(577, 30), (577, 10 + 72 * len(floors))])
    return picture


def pictures() -> dict[str, str]:
    """Return the files by their names."""
    drawn = {"round": a_round(), "wire": the_wire(), "house": the_house()}
    drawn |= {f"who-holds-what-{name}": who_holds_what(name) for name in HOLDINGS}
    return {f"{name}.svg": picture.svg() for name, picture in drawn.items()}


if __name__ == "__main__":
    for file, svg in pictures().items():
        (FOLDER / file).write_text(svg, encoding="utf-8")
