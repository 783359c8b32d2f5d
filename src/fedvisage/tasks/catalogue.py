"""The list of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedvisage.federation.declared import Declared
from fedvisage.tasks.pad.task import Pad
from fedvisage.tasks.recognition.task import Recognising
from fedvisage.tasks.task import Task

TASKS: Mapping[str, Task] = {task.name: task for task in (Pad(), Recognising())}


def task_of(method: Declared) -> Task:
    """Return the task that a method is for."""
    return TASKS[method.task]


def summary(figures: Mapping[str, Any]) -> list[str]:
    """Return a run's headline figures as lines; files from before there were two tasks do not name theirs."""
    return TASKS[figures.get("task", "pad")].summary(figures)
