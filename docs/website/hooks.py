"""What MkDocs calls while it builds: pages that code writes, pages of the repository's root, and the menu."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs may be called as a program, which does not look into the current directory

from docs.website import cli, door, llms, markdown, methods, models, modules, notebooks  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

GENERATED = "GENERATED "
TASKS = {"pad": "Attack detection", "recognition": "Recognition"}

Nav = list[Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the lists of generated pages into the menu, and what no menu names at its end."""
    made = {**methods.pages(), **models.pages(), "python.md": door.page(), "cli.md": cli.page()}
    made["modules.md"] = modules.index_page()
    texts, pictures = notebooks.pages()
    config.extra["made"] = {**made, **texts, **pictures}
    groups = {
        "methods": [
            "methods/index.md",
            *({title: methods.of_task(task)} for task, title in TASKS.items()),
            {"Models": [path for path in made if path.startswith("models/")]},
        ],
        "tutorials": list(texts),
        "fidelity": ["fidelity.md"] if (ROOT / "docs" / "fidelity.md").exists() else [],
    }
    config.nav = filled(config.nav or [], groups)
    named = set(paths(config.nav))
    if left := [path for path in below("") if path not in named]:
        config.nav.append({"More": left})
    config.extra["made"]["llms.txt"] = llms.text(config.nav, {**made, **texts})
    return config


def below(folder: str) -> list[str]:
    """Return the pages of a folder of docs/."""
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / folder).glob("*.md"))


def filled(nav: Nav, groups: dict[str, Nav]) -> Nav:
    """Return the menu with groups of pages where their names stand; a group without pages is left out."""
    menu: Nav = []
    for entry in nav:
        if not isinstance(entry, dict):
            menu.append(entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            menu.append({title: filled(value, groups)})
        elif not value.startswith(GENERATED):
            menu.append(entry)
        elif pages := groups[value.removeprefix(GENERATED)]:
            menu.append({title: pages[0] if len(pages) == 1 else pages})
    return menu


def paths(nav: Nav) -> list[str]:
    """Return the paths of all pages of a menu."""
    found = []
    for entry in nav:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        found += [path for value in values for path in (paths(value) if isinstance(value, list) else [value])]
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not below docs/."""
    for name in markdown.OF_ROOT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, markdown.in_site(name), content=text))
    for path, content in config.extra.pop("made").items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let a page of the repository be one of the site."""
    path = page.file.src_uri
    if path.startswith("results/"):  # wide tables
        page.meta["hide"] = ["toc"]
    in_repository = {markdown.in_site(name): name for name in (*markdown.OF_ROOT, *notebooks.paths())}
    return markdown.for_site(text, in_repository.get(path, f"docs/{path}"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the backslashes before pipes in code, which keep them from ending a cell, and which only GitHub hides."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)
