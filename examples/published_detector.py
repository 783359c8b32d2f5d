"""Convert a published detector and score photographs with it.

    python examples/published_detector.py 2.7_80x80_MiniFASNetV2.pth photograph.jpg

The weights are those of minivision-ai/Silent-Face-Anti-Spoofing (Apache-2.0); fedvisage contains none, and nothing is
downloaded. Use several photographs of one face and average their scores, where you can.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import fedvisage as fv
from fedvisage.base.errors import BadFile
from fedvisage.faces.cropping import make_cropper
from fedvisage.faces.pictures import open_picture
from fedvisage.starts.convert import convert


def main() -> None:
    """Print one line per photograph: the decision and the score of a living face."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, help="the authors' file")
    parser.add_argument("photographs", type=Path, nargs="+")
    parser.add_argument("--network", default="minifasnet-v2", help="minifasnet-v2 or minifasnet-v1se")
    options = parser.parse_args()

    with TemporaryDirectory() as directory:
        start = Path(directory) / "detector.safetensors"
        convert(options.weights, options.network, start, licence="Apache-2.0")
        model = fv.open(start)
    # The crop has the size and the margin around the face that the network was trained with.
    crop = make_cropper("face", model.recipe.input.size, margin=model.margin)
    for path in options.photographs:
        try:
            face = crop(open_picture(path)).image[None]  # uint8, 1×80×80×3, RGB
        except BadFile as fault:
            print(f"{path}: no decision, {fault}")
            continue
        decision = "live" if model.is_live(face)[0] else "attack"
        print(f"{path}: {decision}, score {model.score(face)[0]:.2f}, threshold {model.threshold.value:.2f}")


if __name__ == "__main__":
    main()
