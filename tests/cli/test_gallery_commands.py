"""The gallery commands of docs/gallery.md."""

import json
import re
import resource
import shlex
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from tests import commands
from tests.device.gallery.files import MODEL, random_faces
from tests.device.photographs import draw_face, draw_photographs
from tests.documented import ROOT

from fedvisage.device import Exported
from fedvisage.device.fused import required_threshold
from fedvisage.device.gallery.file import NotEnrolled, UnknownName, WrongKey, key_from
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.app import open_engine

DOOR = ("door.gallery", "--key", "door.key")
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


output_of = partial(commands.output_of, "gallery")
refusal_of = partial(commands.refusal_of, "gallery")


def test_gallery_is_created_listed_and_rekeyed(here: Path) -> None:
    assert "door.key" in output_of("create", *DOOR)
    assert "staff" in output_of("create", *DOOR, "--collection", "staff", "--renewable")
    listed = json.loads(output_of("list", *DOOR, "--json"))
    assert [(entry["name"], entry["renewable"]) for entry in listed] == [("default", False), ("staff", True)]
    taken = refusal_of("create", *DOOR)
    assert (taken.place, taken.message) == (
        "door.gallery",
        "exists, with the collection default; add another with --collection NAME",
    )
    assert "0 people are encrypted with new.key" in output_of("rotate-key", *DOOR, "--new-key", "new.key")
    assert isinstance(refusal_of("list", *DOOR), WrongKey)
    assert isinstance(refusal_of("remove", "door.gallery", "anna", "--key", "new.key"), UnknownName)
    assert refusal_of("list", "door.gallery").place == "--key"


def test_person_is_deleted_although_the_file_cannot_be_rewritten(here: Path) -> None:
    """The limit leaves room for a change of the file, but not for the journal of a whole new one."""
    output_of("create", *DOOR)
    with Gallery(Path("door.gallery"), key_from(Path("door.key")), counters=Path("door.key.counters")) as gallery:
        for number in range(100):
            gallery.enrol("default", f"person {number}", random_faces(number, 4, size=128), MODEL)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path("door.gallery").stat().st_size, limits[1]))
    try:
        result = commands.call("gallery", "remove", "door.gallery", "person 8", "--key", "door.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (result.exit_code, "deleted" in result.stdout, "keeps its size" in result.stderr) == (0, True, True)
    (collection,) = json.loads(output_of("list", *DOOR, "--json"))
    assert "person 8" not in {person["name"] for person in collection["people"]}


def test_older_copy_is_refused_until_accepted(here: Path) -> None:
    output_of("create", *DOOR)
    older = (here / "door.gallery").read_bytes()
    output_of("create", *DOOR, "--collection", "staff")
    (here / "door.gallery").write_bytes(older)
    assert "fedvisage gallery accept-state" in refusal_of("list", *DOOR).message
    assert output_of("accept-state", *DOOR).count("\n") == 1
    assert "default" in output_of("list", *DOOR)
    output_of("rotate-key", *DOOR, "--new-key", "new.key")
    assert "default" in output_of("list", "door.gallery", "--key", "new.key")
    assert [path.name for path in (here / "new.key.counters").iterdir()] == ["door.gallery.counter"]
    assert not list((here / "door.key.counters").iterdir())


def test_key_from_the_environment_requires_a_counter_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVISAGE_GALLERY_KEY", "00" * 32)
    assert refusal_of("create", "door.gallery").place == "--counters"
    assert not (here / "door.gallery").exists()
    output_of("create", "door.gallery", "--counters", "counters")
    monkeypatch.setenv("FEDVISAGE_GALLERY_COUNTERS", "counters")
    assert "default" in output_of("list", "door.gallery")


def test_documented_commands_have_their_options() -> None:
    shown = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(shown) >= 6
    for line in shown:
        _, _, verb, *words = shlex.split(line)
        options = set(re.findall(r"--[a-z-]+", output_of(verb, "--help")))
        assert {word for word in words if word.startswith("--")} <= options


def test_enrolment_checks_pictures_with_exported_models(here: Path, pad: Path, recognition: Path) -> None:
    """The command follows the decision of the toy model, whichever it is."""
    pictures = draw_photographs(draw_face())
    for name in ("one", "wall"):
        Image.fromarray(pictures[name]).save(f"{name}.png")
    output_of("create", *DOOR)
    models = ("--pad", pad, "--recognition", recognition, "--key", "door.key")
    error = refusal_of("enrol", "door.gallery", "anna", "wall.png", *models)
    assert isinstance(error, NotEnrolled)
    assert (error.place, "no face" in error.message) == ("wall.png", True)
    refusal_of("search", "door.gallery", "wall.png", *models)
    assert "is a folder" in str(refusal_of("search", "door.gallery", here, *models))
    decision = open_engine(pad, recognition).check(pictures["one"]).decision
    enrolment = ("enrol", "door.gallery", "anna", "one.png", *models)
    if decision == "bona_fide":
        output_of(*enrolment)
        assert json.loads(output_of("search", "door.gallery", "one.png", *models, "--json"))[0]["decision"] == "match"
    else:
        assert "attack" in refusal_of(*enrolment).message


@pytest.mark.long
def test_commands_decide_at_the_chosen_operating_points(here: Path, strict_pad: Path, recognition: Path) -> None:
    (here / "probes" / "anna").mkdir(parents=True)
    Image.fromarray(draw_photographs(draw_face())["one"]).save("probes/anna/face.png")
    output_of("create", *DOOR)
    models = ("--pad", strict_pad, "--recognition", recognition, "--key", "door.key")
    points = ("--at", "bpcer=50%", "--at", "fmr=20%")
    error = refusal_of("enrol", "door.gallery", "anna", "probes", *models)
    assert isinstance(error, NotEnrolled)
    assert "attack" in error.message
    output_of("enrol", "door.gallery", "anna", "probes", *models, *points)
    point = required_threshold(Exported.open(recognition).at("fmr=20%"))
    for verb in (("search", "door.gallery"), ("verify", "door.gallery", "anna")):
        refusal_of(*verb, "probes/anna/face.png", *models)
        (match,) = json.loads(output_of(*verb, "probes/anna/face.png", *models, *points, "--json"))
        assert (match["threshold"], match["operating_point"]) == (point.value, point.operating_point)
        lines = output_of(*verb, "probes/anna/face.png", *models, *points).splitlines()
        assert lines[0] == f"threshold: similarity {point.value:+.4f}, {point.operating_point}"
    figures = json.loads(output_of("evaluate", "door.gallery", "probes", *models, *points, "--json"))
    assert (figures["mated"], figures["threshold"]) == (1, point.value)
