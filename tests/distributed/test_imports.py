"""NVFlare stays behind one door."""

import ast
from pathlib import Path

import fedvisage

ROOT = Path(fedvisage.__file__).parent


def modules_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_only_one_folder_imports_nvflare() -> None:
    importers = {path.relative_to(ROOT).parent for path in ROOT.rglob("*.py") if "nvflare" in modules_imported(path)}
    assert importers == {Path("nvflare")}
