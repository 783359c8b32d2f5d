"""The options of imports and of rendered sets: one dataclass each, from the command line to the code that uses them.

``fedvisage data import``, ``synth`` and ``people`` have one option per field, except ``few``, which studies set. A
field's docstring is its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from fedvisage.base.arguments import Range
from fedvisage.base.errors import UserError
from fedvisage.base.processes import MOST_PROCESSES

MOST_MARGINS = 4

RELEASED = "fedsis-released"
"""Labels that reproduce a mistake in the lists released with FedSIS."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of an import; a dataset ignores general options that do not apply to it, and refuses special ones."""

    size: Annotated[int, Range(16, 1024)] = 256
    """Pixels of the stored crops."""
    frames: str = "10"
    """Frames of each video: a number at equal distances, or positions among those with a face, such as 6,6+n/2."""
    crop: Literal["face", "centre", "none"] = "face"
    """face (detector), centre or none."""
    detector: Literal["mtcnn", "yunet"] = "mtcnn"
    """With --crop face: mtcnn, or yunet, whose file `fedvisage model get yunet` stores."""
    margin: str = "1.4"
    """With --crop face: side of a crop over the longer side of the face box, from 1 to 5; published detectors need 2.7
    or 4. Up to four, as in 1,2.7,4, keep as many crops of each face; recipes choose one with input.margin."""
    pad: Literal["none", "replicate"] = "none"
    """With --crop face: replicate fills crops with copies of the last pixels where a picture ends, for training."""
    aligned: bool = False
    """People: the crops are already aligned by five points; no face is detected."""
    boxes: Literal["detect", "dataset"] = "detect"
    """detect, or dataset: cut faces out by the boxes or points that came with the dataset."""
    depth: str = "auto"
    """Depth maps of bona fide images: canonical fits an average face to the detector's five points; a directory has
    NAME_depth.jpg for each NAME.jpg; none; auto is canonical with --crop face, else none."""
    enroll: bool = False
    """Import enrolment videos, too (replay-attack)."""
    labels: str = ""
    """The label for bona fide in the dataset's lists, such as live=0."""
    of: str = ""
    """frames, fedgpad: the dataset of the frames, if names do not determine it."""
    colour: str = ""
    """3dmad, wmca, hq-wmca: order of the arrays' colours, rgb or bgr; default: rgb."""
    heldout: Annotated[float, Range(0.0, 0.9)] = 0.25
    """Share of subjects held out."""
    test: Annotated[float, Range(0.0, 0.9)] = 0.4
    """People: share of each person's images kept for testing."""
    least: Annotated[int, Range(1)] = 1
    """People: leave out people with fewer photographs."""
    most: Annotated[int, Range(0)] = 0
    """People: draw at most this number of photographs of each; 0 takes all."""
    people: Annotated[int, Range(0)] = 0
    """People: draw this number of them; 0 takes all."""
    split: str = ""
    """rec: a published part: fedfr-clients, fedfr-public, fedfr-released-clients or fedfr-released-public."""
    max_bad: Annotated[float, Range(0.0, 1.0)] = 0.05
    """Stop above this share of unusable files."""
    workers: Annotated[int, Range(1, MOST_PROCESSES)] = 1
    """Processes."""
    seed: Annotated[int, Range(0)] = 0
    """Seed of everything that is drawn."""
    few: int = 0
    """About this number of videos or images per dataset, for trials of a study; 0 means all."""

    def __post_init__(self) -> None:
        """Refuse an unknown source of boxes, and labels of another form."""
        if self.boxes not in ("detect", "dataset"):
            raise UserError("boxes", f"must be detect or dataset, got {self.boxes!r}")
        if self.detector not in ("mtcnn", "yunet"):
            raise UserError("--detector", f"must be mtcnn or yunet, got {self.detector!r}")
        if self.pad not in ("none", "replicate"):
            raise UserError("--pad", f"must be none or replicate, got {self.pad!r}")
        if (self.margins, self.pad) != ((1.4,), "none") and self.crop != "face":
            raise UserError("--margin", "and --pad are for faces with a box; add --crop face, or leave them out")
        word, _, value = self.labels.partition("=")
        if self.labels and not self.released and (word != "live" or not value):
            raise UserError("--labels", f"must define bona fide, such as live=0, or be {RELEASED}; got {self.labels!r}")

    @cached_property
    def margins(self) -> tuple[float, ...]:
        """The margins of the crops."""
        try:
            margins = tuple(float(text) for text in str(self.margin).split(","))
        except ValueError:
            margins = ()
        if not 1 <= len(margins) <= MOST_MARGINS or not all(1 <= margin <= 5 for margin in margins):
            rule = f"must be up to {MOST_MARGINS} numbers from 1 to 5, such as 1,2.7,4"
            raise UserError("--margin", f"{rule}; got {self.margin!r}")
        if len(set(margins)) < len(margins):
            raise UserError("--margin", f"names a margin twice ({self.margin}); give each once")
        return margins

    @property
    def released(self) -> bool:
        """Whether to reproduce a known mistake in released lists."""
        return self.labels == RELEASED

    @property
    def live(self) -> str | None:
        """The label for bona fide in lists, if it is chosen."""
        return None if self.released else self.labels.partition("=")[2] or None


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """Options of a rendered set of attacks."""

    domain: str = "O"
    """O C I M S 3 H W E F or A, named after the datasets of the papers."""
    size: Annotated[int, Range(32, 512)] = 128
    """Image size in pixels, an even number."""
    subjects: Annotated[int | None, Range(1)] = None
    """Number of people; default: the domain's."""
    videos: Annotated[int | None, Range(1)] = None
    """Bona fide videos per person; default: the domain's."""
    frames: Annotated[int, Range(1)] = 4
    """Frames per video."""
    seed: Annotated[int, Range(0)] = 0
    """Seed of everything that is drawn."""
    heldout: Annotated[float, Range(0.0, 0.9)] = 0.25
    """Share of subjects held out."""
    species: str = ""
    """Kinds of attacks, such as print,replay; default: all of the domain."""
    generation: Annotated[int, Range(1, 2)] = 1
    """2: both classes pass through the same simulated camera. 1: sessions of the papers."""
    media: str = ""
    """Printers and panels, such as ipad,photo-printer-1; for --generation 2."""
    cameras: str = ""
    """Kinds of cameras, such as webcam,system-camera; for --generation 2."""
    workers: Annotated[int, Range(1, MOST_PROCESSES)] = 2
    """Processes."""


@dataclass(frozen=True, kw_only=True)
class PeopleOptions:
    """Options of a rendered identity set."""

    identities: Annotated[int, Range(1)] = 40
    """People."""
    images: Annotated[int, Range(1)] = 20
    """Photographs per person."""
    size: Annotated[int, Range(32, 384)] = 112
    """Size of the aligned crops in pixels, an even number."""
    first: Annotated[int, Range(0)] = 0
    """Number of the first person; sets with other numbers are disjoint."""
    seed: Annotated[int, Range(0)] = 0
    """Seed of everything that is drawn."""
    test: Annotated[float, Range(0.0, 0.9)] = 0.4
    """Share of each person's photographs kept for testing."""
    heldout: Annotated[float, Range(0.0, 0.9)] = 0.0
    """Share of people held out entirely, as impostors."""
    group: Annotated[int | None, Range(0, 3)] = None
    """One of the four groups, 0 to 3; default: all groups in turn."""
    workers: Annotated[int, Range(1, MOST_PROCESSES)] = 2
    """Processes."""
