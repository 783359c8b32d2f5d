"""What a release must pass besides the tests: ``python -m tests.release`` (``make release-check``).

The source archive and the wheel are built offline from a copy of what git knows, compared with it, and installed into
an environment of their own, from which the repository cannot be seen. There the demo runs. Versions must agree, and the
documentation's own tests pass. Each step says in a line how it went; the first that fails ends all with exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

import fedvisage

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
NEEDED = ("LICENSE", "README.md", "pyproject.toml")
DOCUMENTATION = ("tests/test_documentation.py", "tests/test_project.py", "tests/test_shipped.py")


class Failed(Exception):
    """A step that did not pass."""


def called(*words: str | Path, where: Path, apart: bool = True) -> str:
    """Run a program, which sees nothing of this checkout if it is apart, and return what it prints."""
    seen = {name: value for name, value in os.environ.items() if not (apart and name.startswith("PYTHON"))}
    done = subprocess.run([str(word) for word in words], cwd=where, env=seen, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, words))[:200]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def known() -> list[str]:
    """Return the files that git knows and that are there."""
    listed = called("git", "ls-files", where=ROOT).splitlines()
    return [name for name in listed if (ROOT / name).is_file() or (ROOT / name).is_symlink()]


def copied(place: Path) -> Path:
    """Copy what git knows, and nothing that lies about beside it."""
    for name in known():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return place


def in_package() -> set[str]:
    """Return the files that an installed package must have, by their names in a wheel."""
    shipped = {
        name.replace("recipes/", "fedvisage/studies/recipes/", 1) for name in known() if name.startswith("recipes/")
    }
    own = {name.removeprefix("src/") for name in known() if name.startswith("src/fedvisage/")}
    return shipped | {name for name in own if not name.endswith("studies/recipes")}


def check_versions() -> str:
    """The version stands in four places."""
    version = fedvisage.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if str(citation) != version:
        raise Failed(f"CITATION.cff has {citation}, the package {version}")
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise Failed(f"{version} is not a semantic version")
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    dated = any(head.startswith(version) for head in heads)
    return f"{version}; CHANGELOG.md {'has it' if dated else 'says “Unreleased”: name the version and the day there'}"


def check_sdist(source: Path, place: Path) -> str:
    """The source archive has all that a wheel is made of: the wheel that is made from it says so."""
    name = called(sys.executable, "-c", SDIST, place, where=source).splitlines()[-1]
    with tarfile.open(place / name) as archive:
        held = {member.partition("/")[2] for member in archive.getnames()}
        archive.extractall(place / "unpacked", filter="data")
    if missing := [one for one in NEEDED if one not in held]:
        raise Failed(f"{name} lacks {', '.join(missing)}")
    return f"{name}, {len(held)} files"


def check_wheel(place: Path) -> tuple[Path, str]:
    """Build the wheel out of the source archive and compare its files with the repository's."""
    (source,) = (place / "unpacked").iterdir()
    called(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", place, ".", where=source)
    (wheel,) = place.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    if held != in_package():
        raise Failed(f"differs from the repository: {sorted(held ^ in_package())[:10]}")
    return wheel, f"{wheel.name}, {len(held)} files, {wheel.stat().st_size / 1e6:.1f} MB"


def check_metadata(place: Path) -> str:
    """What the package index would refuse; twine is no part of the development environment."""
    if importlib.util.find_spec("twine") is None:
        return "left out: pip install twine"
    files = [*place.glob("*.whl"), *place.glob("*.tar.gz")]
    return called(sys.executable, "-m", "twine", "check", "--strict", *files, where=place).split("\n")[0]


def check_installed(wheel: Path, place: Path, fetch: bool) -> str:
    """An environment with nothing but the wheel and what it needs, there or fetched, runs the demo."""
    called(sys.executable, "-m", "venv", *([] if fetch else ["--without-pip"]), "fresh", where=place)
    program = place / "fresh/bin/python"
    if fetch:
        pins = ("--constraint", ROOT / "constraints.txt")
        called(program, "-m", "pip", "--quiet", "install", *pins, f"{wheel}[federation]", where=place)
    else:
        (packages,) = (place / "fresh/lib").glob("python*/site-packages")
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
        called(*PIP, "--python", program, "install", "--no-deps", "--no-index", wheel, where=place)
    found = called(program, "-c", "import fedvisage; print(fedvisage.__file__)", where=place).strip()
    if not Path(found).is_relative_to(place / "fresh"):
        raise Failed(f"the environment uses {found}")
    called(place / "fresh/bin/fedvisage", "demo", "--out", "demo", "--cache", "cache", "--quiet", where=place)
    if not list((place / "demo").rglob("report.html")):
        raise Failed("the demo left no report")
    return "with fetched dependencies" if fetch else "with this environment's dependencies (--fetch fetches them)"


def check_documentation() -> str:
    """Pages, their links and commands."""
    called(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *DOCUMENTATION, where=ROOT, apart=False)
    return ", ".join(DOCUMENTATION)


def check_website(place: Path) -> str:
    """The website is built strictly, and fetches nothing."""
    if importlib.util.find_spec("material") is None:
        return "left out: pip install 'fedvisage[docs]'"
    site = place / "site"
    called(sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site, where=ROOT, apart=False)
    return called(sys.executable, "-m", "docs.website.checked", site, where=ROOT, apart=False).splitlines()[-1]


def steps(place: Path, fetch: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what is done, in its order."""
    made: list[Path] = []

    def wheel() -> str:
        path, said = check_wheel(place)
        made.append(path)
        return said

    yield "versions", check_versions
    yield "source archive", lambda: check_sdist(copied(place / "source"), place)
    yield "wheel from it", wheel
    yield "metadata", lambda: check_metadata(place)
    yield "fresh environment and demo", lambda: check_installed(made[0], place, fetch)
    yield "documentation", check_documentation
    yield "website", lambda: check_website(place)


def main() -> int:
    """Take the steps."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="install dependencies from the package index, as users do")
    parser.add_argument("--only", nargs="*", help="names of steps, such as versions")
    asked = parser.parse_args()
    with TemporaryDirectory() as scratch:
        place = Path(scratch).resolve()
        for name, step in steps(place, asked.fetch):
            if asked.only and name not in asked.only:
                continue
            try:
                said = step()
            except Failed as failure:
                sys.stderr.write(f"{name}: failed: {failure}\n")
                return 1
            sys.stdout.write(f"{name}: {said}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
