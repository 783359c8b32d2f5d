"""Exported models on pictures and frames, with ONNX Runtime and without torch."""

from fedvisage.device.exported import Exported
from fedvisage.device.pipeline import Box, Checked, CheckedFace, Match, PadVerdict, Pipeline, Search, Watched
from fedvisage.faces.quality import Quality, Settings

__all__ = [
    "Box",
    "Checked",
    "CheckedFace",
    "Exported",
    "Match",
    "PadVerdict",
    "Pipeline",
    "Quality",
    "Search",
    "Settings",
    "Watched",
]
