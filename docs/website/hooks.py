"""Hooks of MkDocs: generated pages, pages of the repository's root, and the menu."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the program mkdocs does not search the current directory

from docs.website import api, cli, llms, markdown, methods, models, modules, notebooks  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

GENERATED = "GENERATED "
TASKS = {"pad": "Attack detection", "recognition": "Recognition"}

Nav = list[Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add generated pages to the menu, and all other pages at its end."""
    generated = {**methods.pages(), **models.pages(), "python.md": api.page(), "cli.md": cli.page()}
    generated["modules.md"] = modules.index_page()
    texts, pictures = notebooks.pages()
    config.extra["made"] = {**generated, **texts, **pictures}
    groups: dict[str, Nav] = {
        "methods": [
            "methods/index.md",
            *({title: methods.of_task(task)} for task, title in TASKS.items()),
            {"Models": [path for path in generated if path.startswith("models/")]},
        ],
        "tutorials": list(texts),
        "fidelity": ["fidelity.md"] if (ROOT / "docs" / "fidelity.md").exists() else [],
    }
    config.nav = fill_menu(config.nav or [], groups)
    in_menu = set(paths(config.nav))
    if others := [path for path in pages_below("") if path not in in_menu]:
        config.nav.append({"More": others})
    config.extra["made"]["llms.txt"] = llms.text(config.nav, {**generated, **texts})
    return config


def pages_below(folder: str) -> list[str]:
    """Return the pages of a folder of docs/."""
    return sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / folder).glob("*.md"))


def fill_menu(nav: Nav, groups: dict[str, Nav]) -> Nav:
    """Replace the names of groups in the menu by their pages; omit a group without pages."""
    menu: Nav = []
    for entry in nav:
        if not isinstance(entry, dict):
            menu.append(entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            menu.append({title: fill_menu(value, groups)})
        elif not value.startswith(GENERATED):
            menu.append(entry)
        elif pages := groups[value.removeprefix(GENERATED)]:
            menu.append({title: pages[0] if len(pages) == 1 else pages})
    return menu


def paths(nav: Nav) -> list[str]:
    """Return the paths of all pages of a menu."""
    pages = []
    for entry in nav:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        pages += [path for value in values for path in (paths(value) if isinstance(value, list) else [value])]
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name in markdown.OF_ROOT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, markdown.in_site(name), content=text))
    for path, content in config.extra.pop("made").items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert a page of the repository to a page of the site."""
    path = page.file.src_uri
    if path.startswith("results/"):  # wide tables
        page.meta["hide"] = ["toc"]
    in_repository = {markdown.in_site(name): name for name in (*markdown.OF_ROOT, *notebooks.paths())}
    return markdown.for_site(text, in_repository.get(path, f"docs/{path}"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove backslashes before pipes in code: they are needed in tables, and only GitHub hides them."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)
