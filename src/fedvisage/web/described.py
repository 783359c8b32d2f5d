"""What `page.json` tells the page: which files there are, and every number by which Python's pipeline decides.

The page has no numbers of its own, so both cannot come apart.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedvisage.datasets.importers.cropping import LOWEST_CONFIDENCE, MARGIN, record_of
from fedvisage.device import Exported, Settings
from fedvisage.device.quality import BLURRED, NO_FACE, SEVERAL, SMALL, TILTED, TURNED
from fedvisage.device.running import SAME_PLACE
from fedvisage.faces.align import PLACES, SIDE
from fedvisage.faces.detection import cascade, nets
from fedvisage.faces.upright import SURE, SURE_TURNED
from fedvisage.version import VERSION

Values = dict[str, Any]

RUNTIME, DETECTOR, MODELS = "runtime", "detector", "models"
"""Folders of the page."""


def page_json(
    pad: Exported, recognition: Exported | None, *, computes: bool = True, service: Values | None = None
) -> Values:
    """Return the content of `page.json`.

    ``computes``: whether the runtime's files are there. ``service``: whether the page may ask the service that delivers
    it, and whether that wants a key; nothing for a folder.
    """
    files = {"module": "ort.js", "threads": "ort-threads.js", "wasm": "ort.wasm"}
    return {
        "version": VERSION,
        "service": service,
        "runtime": {name: f"{RUNTIME}/{file}" for name, file in files.items()} if computes else None,
        "detector": {
            "sha256": nets.digest(),
            "files": [{"path": f"{DETECTOR}/{name}", "sha256": digest} for name, digest in nets.DIGESTS.items()],
        },
        "pad": _model(pad),
        "recognition": recognition and _model(recognition),
        "settings": settings_json(Settings()),
    }


def settings_json(settings: Settings) -> Values:
    """Return the numbers, and the words of reasons, that the page decides by."""
    return {
        "detector": {**asdict(cascade.Settings()), "lowest_confidence": LOWEST_CONFIDENCE},
        "upright": {"sure": SURE, "sure_turned": SURE_TURNED},
        "limits": {name: getattr(settings, name) for name in ("smallest", "sharpness", "turned", "tilted")},
        "margin": MARGIN,
        "alignment": {"side": SIDE, "places": PLACES.tolist()},
        "running": {"window": settings.window, "same_place": SAME_PLACE},
        "reasons": {
            "no_face": NO_FACE, "several": SEVERAL, "small": SMALL, "blurred": BLURRED, "turned": TURNED,
            "tilted": TILTED,
        },
        "crops": {task: record_of("face", aligned=task == "recognition").model_dump(mode="json")
                  for task in ("pad", "recognition")},
    }  # fmt: skip


def _model(exported: Exported) -> Values:
    return {"folder": f"{MODELS}/{exported.task}", "graph": exported.description.arithmetic}
