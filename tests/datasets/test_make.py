"""What the data commands say and refuse, and how they end when they are interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.making import make_set
from tests.datasets.importers.making import make_folder, picture, save
from tests.documented import example
from tests.toy import unheard

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.make import KINDS, import_dataset, show_set, synthesise_set
from fedvisage.errors import UserError


def test_names_in_square_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    make_set(tmp_path / "T", name="[red]my[/red] set")
    title, *_ = show_set(tmp_path / "T", sheet=tmp_path / "[b].png")
    assert title.startswith("[red]my[/red] set: 20 images of 8×8")


@pytest.mark.parametrize("sheet", ["nowhere/sheet.png", "sheet.xyz", "sheet", "folder.png"])
def test_a_sheet_that_cannot_be_written_is_refused_before_the_set_is_opened(tmp_path: Path, sheet: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=r"^--sheet: "):
        show_set(tmp_path / "no such set", sheet=tmp_path / sheet, verify=True)


def test_an_unknown_layout_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose one of folder"):
        import_dataset("tar", tmp_path, tmp_path / "set", unheard, name="", size=8, frames=1, crop="none", depth="auto",
                       heldout=0.2, test=0.4, least=1, max_bad=0, seed=0)  # fmt: skip


def test_an_import_prints_its_report(tmp_path: Path) -> None:
    make_folder(tmp_path / "f")
    said = import_dataset("folder", tmp_path / "f", tmp_path / "set", unheard, name="", size=8, frames=1, crop="none",
                          depth="auto", heldout=0.25, test=0.4, least=1, max_bad=0, seed=0)  # fmt: skip
    assert any("24 images of 4 subjects from 24 files" in line for line in said)
    assert PreparedSet.open(tmp_path / "set").name == "f"


def test_the_importer_of_the_documentation_fits_in_and_believes_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "table", example("table").import_table)
    save(tmp_path / "source/1.png", picture(1))
    save(tmp_path / "outside.png", picture(2))
    (tmp_path / "source/2.png").write_text("not a picture")

    def imported(*files: str) -> str:
        lines = [f"{file},live,,ann,train" for file in files]
        (tmp_path / "source/table.csv").write_text("\n".join(["file,label,kind,person,part", *lines]))
        said = import_dataset(
            "table", tmp_path / "source", tmp_path / "set", unheard, name="T", size=8, frames=1, crop="centre",
            depth="auto", heldout=0.25, test=0.4, least=1, max_bad=0.5, seed=0,
        )  # fmt: skip
        return "\n".join(said)

    with pytest.raises(UserError, match=r"table\.csv: .*\.\./outside\.png"):
        imported("1.png", "../outside.png")
    with pytest.raises(UserError, match="2 of 3 files"):
        imported("1.png", "2.png", "3.png")
    assert "1 image of 1 subject from 2 files: bonafide 1, train 1" in imported("1.png", "2.png")
    assert len(PreparedSet.open(tmp_path / "set")) == 1


def synthesise_small(destination: Path, **changes: object) -> list[str]:
    options: dict[str, object] = {
        "domain": "C", "size": 32, "subjects": 2, "videos": 1, "frames": 1, "seed": 0, "heldout": 0.5, "species": "",
        "photos": None, "crop": "centre", "max_bad": 0.5, "workers": 1,
    }  # fmt: skip
    return synthesise_set(destination, unheard, **(options | changes))  # type: ignore[arg-type]


def test_videos_share_held_out_and_species_can_be_chosen(tmp_path: Path) -> None:
    synthesise_small(tmp_path / "C", videos=2, species="print,cut")
    rows = PreparedSet.open(tmp_path / "C").rows
    assert len(set(rows.video[rows.label == 1])) == 2 * 2
    assert set(rows.species) == {"bonafide", "print", "cut"}
    assert sorted(rows.split.tolist()) == ["heldout"] * (len(rows) // 2) + ["train"] * (len(rows) // 2)
    with pytest.raises(UserError, match=r"^synth\.species: .*'paper'"):
        synthesise_small(tmp_path / "D", species="paper")


def test_photographs_that_were_skipped_are_listed(tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        save(tmp_path / "photos" / name / "1.png", picture(ord(name[0]), 40, 50))
    save(tmp_path / "photos" / "eve" / "1.png", picture(3, 20, 20))
    said = "\n".join(synthesise_small(tmp_path / "set", subjects=None, photos=tmp_path / "photos"))
    assert "8 images of 2 subjects from 3 files" in said
    assert "  eve/1.png: its crop is smaller than 32×32 pixels" in said


def test_ctrl_c_while_rendering_ends_with_one_line_and_1_and_leaves_nothing(tmp_path: Path) -> None:
    words = [
        "data",
        "synth",
        str(tmp_path / "O"),
        "--size",
        "32",
        "--subjects",
        "400",
        "--videos",
        "1",
        "--frames",
        "1",
    ]
    program = f"import sys; from fedvisage.cli import main; sys.argv = ['fedvisage', *{words!r}]; main()"
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a parent in the background ignores it
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline().startswith("rendering O: ")
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the workers are interrupted too
    _, said = running.communicate(timeout=120)
    assert said == "fedvisage: interrupted; nothing was written\n"
    assert running.returncode == 1
    assert list(tmp_path.iterdir()) == []
