"""The benchmark on real pictures: its choice of files, its crops, and the excluded author."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from benchmarks.real import sites
from benchmarks.real.__main__ import main
from benchmarks.real.author import SAME, SIDE, Author
from benchmarks.real.sites import SITES, Cut, unique_files
from numpy.typing import NDArray
from safetensors.torch import save_file
from tests.starts import published_networks

from fedvisage.faces.align import align
from fedvisage.faces.detection import Detector, DetectorSettings, Face
from fedvisage.render.people import draw_conditions, draw_people
from fedvisage.render.scene import render
from fedvisage.starts.convert import convert
from fedvisage.tasks.finished_model import FinishedModel, open_model

TUTORIAL, SECOND = SITES["tutorial"]
APFOL = SITES["apfol"][0]


def write(directory: Path, contents: Mapping[str, Sequence[str]]) -> Path:
    """Write a file of each content below ``REPOSITORY/dataset/CLASS``, named by its number, and empty folders else."""
    for repository in (repository for names in SITES.values() for repository in names):
        for name in ("real", "fake"):
            folder = directory / repository / "dataset" / name
            folder.mkdir(parents=True)
            for number, content in enumerate(contents.get(f"{repository}/{name}", ())):
                (folder / f"{number}.png").write_text(content)
    return directory


def texts(paths: Sequence[Path]) -> list[str]:
    return [path.read_text() for path in paths]


def photographs(count: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Render people, one picture each, with the five points of their faces."""
    scene = render(draw_people(range(count)), draw_conditions(range(count)), 128)
    exposed = (scene.radiance / (4 * scene.radiance.mean((1, 2, 3), keepdim=True))).clamp(0, 1) ** (1 / 2.2)
    return (exposed * 255).byte().permute(0, 2, 3, 1).numpy(), scene.points.double().numpy()


def test_benchmark_without_its_directory_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.real", str(tmp_path)])
    assert main() == 0
    assert capsys.readouterr().out.splitlines() == [f"skipped: {tmp_path} has no {TUTORIAL}"]


def test_copies_stay_at_the_first_site_and_contradictions_are_dropped(tmp_path: Path) -> None:
    contents = {
        f"{TUTORIAL}/real": ("a", "b", "b"),
        f"{SECOND}/real": ("a", "c"),
        f"{SECOND}/fake": ("x",),
        f"{APFOL}/fake": ("x", "y", "both"),
        f"{APFOL}/real": ("both", "d"),
    }
    chosen = unique_files(write(tmp_path, contents))
    assert texts(chosen["tutorial"][1]) == ["a", "b", "c"]
    assert texts(chosen["tutorial"][0]) == ["x"]
    assert texts(chosen["apfol"][0]) == ["y"]
    assert texts(chosen["apfol"][1]) == ["d"]


def test_classes_keep_a_limited_number_of_equidistant_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MOST", 3)
    faces = photographs(6)[0]
    for number, face in enumerate(faces):
        cv2.imwrite(str(tmp_path / f"{number}.png"), face[..., ::-1])
    (tmp_path / "6.png").write_text("no picture")
    cv2.imwrite(str(tmp_path / "7.png"), np.full((96, 96, 3), 128, np.uint8))
    detector = Detector(settings=DetectorSettings(smallest=40))
    files = [tmp_path / f"{number}.png" for number in (7, 6, *range(6))]
    pictures = list(sites.choose_pictures({1: files}, detector))
    assert [picture.split for picture in pictures] == ["train", "train", "train"]
    for picture, number in zip(pictures, (1, 3, 5), strict=True):
        np.testing.assert_array_equal(picture.image, faces[number])
    chosen = sites.choose_pictures({1: files}, detector, lambda image, face: bool((image == faces[5]).all()))
    np.testing.assert_array_equal([picture.image for picture in chosen], faces[[0, 2, 4]])


@pytest.mark.parametrize("scaling", ["area", "linear"])
def test_only_a_padded_cut_keeps_its_margin(scaling: str) -> None:
    picture = np.zeros((100, 100, 3), np.uint8)
    picture[30:70, 30:70] = 255
    face = Face(np.array([30.0, 30.0, 40.0, 40.0]), np.zeros((5, 2)))
    shares = {}
    for padding in ("none", "replicate"):
        cut = Cut(4.0, padding, scaling)  # type: ignore[arg-type]
        shares[padding] = float((cut.cut(picture, face) > 127).mean())
    assert shares["none"] == pytest.approx(0.4**2, abs=0.01)
    assert shares["replicate"] == pytest.approx(0.25**2, abs=0.01)


def centred_recogniser(crops: NDArray[np.uint8], folder: Path) -> FinishedModel:
    """Convert a small recogniser of random weights whose features have a mean of zero over some crops."""
    net = published_networks.randomise(published_networks.Foamliu(8, 16, SIDE)).eval()
    last = net.get_submodule("bn")
    assert isinstance(last, torch.nn.BatchNorm2d)
    assert last.running_mean is not None
    with torch.no_grad():
        pixels = torch.from_numpy(crops).permute(0, 3, 1, 2) / 255
        mean, std = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        features = net((pixels - mean) / std)
        assert last.bias is not None
        last.bias.sub_(features.mean(0))
    save_file({name: value.clone() for name, value in net.state_dict().items()}, folder / "theirs.safetensors")
    convert(folder / "theirs.safetensors", "mobilefacenet-dw", folder / "start.safetensors")
    return open_model(folder / "start.safetensors")


def test_author_is_recognised_by_the_mean_cosine(tmp_path: Path) -> None:
    pictures, points = photographs(8)
    crops = np.stack([align(picture, marks, SIDE)[0] for picture, marks in zip(pictures, points, strict=True)])
    recogniser = centred_recogniser(crops, tmp_path)
    faces = [Face(np.array([20.0, 20.0, 80.0, 80.0]), marks) for marks in points]
    author = Author(recogniser, list(zip(pictures[:2], faces[:2], strict=True)))
    features = recogniser.embed(crops).double().numpy()
    cosines = (features @ features[:2].T).mean(axis=1)
    assert [author.shows(picture, face) for picture, face in zip(pictures, faces, strict=True)] == list(cosines >= SAME)
    assert author.shows(pictures[0], faces[0])
    assert cosines.min() < SAME < cosines.max()
