"""The base installation without torch: exported models work, and training names its missing extra."""

import json
import os
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.checkpoints import log_odds, save_pair
from tests.environments import call, create_environment, distributions_of
from tests.refusals import check_output

from fedvisage.faces.align import detect_upright
from fedvisage.faces.cropping import crop_face, make_detector
from fedvisage.runs.export.published import get_model

MOST_BYTES = 450_000_000


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages of the base installation, and nothing else."""
    return create_environment(tmp_path_factory.mktemp("base"))


@pytest.mark.long
def test_base_installation_scores_pictures_with_an_export(python: Path, pad: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(tmp_path / "picture.png")
    assert call(python, "-c", "import torch").returncode != 0
    done = call(python, "-m", "fedvisage", "predict", pad, tmp_path / "picture.png", "--crop", "none", "--json")
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    assert isinstance(image["logit"], float)


def call_with_cache(python: Path, cache: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FEDVISAGE_CACHE": str(cache)}
    return subprocess.run([python, *words], env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_photograph_is_scored_by_a_published_pair(python: Path, scene: np.ndarray, tmp_path: Path) -> None:
    cache, photo = tmp_path / "cache", tmp_path / "photo.png"
    Image.fromarray(scene).save(photo)
    words = ("-m", "fedvisage", "predict", photo, "--pad", "minifasnet", "--json")
    check_output(call_with_cache(python, cache, *words).stderr, "minifasnet", "fedvisage model get minifasnet")
    model, nets = save_pair(tmp_path)
    directory = get_model(model, cache, given=[tmp_path])
    done = call_with_cache(python, cache, *words)
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    # The crops of both networks, scored with the authors' networks.
    faces = detect_upright(scene, make_detector(1)).faces
    expected = 0.0
    for net, margin, scale in zip(nets.values(), (2.7, 4.0), (2.30, 3.79), strict=True):
        crop = torch.from_numpy(crop_face(scene, faces[0], 80, margin).image).permute(2, 0, 1)[None]
        expected += float(log_odds(net, crop)) / scale
    assert image["logit"] == pytest.approx(expected, abs=1e-4)
    assert image["decision"] == ("live" if expected >= 0 else "attack")
    # The path of an export names the same detector, and Python gives the same score.
    by_path = call_with_cache(python, cache, *words[:3], photo, "--pad", directory, "--json")
    assert json.loads(by_path.stdout)["images"] == [image]
    code = f"import fedvisage as fv; print([(f.decision, f.score, f.quality.ok) for f in fv.analyze({str(photo)!r})])"
    decision = {"live": "bona_fide", "attack": "attack"}[image["decision"]]
    analyzed = call_with_cache(python, cache, "-c", code)
    assert analyzed.stdout.strip() == str([(decision, image["probability"], True)]), analyzed.stderr


def test_model_that_needs_torch_is_refused_before_its_download(python: Path) -> None:
    done = call(python, "-m", "fedvisage", "model", "get", "mobilefacenet", "--accept-licence")
    assert done.returncode == 2
    check_output(done.stderr.splitlines()[-1], "fedvisage[train]", "torch")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("run", "demo/fedpad", "--out", "run"), "train"),
        (("demo", "--out", "demo"), "train"),
        (("study", "studies/table3-demo", "--out", "study"), "train"),
        (("status", "kit"), "federation"),
        (("serve", "--pad", "exported"), "serve"),
        (("report", "run"), "report"),
        (("compare", "run"), "report"),
        (("evaluate", "--pipeline", "--pad", "exported"), "report"),
    ],
)
def test_command_names_its_missing_extra(python: Path, words: tuple[str, ...], extra: str, tmp_path: Path) -> None:
    done = call(python, "-m", "fedvisage", *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    check_output(done.stderr, f"fedvisage[{extra}]", f"whl[{extra}]")


@pytest.mark.long
def test_python_api_names_its_missing_extra(python: Path) -> None:
    done = call(python, "-c", "import fedvisage as fv; fv.run")
    assert "UserError" in done.stderr
    assert re.search(r"pip install 'dist/fedvisage-.*whl\[train\]'", done.stderr)


@pytest.mark.long
def test_base_installation_is_small() -> None:
    files = {
        Path(os.path.realpath(str(distribution(name).locate_file(file))))
        for name in distributions_of()
        for file in distribution(name).files or ()
        if file.suffix != ".pyc"
    }
    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES
