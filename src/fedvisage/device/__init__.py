"""Exported models on pictures and frames, with ONNX Runtime and without torch."""

from fedvisage.device.exported import Exported
from fedvisage.device.fused import Fused, open_export
from fedvisage.device.pipeline import Box, Checked, CheckedFace, Match, PadVerdict, Pipeline, Search, Watched
from fedvisage.faces.quality import Quality, Settings

__all__ = [
    "Box",
    "Checked",
    "CheckedFace",
    "Exported",
    "Fused",
    "Match",
    "PadVerdict",
    "Pipeline",
    "Quality",
    "Search",
    "Settings",
    "Watched",
    "open_export",
]
