"""Tests at both ends of the dependency ranges: ``python -m tests.dependencies`` (``make test-dependencies``).

One environment gets the lowest version of every direct dependency, the other the newest. Packages that pyproject.toml
does not name come from the current environment. So do torch and torchvision, which are exempt: they are too large to
install for a test. Packages are fetched from the package index.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from tests.environments import create_empty

ROOT = Path(__file__).parents[1]
EXEMPT = ("fedvisage", "torch", "torchvision")
PRINT_VERSIONS = """
import sys
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in sys.argv[1:]), sep=", ")
"""
UNTESTED_EXTRAS = ("docs", "dev", "ray")  # make test-ray tests Ray
TOOLS = ("httpx",)  # the test client of Starlette's older versions needs it
FAST = "not slow and not browser and not long"
SELECTION = (
    *("tests/recipe", "tests/faces", "tests/metrics", "tests/base/test_files.py", "tests/data/test_batches.py"),
    *("tests/device/test_base_install.py", "tests/device/test_exported.py", "tests/device/service/test_service.py"),
    *("tests/report/test_page.py", "tests/runs/export/test_export.py", "tests/nn/test_timm_network.py"),
    *("tests/datasets/importers/test_arrays.py", "tests/distributed/test_certificates.py"),
    "tests/federation/privacy/test_accountant.py",
)
TRACKERS = "tests/report/tracking/test_real_trackers.py"  # slow, and the only tests of MLflow and W&B


def direct_requirements() -> Iterator[Requirement]:
    """Yield the dependencies of the package and of its extras, except those that only developers need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lists = [project["dependencies"], *(extras[name] for name in extras if name not in UNTESTED_EXTRAS)]
    for requirement in map(Requirement, (text for texts in lists for text in texts)):
        if requirement.name not in EXEMPT:
            yield requirement


def pin_lowest(requirement: Requirement) -> str:
    """Return a requirement of the lowest version in the range."""
    (lowest,) = (part.version for part in requirement.specifier if part.operator in (">=", "=="))
    return f"{requirement.name}=={lowest}"


def create_environment(folder: Path, requirements: list[str]) -> Path:
    """Create an environment with the requirements in front of the current environment's packages; return its Python."""
    python, _ = create_empty(folder, ROOT / "src", *(path for path in sys.path if path.endswith("site-packages")))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python)
    subprocess.run([*pip, "install", "--upgrade", *requirements], check=True)
    return python


def print_versions(python: Path) -> None:
    """Print the versions that an environment imports, in one line."""
    names = sorted({requirement.name for requirement in direct_requirements()}, key=str.lower)
    subprocess.run([python, "-c", PRINT_VERSIONS, *names], check=True)


def run_tests(python: Path) -> bool:
    """Run the selection of tests and return whether all passed."""
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m")
    results = [subprocess.run([*pytest, *words], cwd=ROOT) for words in ((FAST, *SELECTION), ("slow", TRACKERS))]
    return not any(result.returncode for result in results)


ENDS: dict[str, Callable[[Requirement], str]] = {"lowest": pin_lowest, "newest": str}


def main() -> int:
    """Test one end, or both."""
    parser = argparse.ArgumentParser(prog="python -m tests.dependencies", description=__doc__)
    parser.add_argument("--only", choices=ENDS, help="test one end")
    only, failed = parser.parse_args().only, []
    for end in [only] if only else ENDS:
        with TemporaryDirectory() as scratch:
            python = create_environment(Path(scratch), [*sorted(map(ENDS[end], direct_requirements())), *TOOLS])
            print_versions(python)
            if not run_tests(python):
                failed.append(end)
    sys.stdout.write(f"failed: {', '.join(failed)}\n" if failed else "all tests passed\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
