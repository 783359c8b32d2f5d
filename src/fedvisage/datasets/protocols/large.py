"""Protocols across large datasets: WMCA, CASIA-CeFA and CASIA-SURF; from one large set to eleven."""

from fedvisage.datasets.protocols.ocim import KINDS
from fedvisage.datasets.protocols.protocol import Fold, Import, Protocol, leave_one_out

FLIP = "Srivatsan et al., ICCV 2023, and the lists of its code; FedSIS's second benchmark"
SITES = {
    "W": "W only: heldout=none",
    "E": "E only: attacks=print,replay heldout=none",
    "F": "F only: heldout=none",
}
TARGETS = {
    "W": "W only: attack.type=3,4",
    "E": "E only: official=dev attacks=print,replay",
    "F": "F only: official=dev",
}
ELEVEN = {
    "M": "msu-mfsd", "C": "casia-fasd", "I": "replay-attack", "O": "oulu-npu", "S": "siw", "R": "rose-youtu",
    "H": "hkbu-mars-v2", "W": "wmca", "HiFi": "hifimask", "F3D": "casia-surf-3dmask", "E": "cefa",
}  # fmt: skip

PROTOCOLS = (
    Protocol("wcs", "one of WMCA, CeFA and SURF unseen; WMCA's target has flat attacks alone", FLIP,
             {"W": Import("wmca", "--size 224 --frames 10"), "E": Import("cefa", "--size 224 --frames 10"),
              "F": Import("casia-surf", "--size 224 --frames 10")},
             leave_one_out(SITES, TARGETS), level="frame",
             notes=("they take all frames of CASIA-SURF, and the first ten of WMCA's target; here ten of each video",
                    "CeFA is without its masks, and targets E and F are the dev parts, as in the lists")),
    Protocol("1-to-11", "from CelebA-Spoof to eleven others, one at a time",
             "works of 2025 and later, whose eleven differ a little; of CelebA-Spoof the training part", {
                 "A": Import("celeba-spoof", "--size 224"),
                 **{name: Import(kind, "--size 224 --frames 10") for name, kind in ELEVEN.items()}},
             {name: Fold({"A": "A only: official=train heldout=none"},
                         f"{name} only: official=train,test" if name in KINDS else name) for name in ELEVEN}),
)  # fmt: skip
