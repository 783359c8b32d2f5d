"""Run directories and models from strangers, through all that reads them.

A finished run, and one that stopped after its second checkpoint, are copied for each case, and one file is changed. The
finished run has no seal: whoever forges a file can write that, too, or leave it out.
What may come of it: a line that names what is wrong; or what was read is whole. A model that opens has the weights
that its settings name, all of them numbers, and gives numbers; a report holds no script; a run that is resumed ends in
the model of a run that was left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from campaigns.hostile.case import Admitted, Case, pick
from campaigns.hostile.files import changed_json, changed_lines, changed_table, odd_file
from campaigns.hostile.twists import MESSAGE, spoil_bytes
from safetensors.torch import load_file, save_file
from tests.toy import SIZE, make_sets, remove_seal, run_toy, tree

import fedvisage as fv
from fedvisage.base.errors import RunFailed
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import digest_of
from fedvisage.federation.wire.transport import Order, Reply
from fedvisage.report.page import write_report
from fedvisage.report.run_files import damaged_files_are_errors, read_run

VERBS = ("open", "open", "open", "evaluate", "read", "read", "read", "compare", "report", "resume")
READ = {
    "open": ("model.json", "model.safetensors"),
    "evaluate": ("model.json", "model.safetensors"),
    "read": (
        "metrics.json",
        "rounds.jsonl",
        "ledger.jsonl",
        "scores.csv",
        "recipe.yaml",
        "environment.json",
        "data.json",
    ),
    "compare": ("metrics.json", "scores.csv", "recipe.yaml", "data.json"),
    "report": ("metrics.json", "rounds.jsonl", "ledger.jsonl", "scores.csv", "recipe.yaml", "environment.json"),
    "resume": ("checkpoints", "checkpoints", "sites", "rounds.jsonl", "ledger.jsonl", "recipe.yaml", "data.json"),
}


class Cut(LocalTransport):
    """A transport whose line goes dead in the third round."""

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Carry out orders, as long as there is a line."""
        if any(order.round == 3 for order in orders.values()):
            raise RunFailed("the line went dead")
        yield from super().call(orders)


class Runs:
    """A finished run, another one beside it, and one that stopped."""

    def __init__(self, prepared: Path) -> None:
        """Make them."""
        self.sets = make_sets(prepared)
        self.content = tree(self.sets, "fedpad", training__optimizer__state="kept", training__local={"batches": 1})
        self.whole, self.other, self.stopped = prepared / "whole", prepared / "other", prepared / "stopped"
        run_toy(self.content, self.whole)
        run_toy({**self.content, "runtime": {**self.content["runtime"], "seed": 1}}, self.other)
        for run in (self.whole, self.other):
            remove_seal(run)
        with contextlib.suppress(RunFailed):
            run_toy(self.content, self.stopped, wire=cut)
        self.model = (self.whole / "model.safetensors").read_bytes()
        self.images = torch.randint(0, 255, (2, 3, SIZE, SIZE), dtype=torch.uint8)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change one file of a run."""
        verb = pick(draws, VERBS)
        if verb in ("report", "resume") and draws.random() < 0.8:
            verb = "open"  # they take a second where the others take a hundredth
        run = place / "run"
        shutil.copytree(self.stopped if verb == "resume" else self.whole, run, symlinks=True)
        path = run / pick(draws, READ[verb])
        if path.is_dir():
            path = pick(draws, sorted(path.rglob("*.safetensors")))
        done = [verb, path.name, spoil(path, draws)]
        take = {
            "open": self._open,
            "evaluate": self._evaluate,
            "read": _read,
            "compare": self._compare,
            "report": _report,
            "resume": self._resume,
        }[verb]
        return Case(done, partial(take, run), links=True)

    def _open(self, run: Path) -> None:
        found = fv.open(run)
        values = np.asarray(found.score(self.images))
        if not np.isfinite(values).all():
            raise Admitted("a model that opened gives no numbers")
        if not all(math.isfinite(one.value) for one in found.thresholds.values()):
            raise Admitted("a threshold is no number")
        weights, settings = load_file(run / "model.safetensors"), json.loads((run / "model.json").read_text())
        if settings["weights_sha256"] != _digest(weights):
            raise Admitted("the weights are not those that model.json names")
        for name, value in weights.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise Admitted(f"{name} contains a value that is not a number")

    def _evaluate(self, run: Path) -> None:
        figures = fv.evaluate(run, str(self.sets["U"]), cache=run.parent / "cache", out=run.parent / "judged")
        for name in ("hter", "eer", "auc"):
            value = figures.get(name)
            if value is not None and not 0 <= value <= 1:
                raise Admitted(f"{name} is {value}")

    def _compare(self, run: Path) -> None:
        for row in fv.compare([run, self.other]).values():
            json.dumps(row, allow_nan=False)

    def _resume(self, run: Path) -> None:
        run_toy(self.content, run, resume=True)
        if (run / "model.safetensors").read_bytes() != self.model:
            raise Admitted("the resumed run ended in another model")


def cut(site_workers: Sequence[SiteWorker]) -> Cut:
    """Return the transport that goes dead."""
    return Cut(site_workers)


def _read(run: Path) -> None:
    with damaged_files_are_errors(run):
        found = read_run(run)
    for row in found.rounds:
        if not isinstance(row, dict):
            raise Admitted(f"a line is {row!r}")
    if found.scores is not None and not np.isfinite(found.scores.live).all():
        raise Admitted("a score is no number")
    str(fv.Run(run))


def _report(run: Path) -> None:
    page = write_report(run, run.parent / "cache").read_text(encoding="utf-8")
    for mark in ("<script", "<img src=x", "javascript:alert"):
        if mark in page:
            raise Admitted(f"the page holds {mark!r}")


def spoil(path: Path, draws: np.random.Generator) -> str:
    """Change a file, by what it is or by how it lies there."""
    if draws.random() < 0.15:
        return odd_file(path, draws)
    if path.suffix == ".safetensors":
        return _spoil_tensors(path, draws)
    text = path.read_text(encoding="utf-8")
    change = {".json": changed_json, ".jsonl": changed_lines, ".csv": changed_table, ".yaml": changed_lines}[
        path.suffix
    ]
    done, text = change(text, draws)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return done


def _spoil_tensors(path: Path, draws: np.random.Generator) -> str:
    """Change the bytes of a file of tensors; or its tensors, with the digest that stands for them."""
    settings = path.with_name("model.json")
    if draws.random() < 0.5 or not settings.exists():
        done, data = spoil_bytes(path.read_bytes(), draws)
        path.write_bytes(data)
        return done
    tensors: dict[str, Any] = dict(load_file(path))
    done = pick(draws, MESSAGE)(tensors, draws)
    whole = {
        name.encode("utf-8", "replace").decode(): value.contiguous()
        for name, value in tensors.items()
        if type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_nested
        and value.numel() < 1 << 20
        and not value.is_quantized
    }
    try:
        save_file(whole, path)
    except (RuntimeError, ValueError, KeyError):
        return "nothing"
    tree = json.loads(settings.read_text())
    settings.write_text(json.dumps({**tree, "weights_sha256": digest_of(load_file(path))}))
    return f"forged {done}"


def _digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 over names, types, shapes and values, from the words of the documentation."""
    total = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        shape = tuple(int(size) for size in tensor.shape)
        total.update(f"{name}|{tensor.dtype}|{shape}|".encode())
        raw = tensor.contiguous().reshape(-1)
        total.update(raw.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
