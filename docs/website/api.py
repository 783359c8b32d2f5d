"""The page of the Python interface: signatures and docstrings of the public names."""

from __future__ import annotations

import fedvisage as fv

HEAD = """\
# Python interface

`import fedvisage as fv` is fast, because each name is imported at its first use. [Start](index.md#use-it-from-python)
has an example. `Site`, `Server`, `Method` and `Model` are on the [page for methods' authors](reference.md).
`fv.methods()` returns the methods by name.
"""
SECTIONS = {
    "Runs and models": ("load", "run", "open", "evaluate", "Run", "FinishedModel"),
    "Datasets": ("dataset", "Writer"),
    "Comparisons and lists": ("compare", "study", "models"),
    "Mistakes": ("UserError", "RunFailed"),
}
MODULES = {
    "Metrics of attack detection": "fedvisage.metrics.pad",
    "Thresholds": "fedvisage.metrics.threshold",
    "Verification": "fedvisage.metrics.verification",
    "Identification": "fedvisage.metrics.identification",
}


def page() -> str:
    """Return the page, in the order of use."""
    blocks = [HEAD]
    for title, names in SECTIONS.items():
        places = [f"{getattr(fv, name).__module__}.{name}" for name in names]
        blocks += [f"## {title}", *(f"::: {place}" for place in places)]
    for title, module in MODULES.items():
        blocks.append(f"## {title}\n\n::: {module}\n    options: {{show_root_heading: false}}")
    return "\n\n".join(blocks) + "\n"
