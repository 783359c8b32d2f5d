"""A site checks its own sets before it starts, and sends no result of the check."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tests.refusals import refused
from tests.toy import Sets, copy_set, make_set

from fedvisage.data.prepared import IMAGES, PreparedSet
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.preparation import check_own_sets
from fedvisage.tasks.checks import Checks


def kit(directory: Path) -> Kit:
    return Kit(directory / "kit", "site", "bank")


def write_set_with_repeated_images(path: Path, source: Path, count: int) -> Path:
    """Write a set with the first pictures of another twice: to train on, and held out under another name."""
    rows = PreparedSet.open(source).rows
    names: dict[str, Any] = {
        kind: [*getattr(rows, kind), *(f"again-{name}" for name in getattr(rows, kind)[:count])]
        for kind in ("subject", "video", "item")
    }
    chosen = np.concatenate([np.arange(len(rows.item)), np.arange(count)])
    return copy_set(source, path, chosen=chosen, depth=False, split=[*rows.split, *["heldout"] * count], **names)


def test_held_out_pictures_that_also_train_are_refused_unless_allowed(sets: Sets, tmp_path: Path) -> None:
    own, lines = write_set_with_repeated_images(tmp_path / "own", sets["A"], 4), list[str]()
    with refused("--data (held-out subjects)", "4 of 16", "--allow-overlap") as caught:
        check_own_sets(kit(tmp_path), own, None, None, lines.append)
    assert "secret" not in str(caught.value)
    check_own_sets(kit(tmp_path), own, None, None, lines.append, Checks(allow_overlap=True))
    assert len(lines) == 1
    assert "4 of 16" in lines[0]


def test_people_shared_with_the_public_set_are_refused(sets: Sets, tmp_path: Path) -> None:
    own = sets["A"].with_name("people-A")
    with refused("--data", "public", "--allow-overlap"):
        check_own_sets(kit(tmp_path), own, None, Path(shutil.copytree(own, tmp_path / "public")), print)
    check_own_sets(kit(tmp_path), own, None, sets["A"].with_name("people-P"), print)


def test_changed_files_are_refused_at_the_start(tmp_path: Path) -> None:
    own = make_set(tmp_path / "own", "mine", 3)
    check_own_sets(kit(tmp_path), own, tmp_path / "state", None, print)
    check_own_sets(kit(tmp_path), own, tmp_path / "state", None, print, Checks(verify=True))
    with (own / IMAGES).open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"12345678")
    with refused("images.npy", "SHA-256"):
        check_own_sets(kit(tmp_path), own, tmp_path / "state", None, print)
