"""Runs whose final models are compared byte for byte."""

from pathlib import Path
from typing import Any

from tests.toy import run_toy_once, weights


def run_to_weights(content: dict[str, Any], out: Path, **own: Any) -> bytes:
    """Run a recipe with these options of its method, and return the bytes of the final model."""
    content["method"] |= own
    run_toy_once(content, out)
    return weights(out)
