"""OULU-NPU, CASIA-FASD, Replay-Attack and MSU-MFSD with one unseen, in the versions that six works used.

The versions differ in frames and scores, so figures from two of them do not compare methods. Sites train on all videos
except those of the dev part, and hold nothing out.
"""

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

PROTOCOLS = (
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
