"""Imports of people by several processes, and after a kill: the same bytes; and people's datasets below a folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.datasets.importers.files import picture, save
from tests.datasets.imports import import_quietly

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS, write_small_copy
from fedvisage.datasets.finding import scan_folders
from fedvisage.datasets.import_people import import_people
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.people.folders import IDENTITIES
from fedvisage.datasets.report import ImportReport

Import = Callable[..., ImportReport]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for kind in LAYOUTS:
        write_small_copy(kind, root / f"copy of {kind}")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People with copies, damaged files, and one with too few."""
    root = tmp_path_factory.mktemp("folder")
    for number in range(12):
        save(root / f"person{number // 3}" / f"{number}.png", picture(number, 24, 24))
    (root / "person1" / "copy.png").write_bytes((root / "person1" / "3.png").read_bytes())
    (root / "person1" / "damaged.png").write_bytes(b"no picture")
    save(root / "person7" / "1.png", picture(70, 24, 24))
    return root


def import_folder(
    folder: Path, destination: Path, every: float = 0.0, workers: int = 1, **keywords: Any
) -> tuple[str, str]:
    report = import_people(
        IDENTITIES,
        folder,
        destination,
        ImportOptions(size=24, crop="none", least=2, max_bad=0.5, workers=workers),
        name="P",
        **{"every": 0.0, **keywords},
    )
    return PreparedSet.open(destination, verify=True).digest, report.json()


def import_copy(kind: str, root: Path, destination: Path, workers: int = 1, **keywords: Any) -> tuple[str, str]:
    source = root / f"copy of {kind}"
    options = ImportOptions(size=48, workers=workers)
    report = import_people(LAYOUTS[kind], source, destination, options, name="P", **{"every": 0.0, **keywords})
    lists = [path.read_text() for path in sorted(destination.parent.glob(f"{destination.name}-pairs*"))]
    return PreparedSet.open(destination, verify=True).digest, "".join([report.json(), *lists])


@pytest.mark.long
def test_several_processes_write_the_same_bytes(copies: Path, folder: Path, tmp_path: Path) -> None:
    assert import_folder(folder, tmp_path / "one") == import_folder(folder, tmp_path / "two", workers=2)
    one, two = (import_copy("rec", copies, tmp_path / f"rec{count}", workers=count) for count in (1, 2))
    assert one == two


def interrupt(after: int) -> Callable[[int, int], None]:
    """Return a progress function that interrupts an import after this number of photographs."""

    def progress(done: int, _: int) -> None:
        if done > after:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("kind", ["folder", "rec", "bin", "lfw", "rfw"])
def test_import_resumes_after_the_last_finished_person(kind: str, copies: Path, folder: Path, tmp_path: Path) -> None:
    def import_set(destination: Path, **options: Any) -> tuple[str, str]:
        if kind == "folder":
            return import_folder(folder, destination, **options)
        return import_copy(kind, copies, destination, **options)

    counts: list[int] = []
    whole = import_set(tmp_path / "whole", progress=lambda done, _: counts.append(done))
    cut = len(counts) // 2
    with pytest.raises(KeyboardInterrupt):
        import_set(tmp_path / "set", progress=interrupt(counts[cut] - 1))
    assert not (tmp_path / "set").exists()
    again: list[int] = []
    assert import_set(tmp_path / "set", progress=lambda done, _: again.append(done)) == whole
    assert again == counts[cut + 1 :]
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_changed_photograph_restarts_the_import(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_folder(folder, tmp_path / "set", progress=interrupt(5))
    os.utime(folder / "person0" / "0.png", ns=(1, 1))
    done: list[int] = []
    import_folder(folder, tmp_path / "set", progress=lambda one, _: done.append(one))
    assert done[0] == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from fedvisage.datasets.import_people import import_people
from fedvisage.datasets.people.folders import IDENTITIES
from fedvisage.datasets.options import ImportOptions

def progress(done, whole):
    if done > 5:
        os.kill(os.getpid(), signal.SIGKILL)

options = ImportOptions(size=24, crop="none", least=2, max_bad=0.5)
import_people(IDENTITIES, Path(sys.argv[1]), Path(sys.argv[2]), options, name="P", every=0.0, progress=progress)
"""


@pytest.mark.slow
def test_killed_import_of_people_resumes_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "set")]
    killed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    done: list[int] = []
    result = import_folder(folder, tmp_path / "set", progress=lambda one, _: done.append(one))
    assert done[0] > 8  # the first two people have three photographs and five
    assert result == import_folder(folder, tmp_path / "whole")


def test_datasets_of_people_are_recognised(copies: Path) -> None:
    result = {one.source: one for one in scan_folders(copies).datasets}
    files = {"rec": "train.rec", "bin": next((copies / "copy of bin").glob("*.bin")).name}
    for kind in LAYOUTS:
        place = copies / f"copy of {kind}" / files.get(kind, "")
        assert result[place].kind == kind
    assert len(result) == len(LAYOUTS)


def test_unrecognised_folders_and_model_files_are_ignored(folder: Path, tmp_path: Path) -> None:
    """Files of models end in ``.bin`` as well; they are not taken for pairs."""
    for number in (1, 2):
        save(tmp_path / "root" / "album" / "ann" / f"ann_000{number}.png", picture(number))
    (tmp_path / "root" / "model").mkdir()
    (tmp_path / "root" / "model" / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    below = scan_folders(tmp_path / "root")
    assert (below.datasets, below.unknown) == ((), ("album", "model"))


@pytest.mark.slow
def test_import_all_covers_people_and_attacks(copies: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for kind in ("lfw", "rec", "bin", "digiface"):
        (root / kind).symlink_to(copies / f"copy of {kind}")  # a linked folder is not looked into
    assert not scan_folders(root).datasets
    for kind in ("lfw", "rec", "bin"):
        (root / kind).unlink()
        write_small_copy(kind, root / kind)
    write_small_copy("casia-fasd", root / "casia")
    options: dict[str, Any] = {"size": 48, "frames": "1", "crop": "centre", "enroll": True}
    lines = import_quietly("all", root, tmp_path / "sets", **options)
    names = {path.name for path in (tmp_path / "sets").iterdir() if path.is_dir()}
    (pairs,) = (name for name in names if name.startswith("bin-bin-"))
    assert names == {"casia-fasd", "lfw", "rec-rec-train", pairs}
    assert (tmp_path / "sets" / "lfw-pairs.txt").exists()
    assert "unknown, ignored: digiface" in lines
    again = import_quietly("all", root, tmp_path / "sets", **options)
    assert sum("already imported" in line for line in again) == 4
