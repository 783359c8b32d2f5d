"""The data commands: their output and refusals, and their end after an interruption."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.commands import output_of
from tests.data.small_sets import make_set
from tests.datasets.importers.files import make_folder, picture, save
from tests.datasets.imports import copy_to, import_quietly
from tests.documented import files
from tests.packages import install
from tests.refusals import check_output, refused
from tests.toy import discard

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS, all_kinds, describe_kinds, write_small_copy
from fedvisage.datasets.dataset import Clip
from fedvisage.datasets.importing import synthesise_set
from fedvisage.datasets.options import ImportOptions, SynthesisOptions
from fedvisage.datasets.show import show_set
from fedvisage.datasets.tree import walk


def test_names_in_square_brackets_are_printed_unchanged(tmp_path: Path) -> None:
    make_set(tmp_path / "T", name="[red]my[/red] set")
    title, *_ = show_set(tmp_path / "T", sheet=tmp_path / "[b].png")
    assert title.startswith("[red]my[/red] set: 20 images of 8×8")


LIMITED_FILES = """
import resource, sys
from fedvisage import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
cli.main()
"""


@pytest.mark.long
def test_failed_small_copy_leaves_nothing(tmp_path: Path) -> None:
    words = ["data", "pretend", "folder", str(tmp_path / "copy")]
    process = subprocess.run([sys.executable, "-c", LIMITED_FILES, *words], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    check_output(process.stderr, "copy", "ulimit -f", "run the same command again")
    assert not list(tmp_path.iterdir())
    output_of(*words)


@pytest.mark.parametrize("sheet", ["nowhere/sheet.png", "sheet.xyz", "sheet", "folder.png"])
def test_unwritable_sheet_is_refused_before_the_set_is_opened(tmp_path: Path, sheet: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with refused("--sheet", str(tmp_path / sheet)):
        show_set(tmp_path / "no such set", sheet=tmp_path / sheet, verify=True)


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    with refused("KIND", "tar", "folder"):
        import_quietly("tar", tmp_path / "f", tmp_path / "set")


def test_import_prints_its_report(tmp_path: Path) -> None:
    make_folder(tmp_path / "f")
    output = import_quietly("folder", tmp_path / "f", tmp_path / "set", size=8, frames="1", crop="none", max_bad=0)
    assert any("24 images of 4 subjects from 24 files" in line for line in output)
    assert PreparedSet.open(tmp_path / "set").name == "f"


def test_help_of_synth_warns_against_training_for_real_attacks() -> None:
    text = " ".join(output_of("data", "synth", "--help").split())
    assert "AUC of 0.37" in text


def test_documented_importer_works_and_checks_paths(tmp_path: Path) -> None:
    save(tmp_path / "source/1.png", picture(1))
    save(tmp_path / "outside.png", picture(2))
    (tmp_path / "source/2.png").write_text("not a picture")

    def import_table(*files: str) -> str:
        lines = [f"{file},live,,ann,train" for file in files]
        (tmp_path / "source/table.csv").write_text("\n".join(["file,label,kind,person,part", *lines]))
        output = import_quietly(
            "table", tmp_path / "source", tmp_path / "set", name="T", size=8, frames="1", crop="centre", max_bad=0.5
        )
        return "\n".join(output)

    with install(tmp_path / "package", {"datasets": {"table": "table:import_table"}}, {"table.py": files()["table"]}):
        with refused("source/table.csv", "../outside.png"):
            import_table("1.png", "../outside.png")
        with refused("source", "2 of 3"):
            import_table("1.png", "2.png", "3.png")
        assert "1 image of 1 subject from 2 files: bonafide 1, train 1" in import_table("1.png", "2.png")
    assert len(PreparedSet.open(tmp_path / "set")) == 1


def test_positions_of_frames_require_videos(tmp_path: Path) -> None:
    with refused("--frames", "9,9"):
        import_quietly("identities", tmp_path / "f", tmp_path / "s", frames="9,9")


@pytest.mark.parametrize("labels", ["0", "live", "live=", "attack=1"])
def test_labels_option_must_define_bona_fide(labels: str, tmp_path: Path) -> None:
    with refused("--labels", "live=0"):
        import_quietly("oulu-npu", tmp_path / "f", tmp_path / "s", labels=labels)


@pytest.mark.parametrize(("option", "value"), [("of", "msu-mfsd"), ("colour", "bgr")])
def test_options_of_other_kinds_are_refused(option: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with refused(f"--{option}", value):
        import_quietly("oulu-npu", tmp_path / "f", tmp_path / "s", **{option: value})


def test_import_all_continues_after_a_failure(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    options: dict[str, Any] = {"size": 16, "frames": "1", "crop": "centre"}
    for kind in ("oulu-npu", "msu-mfsd"):
        copy_to(copies[kind], root / f"Copy of {kind}")
    (root / "holiday").mkdir()
    save(root / "holiday/1.png", picture(1))
    save(root / "crops/train/real/1_1_frame0.png", picture(2))
    lines = import_quietly("all", root, tmp_path / "sets", **options)
    assert {"unknown, ignored: holiday", "unknown, ignored: crops"} < {*lines}
    assert sorted(path.name for path in (tmp_path / "sets").iterdir()) == ["msu-mfsd", "oulu-npu"]
    assert len(PreparedSet.open(tmp_path / "sets/oulu-npu")) == 8
    again = import_quietly("all", root, tmp_path / "sets", **options)
    assert [line for line in again if "already imported" in line] == [
        "msu-mfsd: already imported",
        "oulu-npu: already imported",
    ]
    protocol = root / "Copy of oulu-npu/Protocols/Protocol_1/Train.txt"
    protocol.write_text(protocol.read_text().replace("-1", "+1"))
    with refused("root", "1 of 2", "oulu-npu", "Train.txt: line 2"):
        import_quietly("all", root, tmp_path / "other", **options)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["msu-mfsd"]


def test_import_all_refuses_unknown_and_duplicate_datasets(copies: Mapping[str, Path], tmp_path: Path) -> None:
    (tmp_path / "none/pictures").mkdir(parents=True)
    with refused("none", "pictures", "fedvisage data kinds"):
        import_quietly("all", tmp_path / "none", tmp_path / "s")
    for name in ("a", "b"):
        copy_to(copies["casia-fasd"], tmp_path / "twice" / name)
    with refused("twice", "a and b", "casia-fasd"):
        import_quietly("all", tmp_path / "twice", tmp_path / "s")


def test_every_kind_is_described() -> None:
    text = "\n".join(describe_kinds(""))
    for kind in all_kinds():
        assert kind in text
    assert any("phone_session_subject_file" in line for line in describe_kinds("oulu-npu"))
    with refused("KIND", "imagenet", "folder"):
        describe_kinds("imagenet")
    with refused("KIND", "did you mean oulu-npu"):
        describe_kinds("oulu")


DIVIDED = {
    "oulu-npu": ("print", "replay"),
    "casia-fasd": ("warp", "cut", "replay"),
    "replay-attack": ("print", "photo", "replay"),
    "msu-mfsd": ("print", "replay"),
    "wmca": ("print", "replay"),
    "cefa": ("print", "replay"),
    "casia-surf": ("cut",),
    "celeba-spoof": ("attack",),
}
"""Datasets that studies divide finely, with the attacks in the names of their files."""


@pytest.mark.parametrize("kind", DIVIDED)
def test_further_people_have_every_species_of_studies(kind: str, tmp_path: Path) -> None:
    scanner = SCANNERS[kind]
    assert scanner.further is not None
    plain = {clip.path for clip in scanner.example if isinstance(clip, Clip)}
    more = [clip for number in range(12) for clip in scanner.further(number)]
    assert len({clip.path for clip in more} | plain) == len(more) + len(plain)
    for clip in more:
        (tmp_path / clip.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / clip.path).write_bytes(b"x")
    species_of: dict[str, set[str]] = {}
    for item in scanner.list(walk(tmp_path), ImportOptions()).items:
        species_of.setdefault(item.subject, set()).add(item.species)
        assert item.split in ("train", None)
    assert len(species_of) == 12
    assert all(species == {"bonafide", *DIVIDED[kind]} for species in species_of.values())


def test_further_people_are_written_if_supported(tmp_path: Path) -> None:
    output_of("data", "pretend", "oulu-npu", tmp_path / "O", "--subjects", 2)
    names = {path.name for path in (tmp_path / "O" / "Train_files").iterdir()}
    assert {"1_1_03_1.avi", "1_1_03_2.avi", "1_1_03_4.avi", "1_1_04_1.avi"} <= names
    assert "1_1_05_1.avi" not in names
    for kind, count, word in (("siw", 1, "SiW"), ("lfw", 1, "LFW"), ("oulu-npu", 13, "12")):
        with refused("--subjects", word):
            write_small_copy(kind, tmp_path / "x", count)
    assert not (tmp_path / "x").exists()


def test_small_copy_never_overwrites_files(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with refused(tmp_path, "exists"):
        write_small_copy("oulu-npu", tmp_path)


def test_synth_options_select_videos_share_and_species(tmp_path: Path) -> None:
    small = SynthesisOptions(
        domain="C", size=32, subjects=2, videos=2, frames=1, heldout=0.5, species="print,cut", workers=1
    )
    synthesise_set(tmp_path / "C", small, discard)
    rows = PreparedSet.open(tmp_path / "C").rows
    assert len(set(rows.video[rows.label == 1])) == 2 * 2
    assert set(rows.species) == {"bonafide", "print", "cut"}
    assert sorted(rows.split.tolist()) == ["heldout"] * (len(rows) // 2) + ["train"] * (len(rows) // 2)
    with refused("synth.species", "'paper'"):
        synthesise_set(tmp_path / "D", replace(small, species="paper"), discard)


@pytest.mark.parametrize(("source", "destination"), [("f", "f/set"), ("f", "f"), ("f/in", "f")])
def test_set_within_its_source_is_refused(source: str, destination: str, tmp_path: Path) -> None:
    make_folder(tmp_path / source)
    before = sorted(tmp_path.rglob("*"))
    with refused(tmp_path / destination, str(tmp_path / source)):
        import_quietly("folder", tmp_path / source, tmp_path / destination)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("present", "word"), [("real", "needs attacks"), ("attack", "needs bona fide")])
def test_set_of_one_class_and_subject_has_warnings(present: str, word: str, tmp_path: Path) -> None:
    folder = tmp_path / "f" / ("real" if present == "real" else "attack/print") / "ann"
    for number in range(2):
        save(folder / f"{number}.png", picture(number))
    output = import_quietly("folder", tmp_path / "f", tmp_path / "set", size=8, frames="1", crop="none", heldout=0)
    for lines in (output, show_set(tmp_path / "set")):
        warnings = [line for line in lines if line.startswith("warning: ")]
        assert len(warnings) == 2
        assert word in warnings[0]
        assert "one subject" in warnings[1]


def test_usable_set_has_no_warning(tmp_path: Path) -> None:
    make_set(tmp_path / "T")
    assert "warning" not in "".join(show_set(tmp_path / "T"))


def start_rendering(*words: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start a verb in a group of its own, and return when it renders, with its processes."""
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "fedvisage", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a parent in the background ignores it
    )
    assert running.stdout is not None
    assert any(line.startswith("rendering ") for line in running.stdout)
    return running, psutil.Process(running.pid).children(recursive=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("to", "number", "output", "code"),
    [
        (os.killpg, signal.SIGINT, "interrupted", 130),  # as a terminal does: the workers get it, too
        (os.killpg, signal.SIGTERM, "ended by SIGTERM", 143),  # as a service's end does
        (os.kill, signal.SIGTERM, "ended by SIGTERM", 143),
    ],
)
def test_interrupted_rendering_ends_with_one_line_and_leaves_nothing(
    to: Callable[[int, int], None], number: int, output: str, code: int, tmp_path: Path
) -> None:
    small = ["--size", "32", "--subjects", "400", "--videos", "1", "--frames", "1"]
    running, children = start_rendering("data", "synth", str(tmp_path / "O"), *small)
    to(running.pid, number)
    assert running.communicate(timeout=600)[1] == f"fedvisage: {output}; nothing was written\n"
    assert running.returncode == code
    assert psutil.wait_procs(children, timeout=600)[1] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_sigterm_ends_a_run_while_it_renders(tmp_path: Path) -> None:
    words = ["run", "demo/fedpad", "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    running, children = start_rendering(*words)
    os.killpg(running.pid, signal.SIGTERM)
    output = running.communicate(timeout=600)[1]
    assert output.startswith("fedvisage: ended by SIGTERM")
    assert output.count("\n") == 1
    assert running.returncode == 143
    assert psutil.wait_procs(children, timeout=600)[1] == []
    assert list((tmp_path / "cache").iterdir()) == []
