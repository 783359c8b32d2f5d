"""The steps of a release that need no minutes: versions agree; the source archive alone makes the whole wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests import release


def test_the_versions_agree() -> None:
    assert release.check_versions().startswith(release.fedvisage.__version__)


def test_a_version_that_differs_is_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release.fedvisage, "__version__", "9.9.9")
    with pytest.raises(release.Failed, match=r"9\.9\.9"):
        release.check_versions()


@pytest.mark.slow
def test_the_wheel_that_is_made_from_the_source_archive_is_whole(tmp_path: Path) -> None:
    release.check_sdist(release.copied(tmp_path / "source"), tmp_path)
    wheel, _ = release.check_wheel(tmp_path)
    (source,) = (tmp_path / "unpacked").iterdir()
    (source / "src/fedvisage/base/errors.py").unlink()
    shutil.rmtree(source / "build")
    wheel.unlink()
    with pytest.raises(release.Failed, match=r"errors\.py"):
        release.check_wheel(tmp_path)
