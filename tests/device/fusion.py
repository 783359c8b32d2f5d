"""Exports for tests of fused models: one model at crops of another margin."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedvisage.device.exported import read_config, write_export
from fedvisage.faces.cropping import record_of


def with_margin(exported: Path, copy: Path, margin: float) -> Path:
    """Copy an export and set another margin in its description and graph."""
    shutil.copytree(exported, copy)
    crop = record_of("face", margin=margin)
    write_export(copy, read_config(copy).float32.description.model_copy(update={"crop": crop}))
    return copy
