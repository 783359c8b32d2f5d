"""Protocols across datasets: one of O, C, I, M unseen, one kind of attack per site, and large datasets.

OULU-NPU, CASIA-FASD, Replay-Attack and MSU-MFSD with one unseen, in the versions that six works used. The versions
differ in frames and scores, so figures from two of them do not compare methods. Sites train on all videos except those
of the dev part, and hold nothing out.

Sites with one kind of attack each, and targets with attacks that no site has seen: FedGPAD's Table X, FedSIS's Table 6,
and Table VII of the paper on test-time adaptation.

Large datasets: WMCA, CASIA-CeFA and CASIA-SURF; from one large set to eleven.
"""

import re
from itertools import chain

from fedvisage.datasets.protocols.protocol import Fold, Import, Protocol, leave_one_out

KINDS = {"O": "oulu-npu", "C": "casia-fasd", "I": "replay-attack", "M": "msu-mfsd"}
ORACLE = "the printed HTER is at the target's own threshold of equal errors: that is eer in metrics.json"

SHOTS = {
    "O": (
        "6_1_13_2", "2_3_17_3", "4_1_04_4", "3_2_42_2", "1_3_38_3", "3_2_11_5", "3_2_39_4", "3_2_51_3", "2_1_09_5",
        "6_1_05_4", "2_2_12_1", "5_3_49_1", "1_1_02_1", "2_3_48_1", "5_3_54_1", "3_3_04_1", "2_2_07_1", "5_2_55_1",
        "5_3_50_1", "1_3_55_1",
    ),
    "C": tuple(chain(
        (f"train_release/{name}" for name in ("19/7", "12/6", "15/HR_4", "12/8", "17/6", "17/HR_2", "1/1", "20/HR_1",
                                              "1/2")),
        (f"test_release/{name}" for name in ("12/6", "9/6", "18/3", "11/HR_4", "29/1", "1/HR_1", "19/2", "9/1", "11/2",
                                             "26/HR_1", "20/1")),
    )),
    "I": tuple(chain(
        (f"{support}/attack_{device}_client{client}_session01_{camera}_{medium}_{light}"
         for support, device, client, camera, medium, light in (
             ("fixed", "mobile", "013", "mobile", "video", "adverse"),
             ("fixed", "mobile", "019", "mobile", "photo", "adverse"),
             ("fixed", "print", "012", "highdef", "photo", "controlled"),
             ("hand", "mobile", "019", "mobile", "photo", "adverse"),
             ("fixed", "mobile", "008", "mobile", "photo", "controlled"),
             ("fixed", "mobile", "112", "mobile", "photo", "controlled"),
             ("hand", "print", "004", "highdef", "photo", "adverse"),
             ("fixed", "mobile", "025", "mobile", "video", "adverse"),
             ("fixed", "mobile", "117", "mobile", "video", "adverse"),
             ("fixed", "mobile", "011", "mobile", "video", "controlled"))),
        (f"client{client}_session01_webcam_authenticate_{light}" for client, light in (
            ("025", "controlled_2"), ("012", "controlled_1"), ("021", "adverse_1"), ("104", "adverse_1"),
            ("020", "adverse_2"), ("110", "controlled_2"), ("004", "adverse_1"), ("018", "adverse_2"),
            ("103", "controlled_2"), ("103", "adverse_1"))),
    )),
    "M": tuple(chain(
        (f"attack_client{name}_scene01" for name in (
            "007_laptop_SD_printed_photo", "037_android_SD_iphone_video", "003_android_SD_iphone_video",
            "021_laptop_SD_ipad_video", "029_laptop_SD_printed_photo", "030_laptop_SD_printed_photo",
            "055_android_SD_ipad_video", "021_android_SD_ipad_video", "026_laptop_SD_printed_photo",
            "042_android_SD_iphone_video")),
        (f"real_client{name}_SD_scene01" for name in (
            "053_android", "048_android", "001_laptop", "029_laptop", "006_laptop", "034_android", "051_laptop",
            "048_laptop", "049_laptop", "036_laptop")),
    )),
}  # fmt: skip
"""Ten bona fide videos and ten attacks of each, FLIP's lists for few-shot training: targets exclude them."""


def entries(words: str = "") -> dict[str, str]:
    """Return the entry of each dataset without its dev part."""
    return {name: f"{name} only: official=train,test{words}" for name in KINDS}


def imports(options: str) -> dict[str, Import]:
    """Return the imports of the four datasets."""
    return {name: Import(kind, options) for name, kind in KINDS.items()}


SITES, ONE_FRAME = entries(" heldout=none"), entries(" frames=1 heldout=none")
TARGETS = entries()
WITHOUT_SHOTS = {name: f"{entry} without={','.join(SHOTS[name])}" for name, entry in TARGETS.items()}
TWO_FRAMES = imports("--size 224 --frames 6,6+n/2")
A_TENTH = {"A": "A only: subjects=90-100 heldout=none"}
FLIP = "Srivatsan et al., ICCV 2023, and the lists of its code"

OCIM_PROTOCOLS = (
    Protocol("ocim-maddog", "one of O, C, I, M unseen, as MADDoG and FedGPAD: scores of frames",
             "Shao et al., CVPR 2019; Shao et al. 2022 (FedGPAD)", imports("--frames 10"),
             leave_one_out(SITES, TARGETS), level="frame",
             notes=("they take all frames; --frames 10 is about as many as their lists have of OULU-NPU",)),
    Protocol("ocim-ssdg", "one of O, C, I, M unseen, as SSDG: one frame trains, two are evaluated",
             "Jia et al., CVPR 2020", imports("--frames 2"), leave_one_out(ONE_FRAME, TARGETS),
             notes=("their frame of training is drawn at random; here it is the first of the two",)),
    Protocol("ocim-safas", "one of O, C, I, M unseen, as SAFAS: many frames, means of videos",
             "Sun et al., CVPR 2023", imports("--frames 20"), leave_one_out(SITES, TARGETS),
             notes=("they take every fifth frame, and squares three times as wide as the eyes lie apart; here 20 frames"
                    " of a video, cropped as ever",)),
    Protocol("ocim-flip", "one of O, C, I, M unseen, as FLIP: one frame trains, two are evaluated, 20 videos left out",
             FLIP, TWO_FRAMES, leave_one_out(ONE_FRAME, WITHOUT_SHOTS), notes=(ORACLE,)),
    Protocol("ocim-fedsis", "one of O, C, I, M unseen, as FedSIS's code: as ocim-flip, but both frames train",
             "Alkhunaizi et al., IJCB 2023", TWO_FRAMES, leave_one_out(SITES, WITHOUT_SHOTS),
             notes=("the paper says that one frame trains: that is ocim-flip", ORACLE)),
    Protocol("ocim-flip+s", "as ocim-flip, with a tenth of CelebA-Spoof as one more site, as FedSIS has it",
             "Alkhunaizi et al., IJCB 2023", TWO_FRAMES | {"A": Import("celeba-spoof", "--size 224")},
             leave_one_out(ONE_FRAME | A_TENTH, WITHOUT_SHOTS),
             notes=("models begin from a pre-training on the other nine tenths: A only: subjects=0-90 heldout=none",
                    ORACLE)),
    Protocol("limited", "two small sources, M and I; O or C unseen",
             "Shao et al., CVPR 2019", imports("--frames 10"),
             {target: Fold({name: SITES[name] for name in ("M", "I")}, TARGETS[target]) for target in ("C", "O")},
             level="frame"),
)  # fmt: skip

SHAO, SHAO_2021 = "Shao et al. 2022 (FedGPAD), Table X", "Shao et al. 2021 (test-time adaptation), Table VII"
FEDSIS = "Alkhunaizi et al., IJCB 2023, Table 6"
PHOTO = {"O": "print", "C": "warp,cut", "I": "print,photo", "M": "print"}
RELEASED = TWO_FRAMES | {"C-released": Import("casia-fasd", f"{TWO_FRAMES['C'].options} --labels fedsis-released")}
ATTACK_TARGETS = ("C", "I", "M")
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
        for target in ATTACK_TARGETS
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


ATTACK_PROTOCOLS = (
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

FLIP_LARGE = "Srivatsan et al., ICCV 2023, and the lists of its code; FedSIS's second benchmark"
LARGE_SITES = {
    "W": "W only: heldout=none",
    "E": "E only: attacks=print,replay heldout=none",
    "F": "F only: heldout=none",
}
LARGE_TARGETS = {
    "W": "W only: attack.type=3,4",
    "E": "E only: official=dev attacks=print,replay",
    "F": "F only: official=dev",
}
ELEVEN = {
    "M": "msu-mfsd", "C": "casia-fasd", "I": "replay-attack", "O": "oulu-npu", "S": "siw", "R": "rose-youtu",
    "H": "hkbu-mars-v2", "W": "wmca", "HiFi": "hifimask", "F3D": "casia-surf-3dmask", "E": "cefa",
}  # fmt: skip

LARGE_PROTOCOLS = (
    Protocol("wcs", "one of WMCA, CeFA and SURF unseen; WMCA's target has flat attacks alone", FLIP_LARGE,
             {"W": Import("wmca", "--size 224 --frames 10"), "E": Import("cefa", "--size 224 --frames 10"),
              "F": Import("casia-surf", "--size 224 --frames 10")},
             leave_one_out(LARGE_SITES, LARGE_TARGETS), level="frame",
             notes=("they take all frames of CASIA-SURF, and the first ten of WMCA's target; here ten of each video",
                    "CeFA is without its masks, and targets E and F are the dev parts, as in the lists")),
    Protocol("1-to-11", "from CelebA-Spoof to eleven others, one at a time",
             "works of 2025 and later, whose eleven differ a little; of CelebA-Spoof the training part", {
                 "A": Import("celeba-spoof", "--size 224"),
                 **{name: Import(kind, "--size 224 --frames 10") for name, kind in ELEVEN.items()}},
             {name: Fold({"A": "A only: official=train heldout=none"},
                         f"{name} only: official=train,test" if name in KINDS else name) for name in ELEVEN}),
)  # fmt: skip
