"""Hostile run directories and models, through all code that reads them.

A case copies a finished run, or one that was interrupted after its second checkpoint, and changes one file. The
finished run has no seal, because an attacker can also write or remove the seal. The program refuses the run with a
message, or passes these checks: an opened model has the weights whose digest is in its settings, and its weights and
outputs are finite; a report contains no script; a resumed run ends in the model of an uninterrupted run.
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
import torch._dynamo  # networks on the meta device import it, and it creates a directory, which no case may
from campaigns.hostile.case import Case, WronglyAccepted, pick
from campaigns.hostile.files import mutate_json, mutate_lines, mutate_table, replace_file
from campaigns.hostile.mutations import MESSAGE_MUTATIONS, mutate_bytes
from safetensors.torch import load_file, save_file
from tests.toy import SIZE, make_sets, remove_seal, run_toy, tree

import fedvisage as fv
from fedvisage.base.errors import RunFailed
from fedvisage.federation.site_worker import LocalTransport, SiteWorker
from fedvisage.federation.wire.message import Order, Reply, digest_of
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


class InterruptedTransport(LocalTransport):
    """A transport that fails in the third round."""

    def call(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        """Execute the orders of earlier rounds."""
        if any(order.round == 3 for order in orders.values()):
            raise RunFailed("the connection was lost")
        yield from super().call(orders)


class Runs:
    """A finished run, another one, and an interrupted one."""

    def __init__(self, prepared: Path) -> None:
        """Train them."""
        self.sets = make_sets(prepared)
        self.content = tree(self.sets, "fedpad", training__optimizer__state="kept", training__local={"batches": 1})
        self.whole, self.other, self.interrupted = prepared / "whole", prepared / "other", prepared / "stopped"
        run_toy(self.content, self.whole)
        run_toy({**self.content, "runtime": {**self.content["runtime"], "seed": 1}}, self.other)
        for run in (self.whole, self.other):
            remove_seal(run)
        with contextlib.suppress(RunFailed):
            run_toy(self.content, self.interrupted, wire=interrupt)
        self.model = (self.whole / "model.safetensors").read_bytes()
        self.images = torch.randint(0, 255, (2, 3, SIZE, SIZE), dtype=torch.uint8)

    def case(self, draws: np.random.Generator, place: Path) -> Case:
        """Change one file of a run."""
        verb = pick(draws, VERBS)
        if verb in ("report", "resume") and draws.random() < 0.8:
            verb = "open"  # they are a hundred times slower
        run = place / "run"
        shutil.copytree(self.interrupted if verb == "resume" else self.whole, run, symlinks=True)
        path = run / pick(draws, READ[verb])
        if path.is_dir():
            path = pick(draws, sorted(path.rglob("*.safetensors")))
        changes = [verb, path.name, mutate(path, draws)]
        check = {
            "open": self._check_open,
            "evaluate": self._check_evaluate,
            "read": _check_read,
            "compare": self._check_compare,
            "report": _check_report,
            "resume": self._check_resume,
        }[verb]
        return Case(changes, partial(check, run), links=True)

    def _check_open(self, run: Path) -> None:
        model = fv.open(run)
        values = np.asarray(model.score(self.images))
        if not np.isfinite(values).all():
            raise WronglyAccepted("a model that opened gives no numbers")
        if not all(math.isfinite(threshold.value) for threshold in model.thresholds.values()):
            raise WronglyAccepted("a threshold is no number")
        weights, settings = load_file(run / "model.safetensors"), json.loads((run / "model.json").read_text())
        if settings["weights_sha256"] != _digest(weights):
            raise WronglyAccepted("the weights are not those that model.json names")
        for name, value in weights.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise WronglyAccepted(f"{name} contains a value that is not a number")

    def _check_evaluate(self, run: Path) -> None:
        figures = fv.evaluate(run, str(self.sets["U"]), cache=run.parent / "cache", out=run.parent / "judged")
        for name in ("hter", "eer", "auc"):
            value = figures.get(name)
            if value is not None and not 0 <= value <= 1:
                raise WronglyAccepted(f"{name} is {value}")

    def _check_compare(self, run: Path) -> None:
        for row in fv.compare([run, self.other]).values():
            json.dumps(row, allow_nan=False)

    def _check_resume(self, run: Path) -> None:
        run_toy(self.content, run, resume=True)
        if (run / "model.safetensors").read_bytes() != self.model:
            raise WronglyAccepted("the resumed run ended in another model")


def interrupt(site_workers: Sequence[SiteWorker]) -> InterruptedTransport:
    """Return the transport that fails."""
    return InterruptedTransport(site_workers)


def _check_read(run: Path) -> None:
    with damaged_files_are_errors(run):
        files = read_run(run)
    for row in files.rounds:
        if not isinstance(row, dict):
            raise WronglyAccepted(f"a line is {row!r}")
    if files.scores is not None and not np.isfinite(files.scores.live).all():
        raise WronglyAccepted("a score is no number")
    str(fv.Run(run))


def _check_report(run: Path) -> None:
    page = write_report(run, run.parent / "cache").read_text(encoding="utf-8")
    for mark in ("<script", "<img src=x", "javascript:alert"):
        if mark in page:
            raise WronglyAccepted(f"the page holds {mark!r}")


def mutate(path: Path, draws: np.random.Generator) -> str:
    """Change the content of a file, or replace it by another object."""
    if draws.random() < 0.15:
        return replace_file(path, draws)
    if path.suffix == ".safetensors":
        return _mutate_tensors(path, draws)
    text = path.read_text(encoding="utf-8")
    change = {".json": mutate_json, ".jsonl": mutate_lines, ".csv": mutate_table, ".yaml": mutate_lines}[path.suffix]
    changes, text = change(text, draws)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return changes


def _mutate_tensors(path: Path, draws: np.random.Generator) -> str:
    """Change the bytes of a file of tensors, or its tensors with their digest."""
    settings = path.with_name("model.json")
    if draws.random() < 0.5 or not settings.exists():
        changes, data = mutate_bytes(path.read_bytes(), draws)
        path.write_bytes(data)
        return changes
    tensors: dict[str, Any] = dict(load_file(path))
    changes = pick(draws, MESSAGE_MUTATIONS)(tensors, draws)
    plain = {
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
        save_file(plain, path)
    except (RuntimeError, ValueError, KeyError):
        return "nothing"
    tree = json.loads(settings.read_text())
    settings.write_text(json.dumps({**tree, "weights_sha256": digest_of(load_file(path))}))
    return f"forged {changes}"


def _digest(weights: Mapping[str, torch.Tensor]) -> str:
    """Return SHA-256 over names, types, shapes and values, as documented."""
    total = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        shape = tuple(int(size) for size in tensor.shape)
        total.update(f"{name}|{tensor.dtype}|{shape}|".encode())
        raw = tensor.contiguous().reshape(-1)
        total.update(raw.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
