"""Score bursts of the development sites with the published pair: ``python -m benchmarks.real.bursts DIR FILE``.

A burst is three consecutive unique files of one class of a site, in natural order: mostly frames of one film. Of each
class, at most 40 bursts at equal distances are scored. Pictures are turned upright and cropped as for ``fedvisage
predict --pad minifasnet``, which must be in the cache. FILE gets the columns site, label, burst, place and score: the
log-odds, or a word about why there are none. A later call continues the file; ``--places 1`` stops after the first
picture of each burst, and ``--sites`` names some sites.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from benchmarks.real.author import Author, open_recogniser
from benchmarks.real.sites import LENGTH, SITES, WITH_AUTHOR, choose_bursts, choose_pictures, locate_face, unique_files
from fedvisage.device.fused import Model, open_export
from fedvisage.faces.cropping import crop_face
from fedvisage.faces.detection import Detector, DetectorSettings
from fedvisage.starts.published import locate_detector

BURSTS = 40
TOLD_BY = 20
"""Pictures of the tutorial's author that tell him from others."""


def score_picture(path: Path, model: Model, detector: Detector, author: Author | None) -> str:
    """Return the score of a picture, or why it has none."""
    located = locate_face(path, detector)
    if located is None:
        return "no face"
    picture = located.read()
    if author is not None and author.shows(picture, located.face):
        return "author"
    crops = [crop_face(picture, located.face, shape.size, shape.margin) for shape in model.shapes]
    if any(crop.upscaled for crop in crops):
        return "small"
    return repr(float(model.score([crop.image[np.newaxis] for crop in crops])[0]))


def main() -> None:
    """Write the scores of all sites: the first picture of each burst, then the second, then the third."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--places", type=int, default=LENGTH)
    parser.add_argument("--sites", nargs="+", default=[*SITES])
    parser.add_argument("--out", type=Path, default=Path("build/real"))
    options = parser.parse_args()
    model, detector = open_export(locate_detector("minifasnet")), Detector(settings=DetectorSettings(smallest=40))
    unique = unique_files(options.directory, options.sites)
    author = None
    if set(WITH_AUTHOR) & set(options.sites):
        recogniser = open_recogniser(options.directory, options.out / "starts")
        shown = choose_pictures({1: unique_files(options.directory, ["tutorial"])["tutorial"][1][:TOLD_BY]}, detector)
        author = Author(recogniser, [(picture.image, picture.face) for picture in shown])
    known = set[tuple[str, ...]]()
    if options.file.exists():
        known = {tuple(line.split(",")[:4]) for line in options.file.read_text(encoding="utf-8").splitlines()}
    with options.file.open("a", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        if not known:
            rows.writerow(["site", "label", "burst", "place", "score"])
        for place in range(options.places):
            for site, classes in unique.items():
                for label, paths in classes.items():
                    for number, burst in enumerate(choose_bursts(paths, BURSTS)):
                        key = (site, str(label), str(number), str(place))
                        if key not in known:
                            dropped = author if site in WITH_AUTHOR else None
                            rows.writerow([*key, score_picture(burst[place], model, detector, dropped)])
                            file.flush()


if __name__ == "__main__":
    main()
