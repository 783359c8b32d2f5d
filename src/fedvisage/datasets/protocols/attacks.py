"""Sites with one kind of attack each, and targets with attacks that no site has seen.

FedGPAD's Table X, FedSIS's Table 6, and Table VII of the paper on test-time adaptation.
"""

import re

from fedvisage.datasets.protocols.ocim import KINDS, ORACLE, TWO_FRAMES, WITHOUT_SHOTS, imports
from fedvisage.datasets.protocols.protocol import Fold, Import, Protocol

SHAO, SHAO_2021 = "Shao et al. 2022 (FedGPAD), Table X", "Shao et al. 2021 (test-time adaptation), Table VII"
FEDSIS = "Alkhunaizi et al., IJCB 2023, Table 6"
PHOTO = {"O": "print", "C": "warp,cut", "I": "print,photo", "M": "print"}
RELEASED = TWO_FRAMES | {"C-released": Import("casia-fasd", f"{TWO_FRAMES['C'].options} --labels fedsis-released")}
TARGETS = ("C", "I", "M")
TRAINING = "official=train,test frames=1 heldout=none"
FLAT = ("O", "C", "M")


def _pairs(first: str, second: str) -> dict[str, Fold]:
    """Return folds in which each dataset is two sites, one with photographs and one with videos."""
    sites = {}
    for name, photo in PHOTO.items():
        sites[f"{name}-photo"] = f"{name} only: {TRAINING} attacks={photo}{first}"
        sites[f"{name}-video"] = f"{name} only: {TRAINING} attacks=replay{second}"
    return {
        target: Fold(
            {site: entry for site, entry in sites.items() if not site.startswith(target)}, WITHOUT_SHOTS[target]
        )
        for target in TARGETS
    }


def _with_mistake(folds: dict[str, Fold]) -> dict[str, Fold]:
    """Return folds whose sites of CASIA-FASD have the labels of the released lists; targets keep the correct ones."""
    return {
        target: Fold({site: re.sub(r"^C ", "C-released ", entry) for site, entry in fold.sites.items()}, fold.target)
        for target, fold in folds.items()
    }


def _masks(sites: tuple[str, ...]) -> Fold:
    flat = {name: f"{name} only: official=train,test heldout=none" for name in sites if name in KINDS}
    return Fold(flat | {name: f"{name} only: heldout=none" for name in sites if name not in KINDS}, "3")


PROTOCOLS = (
    Protocol("one-attack", "one kind of attack a site; its two sites share no bona fide person", FEDSIS, TWO_FRAMES,
             _pairs(" bonafide=1/2", " bonafide=2/2"),
             notes=("attacks show all persons; photographs are prints, bent and cut prints, and displayed photographs",
                    "the released lists count HR_4 of CASIA-FASD, a replay, as bona fide; here it is an attack",
                    ORACLE)),
    Protocol("one-attack-clips", "one kind of attack a site; its two sites share no bona fide video", FEDSIS,
             TWO_FRAMES, _pairs(" bonafide=1/2 by=videos", " bonafide=2/2 by=videos"),
             notes=("halves are by videos, as in the released lists, whose very halves are not known by name", ORACLE)),
    Protocol("one-attack-shared", "one kind of attack a site; its two sites have the same bona fide videos", FEDSIS,
             TWO_FRAMES, _pairs("", ""), notes=("such pictures are refused unless you add --allow-overlap", ORACLE)),
    Protocol("fedsis-released", "one-attack-clips with the mistake of the lists that were released", FEDSIS, RELEASED,
             _with_mistake(_pairs(" bonafide=1/2 by=videos", " bonafide=2/2 by=videos")),
             notes=("the sites of CASIA-FASD have HR_4, a replay, as bona fide; the target C has it as an attack",
                    "only to come to printed figures: a model learns from it to accept replays", ORACLE)),
    Protocol("one-attack-fedgpad", "prints at one site, replays at the other; both at the target", SHAO,
             imports("--frames 10"),
             {"M": Fold({"I": "I only: official=train,test heldout=none attacks=print",
                         "O": "O only: official=train,test heldout=none attacks=replay"},
                        "M only: official=train,test")}, level="frame"),
    Protocol("masks", "from flat attacks to masks: no site has seen one", SHAO_2021,
             {**imports("--frames 10"), "3": Import("3dmad", "--frames 10")}, {"3": _masks(FLAT)}, level="frame"),
    Protocol("masks+h", "from flat attacks and one site's masks to other masks", SHAO_2021,
             {**imports("--frames 10"), "H": Import("hkbu-mars-v2", "--frames 10"),
              "3": Import("3dmad", "--frames 10")}, {"3": _masks((*FLAT, "H"))}, level="frame"),
)  # fmt: skip
