"""The quick steps of a release: versions agree, and the wheel from the source archive is complete."""

import shutil
from pathlib import Path

import pytest
from tests import release

import fedvisage


def test_versions_agree() -> None:
    assert release.check_versions().startswith(fedvisage.__version__)


def test_different_version_fails_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedvisage, "__version__", "9.9.9")
    with pytest.raises(release.StepFailed, match=r"9\.9\.9"):
        release.check_versions()


@pytest.mark.slow
def test_wheel_from_the_source_archive_is_complete(tmp_path: Path) -> None:
    release.check_sdist(release.copy_sources(tmp_path / "source"), tmp_path)
    wheel, _ = release.check_wheel(tmp_path)
    (source,) = (tmp_path / "unpacked").iterdir()
    (source / "src/fedvisage/base/errors.py").unlink()
    shutil.rmtree(source / "build")
    wheel.unlink()
    with pytest.raises(release.StepFailed, match=r"errors\.py"):
        release.check_wheel(tmp_path)
