"""The list of datasets that can be read as they are distributed."""

from __future__ import annotations

from fedvisage.datasets.scanners import casia_fasd, folder, msu_mfsd, oulu_npu, replay_attack
from fedvisage.datasets.scanners.scanner import Scanner

SCANNERS: dict[str, Scanner] = {
    scanner.kind: scanner
    for scanner in (
        folder.SCANNER,
        oulu_npu.SCANNER,
        casia_fasd.SCANNER,
        replay_attack.SCANNER,
        msu_mfsd.SCANNER,
    )
}
