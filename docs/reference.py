"""Writes docs/reference.md from the code: what a method's author sees, with signatures and first lines of docstrings.

``make reference`` runs it; a test holds the page against the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedvisage as fv
from fedvisage import api
from fedvisage.federation.method import Member, Personal, Prediction
from fedvisage.federation.server import Conversation, Reduced

PAGE = Path(__file__).with_name("reference.md")

HEAD = """\
# Reference: what a method's author sees

Written from the code by `make reference`: signatures, and the first sentence of what the code says of each.
[Extending](extending.md) shows how they fit together; tests execute the examples here. All types but `Reduced`,
`Conversation`, `Member`, `Prediction` and `Personal` are names of `import fedvisage as fv`.
A `Message` is `dict[str, Tensor]`; a number is a tensor without dimensions.
"""

FUNCTIONS = (
    "load",
    "run",
    "open",
    "analyze",
    "evaluate",
    "compare",
    "recount",
    "study",
    "methods",
    "models",
    "dataset",
)
AVERAGING = (
    *("on_model", "options_on", "titled", "server", "weight_of", "local_training", "training_call", "uploads_of"),
    *("apply_server_step", "trained_tensors", "started_from", "with_proximal_term"),
)
FUNCTION_EXAMPLES = """\
Your own images as the data of a site:
```python
import numpy as np
import fedvisage as fv

images = np.random.default_rng(0).integers(0, 256, (24, 96, 96, 3), dtype=np.uint8)  # face crops of input.size
labels, people = [1, 0] * 12, [number // 4 for number in range(24)]  # 1 is bona fide, 0 an attack
own = fv.dataset(images, labels, subjects=people)
run = fv.run("demo/fedpad", out="runs/own", data={"O": own})
```
An algorithm on one of the models:
```python
import fedvisage as fv
from fedvisage.methods.algorithms.fedprox import fedprox

print(fv.models())
changes = {"method.network": {"arch": "test_resnet"}, "method.mu": 0.1}
run = fv.run("demo/fedpad", out="runs/timm", method=fedprox(fv.models()["timm"]), changes=changes)
```
A transport is made from the sites of a simulation. This one prints a line per answer of a site:
```python
import fedvisage as fv
from fedvisage.federation.site_worker import LocalTransport


class Printing(LocalTransport):
    def call(self, orders):
        for reply in super().call(orders):
            print(reply.site, orders[reply.site].call, reply.failure or f"{len(reply.message)} tensors")
            yield reply


run = fv.run("demo/fedpad", out="runs/printed", transport=Printing)
```
"""
AVERAGING_EXAMPLE = """\
An algorithm that changes the sites' loss, on every model:
```python
import fedvisage as fv
from fedvisage.methods import averaging


def nearby(model):
    def loss(site, batch):
        weights = site.net.named_parameters()
        return model.loss(site, batch) + 0.01 * sum((site.lent[name] - value).square().sum() for name, value in weights)

    options = averaging.options_on(model)
    return averaging.on_model(model, options, name="nearby", title="Nearby", paper="", loss=loss)


run = fv.run("demo/fedpad", out="runs/nearby", method=nearby(fv.models()["resnet18"]))
```
"""

Groups = Mapping[str, tuple[str, ...]]

HOUSE = "for what carries a method out, seldom for the method"
SITE: Groups = {
    "who and when": ("name", "recipe", "round"),
    "data": (
        *("data", "test", "public", "strangers", "unseen", "classes_of", "batches", "next_batch", "batch"),
        *(
            "plain_batches",
            "images_at",
            "batches_of",
            "batches_numbered",
            "batches_taken",
            "batches_per_epoch",
            "batches_per_round",
        ),
    ),
    "network": ("net", "load", "lent", "frozen", "tensors", "own", "embed", "public_features"),
    "training": ("autocast", "optimizer", "rate", "learn", "step", "losses", "statistics"),
    "state": ("kept", "scratch", "held"),
    "randomness": ("rng",),
    "releases under differential privacy": ("release", "released"),
    HOUSE: ("compute", "common", "releases", "private_state", "on_batch", "trust"),
}
SERVER: Groups = {
    "who and when": ("method", "recipe", "names", "present", "round", "rounds", "end_before_this_round"),
    "exchange with sites": ("reduce", "ask", "visit", "quorum", "check_quorum"),
    "network": ("net", "lent", "tensors", "load", "step", "autocast", "file"),
    "state": ("kept", "once", "member", "keep_member", "finished"),
    "randomness": ("rng",),
    HOUSE: (
        *("exchange", "compute", "releases", "files", "start", "state", "restore"),
        *("stopped", "ended", "without_quorum"),
    ),
}
METHOD: Groups = {
    "what it is": ("name", "title", "paper", "task", "options", "advice"),
    "network": ("network", "initial_network", "home", "delivered", "finished", "parts_at", "begin"),
    "at the sites": ("calls", "least_identities"),
    "at the server": ("server", "in_turn", "server_sees"),
    "finished model": ("prediction", "members", "pooled", "several_models"),
    "recipes": ("supports", "check"),
    "differential privacy": ("releases", "noised", "release_costs"),
}
MODEL: Groups = {
    "what it is": ("name", "title", "task", "options", "weight", "averaged", "advice"),
    "network": ("network", "parts", "begin", "check"),
    "training": ("represent", "supervise", "loss", "fit", "head", "own_head", "least_identities"),
    "finished model": ("prediction",),
}
TYPES: tuple[tuple[type[Any], Groups], ...] = (
    (fv.Site, SITE),
    (fv.Batch, {}),
    (fv.Server, SERVER),
    (Reduced, {}),
    (Conversation, {}),
    (fv.Method, METHOD),
    (fv.Call, {}),
    (fv.Upload, {}),
    (fv.Home, {}),
    (fv.Model, MODEL),
    (Member, {}),
    (Prediction, {}),
    (Personal, {}),
)
"""What stands on the page, in its order; a type without groups is one group."""


@dataclass(frozen=True)
class Entry:
    """A public name of a type: how it is written, and what is said of it."""

    written: str
    said: str


def page() -> str:
    """Return the whole page."""
    types = (line for kind, groups in TYPES for line in section(kind, groups))
    callables = {f"fv.{name}": getattr(fv, name) for name in FUNCTIONS}
    callables |= {"fv.methods": api.methods, "fv.Writer": fv.Writer}  # fv.methods is a module, too
    functions = table_of(callables)
    blocks = {name: getattr(fv.averaging, name) for name in AVERAGING}
    averaging = ("## Averaging", f"`fedvisage.methods.averaging`. {paragraph(fv.averaging.__doc__)}\n")
    parts = (HEAD, "## Functions", *functions, FUNCTION_EXAMPLES, *types, *averaging, *table_of(blocks))
    return "\n".join([*parts, AVERAGING_EXAMPLE])


def table_of(functions: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    """Yield the lines of a table of functions."""
    yield "| function | |\n|---|---|"
    for name, function in functions.items():
        of_class = isinstance(function, type)
        code = inspect.getattr_static(function, "__init__") if of_class else inspect.unwrap(function)
        node = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
        assert isinstance(node, ast.FunctionDef)
        returns = "" if node.returns is None or of_class else f" → {spelled(node.returns)}"
        written = f"{name}({arguments(node, skip=int(of_class))}){returns}"
        yield f"| `{written}` | {sentence(inspect.getdoc(function) or '')} |"
    yield ""


def section(kind: type[Any], groups: Groups) -> Iterator[str]:
    """Return what stands of a type: what it is, and a table for each group of its names."""
    entries = entries_of(kind)
    grouped = [name for names in groups.values() for name in names]
    if groups and sorted(grouped) != sorted(entries):
        raise SystemExit(f"{kind.__name__}: put into one group each: {set(grouped) ^ set(entries)}")
    yield f"## {kind.__name__}"
    yield f"`{kind.__module__}`. {paragraph(inspect.getdoc(kind))}\n"
    for title, names in (groups or {"": tuple(entries)}).items():
        yield f"| {title or 'name'} | |\n|---|---|"
        yield from (f"| `{entries[name].written}` | {entries[name].said} |".replace(" |  |", " | |") for name in names)
        yield ""


def entries_of(kind: type[Any]) -> dict[str, Entry]:
    """Return the public names of a type and of what it extends, as its source declares them."""
    entries: dict[str, Entry] = {}
    for one in (one for one in reversed(kind.__mro__) if one.__module__.startswith("fedvisage.")):
        tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for node, below in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
            name, entry = entry_of(node, below)
            if name and not name.startswith("_"):
                entries[name] = entry
    return entries


def entry_of(node: ast.stmt, below: ast.stmt) -> tuple[str, Entry]:
    """Return a name and its entry, for a field, a value of an enumeration, a property or a function."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        default = f" = {ast.unparse(node.value)}" if node.value is not None and simple(node.value) else ""
        return node.target.id, Entry(f"{node.target.id}: {spelled(node.annotation)}{default}", sentence(str(said)))
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        value = node.value.value if isinstance(node.value, ast.Constant) else ""
        return node.targets[0].id, Entry(node.targets[0].id, str(value))
    if isinstance(node, ast.FunctionDef):
        said = sentence(ast.get_docstring(node) or "")
        returns = f": {spelled(node.returns)}" if node.returns is not None else ""
        if any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list):
            return node.name, Entry(f"{node.name}{returns}", said)
        returns = returns.replace(": ", " → ", 1)
        block = "contextmanager" in {ast.unparse(one) for one in node.decorator_list}
        if block:
            returns = returns.replace("Iterator[", "")[:-1].replace(" → None", "")
        return node.name, Entry(f"{'with ' * block}{node.name}({arguments(node)}){returns}", said)
    return "", Entry("", "")


def arguments(node: ast.FunctionDef, skip: int = 1) -> str:
    """Return a function's arguments as its source has them, but for self."""
    listed = node.args
    listed.args = listed.args[skip:]
    return spelled(listed)


def simple(value: ast.expr | None) -> bool:
    """Tell whether a default says something: a plain value, and not how an empty one is made."""
    return isinstance(value, ast.Constant | ast.Tuple | ast.BinOp)


def spelled(node: ast.AST) -> str:
    """Return code on one line, fit for a cell of a table."""
    written = re.sub(r"(: [^,=]+)=", r"\1 = ", ast.unparse(node))
    return " ".join(written.split()).replace("|", "\\|")


def sentence(text: str) -> str:
    """Return the first sentence of a docstring, or its first line."""
    return cell(text.split("\n\n")[0].split(". ")[0].rstrip(".")) if text else ""


def paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring."""
    return cell((text or "").split("\n\n")[0])


def cell(text: str) -> str:
    """Return a docstring's text as Markdown on one line."""
    plain = re.sub(r":\w+:`(\w+)`", r"`\1`", text.replace("``", "`"))
    return " ".join(plain.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
