"""The catalogue of tasks, the descriptions of methods, and the setup of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedvisage.base.processes import use_threads
from fedvisage.base.progress import percent
from fedvisage.data.left_out import LeftOut
from fedvisage.federation.method import LOSS, Method
from fedvisage.federation.protections.compatible import uploads_beside_mean
from fedvisage.federation.site_worker import Workspace
from fedvisage.methods.models.model import load_constant
from fedvisage.metrics.recorded import Metrics
from fedvisage.nn.compute import Compute, Layout, choose_algorithms, resolve_compute
from fedvisage.recipe import Recipe
from fedvisage.tasks import scoring, shortcuts
from fedvisage.tasks.pad.task import TASK as PAD
from fedvisage.tasks.recognition.task import TASK as RECOGNITION
from fedvisage.tasks.scoring import Scorer
from fedvisage.tasks.task import Task

TASKS: Mapping[str, Task] = {task.name: task for task in (PAD, RECOGNITION)}


def task_of(method: Method) -> Task:
    """Return the task that a method is for."""
    return TASKS[method.task]


def summary(metrics: Metrics) -> list[str]:
    """Return a run's headline metrics as lines; files that are older than the second task do not name theirs."""
    lines = TASKS[metrics.get("task", "pad")].summarise(metrics)
    if "left_out.files" in metrics:
        reasons = metrics.part("left_out.reasons")
        lines.append(f"  {LeftOut(metrics['left_out.files'], dict(reasons)).line}")
    if "hter_with_nonresponses" in metrics:
        attacks = "  ".join(f"{name} {percent(value)}" for name, value in metrics.part("apnrr").items())
        rates = f"  APNRR {attacks}  BPNRR {percent(metrics['bpnrr'])}"
        lines.append(
            f"{rates}  HTER with non-responses as errors {percent(metrics['hter_with_nonresponses'])} (videos)"
        )
    return lines


# Descriptions for ``fedvisage methods``: the fields that leave a site, and the server's view.


def describe(method: Method) -> dict[str, Any]:
    """Return the description of one method as plain values."""
    sent = [upload for call in method.calls.values() for upload in call.uploads]
    heldout = [upload for group in task_of(method).uploads(method).values() for upload in group]
    uploads = {(each.name, each.kind, each.parts, each.guarantee): each for each in (*sent, *heldout)}
    summed = dict.fromkeys(upload.name for upload in sent if upload.parts or upload.name == LOSS.name)
    alone = dict.fromkeys(upload.name for upload in heldout)
    averages = "one_mean" in method.supports and not method.pooled and not uploads_beside_mean(method)
    in_sums = f"{', '.join(summed)} of all sites as a sum; {', '.join(alone)} singly" if averages else None
    return {
        "name": method.name,
        "title": method.title,
        "task": method.task,
        "paper": method.paper,
        "parts": {part: home.name.lower() for part, home in method.home.items()},
        "leaves_a_site": [
            {"field": upload.name, "kind": upload.kind, "guarantee": upload.guarantee or "none"}
            | ({"parts": list(upload.parts)} if upload.parts else {})
            for upload in uploads.values()
        ],
        "server_sees": "everything" if method.pooled else method.server_sees,
        "sees_in_secure_sums": in_sums,
        "simulation_only": method.pooled,
    }


def block(row: dict[str, Any]) -> str:
    """Return the description of one method as text."""
    lines = [f"{row['name']}  {row['title']}{'  (simulation only)' if row['simulation_only'] else ''}"]
    lines.append(f"  paper          {row['paper']}")
    lines.append(f"  parts          {', '.join(f'{part} ({home})' for part, home in row['parts'].items())}")
    for number, upload in enumerate(row["leaves_a_site"]):
        field = f"{upload['field']} ({upload['kind']}): {', '.join(upload.get('parts', [])) or upload['guarantee']}"
        lines.append(f"  {'leaves a site  ' if number == 0 else ' ' * 15}{field}")
    lines.append(f"  server sees    {row['server_sees']}")
    if row["sees_in_secure_sums"]:
        lines.append(f"  with federation.secure: {row['sees_in_secure_sums']}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Setup:
    """A recipe with the objects that it names: method, task, and device, layout and precision of computation."""

    recipe: Recipe
    method: Method
    task: Task
    compute: Compute
    files: Mapping[str, Path] = field(default_factory=dict)
    """This machine's copies of the files that the recipe names."""

    def scorer(self) -> Scorer:
        """Return the delivered parts of the network, ready to score images."""
        return Scorer(self.method, self.recipe, self.compute)

    def workspace(self) -> Workspace:
        """Return the network that the sites of this process share, with all calls that they answer."""
        scorer = self.scorer()
        about_finished = {**self.task.calls(scorer), **scoring.calls(scorer)}
        before_training = shortcuts.calls(self.recipe)
        workspace = Workspace(self.method, self.recipe, self.compute, about_finished, before_training)
        for net in (scorer.net, workspace.net):
            load_constant(net, self.recipe, self.files)
        return workspace


def set_up(recipe: Recipe, method: Method, files: Mapping[str, Path] | None = None) -> Setup:
    """Look up the method, task and device of a recipe, and apply its threads and algorithms to this process.

    The channels lie last if the recipe leaves the layout open: before a run chooses it (:mod:`fedvisage.runs.layout`),
    and for models of earlier versions.
    """
    use_threads(recipe.runtime.threads)
    choose_algorithms(deterministic=bool(recipe.runtime.deterministic))
    layout: Layout = "first" if recipe.runtime.layout == "first" else "last"
    compute = resolve_compute(recipe.runtime.device, recipe.runtime.precision, layout)
    return Setup(recipe, method, task_of(method), compute, files or {})
