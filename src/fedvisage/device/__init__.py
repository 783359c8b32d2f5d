"""Faces at a door: exported models on pictures and frames, by ONNX Runtime and without torch."""

from fedvisage.device.checked import Box, Checked, CheckedFace, Match, PadVerdict, Search
from fedvisage.device.exported import Exported
from fedvisage.device.pipeline import Pipeline
from fedvisage.device.quality import Quality, Settings
from fedvisage.device.running import Watched

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
