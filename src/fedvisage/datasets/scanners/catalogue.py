"""The list of datasets that can be read as they are distributed."""

from __future__ import annotations

from fedvisage.datasets.scanners import (
    casia_fasd,
    casia_surf,
    casia_surf_3dmask,
    cefa,
    celeba_spoof,
    fedgpad,
    folder,
    hifimask,
    hkbu_mars_v2,
    hq_wmca,
    lcc_fasd,
    msu_mfsd,
    oulu_npu,
    precropped,
    replay_attack,
    rose_youtu,
    siw,
    siw_mv2,
    three_dmad,
    wmca,
)
from fedvisage.datasets.scanners.scanner import Scanner

SCANNERS: dict[str, Scanner] = {
    scanner.kind: scanner
    for scanner in (
        folder.SCANNER,
        oulu_npu.SCANNER,
        casia_fasd.SCANNER,
        replay_attack.SCANNER,
        msu_mfsd.SCANNER,
        siw.SCANNER,
        rose_youtu.SCANNER,
        hkbu_mars_v2.SCANNER,
        casia_surf.SCANNER,
        casia_surf_3dmask.SCANNER,
        hifimask.SCANNER,
        siw_mv2.SCANNER,
        lcc_fasd.SCANNER,
        celeba_spoof.SCANNER,
        cefa.SCANNER,
        three_dmad.SCANNER,
        wmca.SCANNER,
        hq_wmca.SCANNER,
        precropped.SCANNER,
        fedgpad.SCANNER,
    )
}
