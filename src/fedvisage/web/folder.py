"""The page as a folder that any web server can deliver; it computes in the browser, and knows no service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvisage.device import Exported
from fedvisage.device.writing import beside, check_free
from fedvisage.files import needing_room
from fedvisage.web.contents import START, contents
from fedvisage.web.runtime import Runtime


@dataclass(frozen=True)
class Built:
    """What was written."""

    directory: Path
    files: int
    bytes: int

    def lines(self) -> list[str]:
        """Return it as lines, for people."""
        return [f"{self.directory / START}: a page of {self.files} files, {self.bytes / 1e6:.1f} MB",
                "browsers lend it a camera when it comes from https or from localhost"]  # fmt: skip


def build(directory: Path, pad: Exported, recognition: Exported | None, *, runtime: Runtime | None = None) -> Built:
    """Write the page with its models into a directory that is not there yet, or leave nothing."""
    check_free(directory)
    ort = runtime or Runtime()
    ort.require()
    entries = contents(pad, recognition, runtime=ort)
    with beside(directory) as place, needing_room(directory):
        for path, entry in entries.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.content)
    return Built(directory, len(entries), sum(len(entry.content) for entry in entries.values()))
