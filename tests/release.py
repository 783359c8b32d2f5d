"""Checks of a release besides the tests: ``python -m tests.release`` (``make release-check``).

The source archive and the wheel are built offline from a copy of the files in git, compared with them, and installed
into an environment without access to the repository, where the demo runs. Versions must agree, and the documentation's
tests pass. Each step prints one line; the first failure ends the checks with exit code 1.
"""

import argparse
import importlib.util
import json
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
from tests.environments import create_empty

import fedvisage

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
NEEDED = ("LICENSE", "README.md", "pyproject.toml")
DOCUMENTATION = ("tests/test_documentation.py", "tests/test_project.py", "tests/test_shipped.py")


class StepFailed(Exception):
    """A failed step."""


def call(*words: str | Path, cwd: Path, isolated: bool = True) -> str:
    """Run a program, without access to this checkout if ``isolated``, and return its output."""
    environment = {name: value for name, value in os.environ.items() if not (isolated and name.startswith("PYTHON"))}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise StepFailed(
            f"{' '.join(map(str, words))[:200]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


def tracked_files() -> list[str]:
    """Return the existing files that git tracks."""
    names = call("git", "ls-files", cwd=ROOT).splitlines()
    return [name for name in names if (ROOT / name).is_file() or (ROOT / name).is_symlink()]


def copy_sources(place: Path) -> Path:
    """Copy the files that git tracks into a directory, and return it."""
    for name in tracked_files():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return place


def package_files() -> set[str]:
    """Return the names of the files that a wheel must have."""
    shipped = {
        name.replace("recipes/", "fedvisage/studies/recipes/", 1)
        for name in tracked_files()
        if name.startswith("recipes/")
    }
    own = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/fedvisage/")}
    return shipped | {name for name in own if not name.endswith("studies/recipes")}


def check_versions() -> str:
    """Check that all files have the same version."""
    version = fedvisage.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if str(citation) != version:
        raise StepFailed(f"CITATION.cff has {citation}, the package {version}")
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise StepFailed(f"{version} is not a semantic version")
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    dated = any(head.startswith(version) for head in headings)
    return f"{version}; CHANGELOG.md {'has it' if dated else 'says “Unreleased”: name the version and the day there'}"


def check_sdist(source: Path, place: Path) -> str:
    """Build the source archive and unpack it for the wheel."""
    name = call(sys.executable, "-c", SDIST, place, cwd=source).splitlines()[-1]
    with tarfile.open(place / name) as archive:
        files = {member.partition("/")[2] for member in archive.getnames()}
        archive.extractall(place / "unpacked", filter="data")
    if missing := [file for file in NEEDED if file not in files]:
        raise StepFailed(f"{name} lacks {', '.join(missing)}")
    return f"{name}, {len(files)} files"


def check_wheel(place: Path) -> tuple[Path, str]:
    """Build the wheel from the source archive and compare its files with the repository's."""
    (source,) = (place / "unpacked").iterdir()
    call(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", place, ".", cwd=source)
    (wheel,) = place.glob("*.whl")
    files = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    if files != package_files():
        raise StepFailed(f"differs from the repository: {sorted(files ^ package_files())[:10]}")
    return wheel, f"{wheel.name}, {len(files)} files, {wheel.stat().st_size / 1e6:.1f} MB"


def check_metadata(place: Path) -> str:
    """Check the metadata as the package index does, if twine is installed."""
    if importlib.util.find_spec("twine") is None:
        return "left out: pip install twine"
    files = [*place.glob("*.whl"), *place.glob("*.tar.gz")]
    return call(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=place).split("\n")[0]


def install(wheel: Path, environment: Path) -> Path:
    """Create an environment with the wheel and the installed dependencies; return its directory of programs."""
    python, _ = create_empty(environment, sysconfig.get_path("purelib"))
    call(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=environment.parent)
    return python.parent


def check_installed(wheel: Path, place: Path, fetch: bool) -> str:
    """Run the demo in an environment with the wheel and its dependencies only."""
    program = place / "fresh/bin/python"
    if fetch:
        call(sys.executable, "-m", "venv", "fresh", cwd=place)
        pins = ("--constraint", ROOT / "constraints.txt")
        call(program, "-m", "pip", "--quiet", "install", *pins, f"{wheel}[federation]", cwd=place)
    else:
        install(wheel, place / "fresh")
    file = call(program, "-c", "import fedvisage; print(fedvisage.__file__)", cwd=place).strip()
    if not Path(file).is_relative_to(place / "fresh"):
        raise StepFailed(f"the environment uses {file}")
    call(place / "fresh/bin/fedvisage", "demo", "--out", "demo", "--cache", "cache", "--quiet", cwd=place)
    if not list((place / "demo").rglob("report.html")):
        raise StepFailed("the demo left no report")
    return "with fetched dependencies" if fetch else "with this environment's dependencies (--fetch fetches them)"


def write_bill_of_materials(place: Path, fetch: bool) -> str:
    """Write what a user installs, with versions and licences, as CycloneDX JSON, if its tool is installed."""
    if not fetch:
        return "left out: needs --fetch, because this environment has the developers' packages, too"
    if importlib.util.find_spec("cyclonedx_py") is None:
        return "left out: pip install cyclonedx-bom"
    (ROOT / "dist").mkdir(exist_ok=True)
    target = ROOT / "dist" / f"fedvisage-{fedvisage.__version__}.cdx.json"
    tool = (sys.executable, "-m", "cyclonedx_py", "environment", "--validate", "--output-reproducible")
    call(*tool, "--pyproject", ROOT / "pyproject.toml", "--outfile", target, place / "fresh/bin/python", cwd=place)
    components = json.loads(target.read_text(encoding="utf-8"))["components"]
    names = {component["name"] for component in components}
    if missing := {"torch", "numpy", "onnxruntime", "nvflare"} - names:
        raise StepFailed(f"{target.name} lacks {', '.join(sorted(missing))}")
    return f"{target.relative_to(ROOT)}, {len(components)} components"


def check_documentation() -> str:
    """Run the tests of the documentation."""
    call(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *DOCUMENTATION, cwd=ROOT, isolated=False)
    return ", ".join(DOCUMENTATION)


def check_website(place: Path) -> str:
    """Build the website strictly, and check that it fetches nothing."""
    if importlib.util.find_spec("material") is None:
        return "left out: pip install 'fedvisage[docs]'"
    site = place / "site"
    call(sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site, cwd=ROOT, isolated=False)
    return call(sys.executable, "-m", "docs.website.check", site, cwd=ROOT, isolated=False).splitlines()[-1]


def steps(place: Path, fetch: bool) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the steps in their order."""
    wheels: list[Path] = []

    def wheel() -> str:
        path, message = check_wheel(place)
        wheels.append(path)
        return message

    yield "versions", check_versions
    yield "source archive", lambda: check_sdist(copy_sources(place / "source"), place)
    yield "wheel from it", wheel
    yield "metadata", lambda: check_metadata(place)
    yield "fresh environment and demo", lambda: check_installed(wheels[0], place, fetch)
    yield "bill of materials", lambda: write_bill_of_materials(place, fetch)
    yield "documentation", check_documentation
    yield "website", lambda: check_website(place)


def main() -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="install dependencies from the package index, as users do")
    parser.add_argument("--only", nargs="*", help="names of steps, such as versions")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        place = Path(scratch).resolve()
        for name, step in steps(place, options.fetch):
            if options.only and name not in options.only:
                continue
            try:
                message = step()
            except StepFailed as failure:
                sys.stderr.write(f"{name}: failed: {failure}\n")
                return 1
            sys.stdout.write(f"{name}: {message}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
