"""Environments with the packages of some of fedvisage's extras only, as links to the installed packages."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distributions_of(*extras: str) -> Iterator[str]:
    """Yield the names of all distributions that an installation with these extras has, except fedvisage."""
    direct = [*PROJECT["dependencies"], *(text for name in extras for text in PROJECT["optional-dependencies"][name])]
    waiting, visited = [(text, "") for text in direct], set[tuple[str, str]]()
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            key = (requirement.name.lower(), wanted)
            if key not in visited:
                visited.add(key)
                waiting += [(needed, wanted) for needed in distribution(requirement.name).requires or ()]
                if not wanted:
                    yield requirement.name


def top_level_entries(name: str) -> set[Path]:
    """Return the files and folders of a distribution in its site-packages directory."""
    installed = distribution(name)
    tops = {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(installed.locate_file(top))) for top in tops}


def create_empty(folder: Path, *paths: str | Path) -> tuple[Path, Path]:
    """Create an environment without packages that also imports from these paths; return its Python and its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Python appends these paths, so that the environment's own packages have precedence.
    (packages / "paths.pth").write_text("\n".join(map(str, paths)), encoding="utf-8")
    return folder / "bin" / "python", packages


def create_environment(folder: Path, *extras: str) -> Path:
    """Create an environment with the packages of these extras only; return its Python."""
    python, packages = create_empty(folder, ROOT / "src")
    for entry in {entry for name in distributions_of(*extras) for entry in top_level_entries(name)}:
        (packages / entry.name).symlink_to(entry)
    return python


def call(python: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the Python of an environment without this process's Python settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([python, *words], env=environment, capture_output=True, text=True)
