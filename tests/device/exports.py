"""Exports with another description, as copies or in memory."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedvisage.device import Exported
from fedvisage.device.exported import read_config, write_export
from fedvisage.faces.cropping import record_of


def copy_export(exported: Path, copy: Path, **changes: Any) -> Path:
    """Copy an export, with these changes in its description and graph."""
    shutil.copytree(exported, copy)
    write_export(copy, read_config(copy).float32.description.model_copy(update=changes))
    return copy


def with_margin(exported: Path, copy: Path, margin: float) -> Path:
    """Copy an export and set another margin."""
    return copy_export(exported, copy, crop=record_of("face", margin=margin))


def with_threshold(directory: Path, value: float) -> Exported:
    """Open an export and set another threshold, without a change of its files."""
    model = Exported.open(directory)
    point = model.description.threshold
    assert point is not None
    threshold = point.model_copy(update={"value": value})
    return replace(model, description=model.description.model_copy(update={"threshold": threshold}))
