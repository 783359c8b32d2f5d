"""Exports for tests of fused models: one model at crops of another margin."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import onnx

from fedvisage.base.files import write_json
from fedvisage.data.prepared import FileEntry
from fedvisage.device.exported import CONFIG, GRAPH, Config, as_values, read_config
from fedvisage.faces.cropping import record_of


def with_margin(exported: Path, copy: Path, margin: float) -> Path:
    """Copy an export, whose description and graph then name another margin."""
    shutil.copytree(exported, copy)
    graph = read_config(copy).float32
    description = graph.description.model_copy(update={"crop": record_of("face", margin=margin)})
    model = onnx.load(copy / GRAPH)
    for entry in model.metadata_props:
        entry.value = description.metadata()[entry.key]
    content = model.SerializeToString()
    (copy / GRAPH).write_bytes(content)
    file = FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    changed = graph.model_copy(update={"file": file, "description": description})
    write_json(copy / CONFIG, as_values(Config(float32=changed, files=read_config(copy).files)))
    return copy
