"""Protocols within one dataset: OULU-NPU, SiW, WMCA, CelebA-Spoof.

Boulkenafet et al., "OULU-NPU: A mobile face presentation attack database with real-world variations", FG 2017: session,
instrument, phone, and all three at once. Its dev part is held out, as in the paper: the threshold is at equal error
rates on it. For the third and fourth, the paper reports mean and standard deviation over the six folds.

Liu, Jourabloo and Liu, CVPR 2018; George et al., TIFS 2020; Zhang et al., ECCV 2020.
"""

from fedvisage.datasets.protocols.protocol import Fold, Import, Protocol

OULU = "Boulkenafet et al., FG 2017"
OULU_SETS = {"O": Import("oulu-npu", "--frames 10")}
PHONES = "123456"


def _oulu(training: str, testing: str) -> Fold:
    return Fold({"O": f"O only: official=train,dev heldout=dev{training}"}, f"O only: official=test{testing}")


def _others_of(phone: str) -> str:
    return ",".join(candidate for candidate in PHONES if candidate != phone)


OULU_PROTOCOLS = (
    Protocol("oulu-1", "OULU-NPU 1: an unseen session", OULU, OULU_SETS,
             {"O": _oulu(" session=1,2", " session=3")}, "source-eer"),
    Protocol("oulu-2", "OULU-NPU 2: unseen printers and displays", OULU, OULU_SETS,
             {"O": _oulu(" file=1,2,4", " file=1,3,5")}, "source-eer"),
    Protocol("oulu-3", "OULU-NPU 3: an unseen phone, in six folds", OULU, OULU_SETS,
             {phone: _oulu(f" phone={_others_of(phone)}", f" phone={phone}") for phone in PHONES}, "source-eer"),
    Protocol("oulu-4", "OULU-NPU 4: an unseen session, instrument and phone, in six folds", OULU, OULU_SETS,
             {phone: _oulu(f" phone={_others_of(phone)} session=1,2 file=1,2,4", f" phone={phone} session=3 file=1,3,5")
              for phone in PHONES}, "source-eer"),
)  # fmt: skip

SIW, WMCA, CELEBA = "Liu et al., CVPR 2018", "George et al., IEEE TIFS 2020", "Zhang et al., ECCV 2020"
SIXTY = "0,6,12,18,24,30,36,42,48,54"
MEDIA = "1234"
OF_WMCA = ("print", "replay", "glasses", "mask_head", "mask_rigid", "mask_flexible", "mask_paper")
ALL_OF = "S only: official=train heldout=none"


def _siw(training: str, testing: str) -> Fold:
    return Fold({"S": f"{ALL_OF} {training}"}, f"S only: official=test {testing}")


def _media(left_out: str) -> Fold:
    others = ",".join(medium for medium in MEDIA if medium != left_out)
    return _siw(f"attacks=replay attack.medium={others}", f"attacks=replay attack.medium={left_out}")


def _wmca(training: str = "", testing: str = "") -> Fold:
    return Fold({"W": f"W only: official=train,dev heldout=dev{training}"}, f"W only: official=test{testing}")


def _fold_without(species: str) -> Fold:
    others = ",".join(kind for kind in OF_WMCA if kind != species)
    return _wmca(f" attacks={others}", f" attacks={species}")


PROTOCOLS = (
    Protocol("siw-1", "SiW 1: training on the first 60 frames, pose and expression unseen", SIW,
             {"S60": Import("siw", f"--frames {SIXTY}"), "S": Import("siw", "--frames 10")},
             {"S": Fold({"S": "S60 only: official=train heldout=none"}, "S only: official=test")},
             notes=("of the first 60 frames with a face ten are taken; places are counted among frames with a face",)),
    Protocol("siw-2", "SiW 2: an unseen display, in four folds", SIW, {"S": Import("siw", "--frames 10")},
             {medium: _media(medium) for medium in MEDIA}),
    Protocol("siw-3", "SiW 3: from prints to replays, and back", SIW, {"S": Import("siw", "--frames 10")},
             {"replay": _siw("attacks=print", "attacks=replay"), "print": _siw("attacks=replay", "attacks=print")},
             notes=("a fold has the name of the attacks that are unseen",)),
    Protocol("wmca-grandtest", "WMCA grandtest: all attacks seen", WMCA, {"W": Import("wmca", "--frames 10")},
             {"W": _wmca()}, "source-eer",
             notes=("needs the list PROTOCOL-grandtest.csv beside the files when the set is imported",)),
    Protocol("wmca-unseen", "WMCA, leave one out: a kind of attack unseen, in seven folds", WMCA,
             {"W": Import("wmca", "--frames 10")}, {species: _fold_without(species) for species in OF_WMCA},
             "source-eer",
             notes=("a fold has the name of the attack that is unseen; kinds are those of the import",
                    "needs the list PROTOCOL-grandtest.csv beside the files when the set is imported")),
    Protocol("celeba-intra", "CelebA-Spoof: its training part, then its test part", CELEBA,
             {"A": Import("celeba-spoof")},
             {"A": Fold({"A": "A only: official=train heldout=none"}, "A only: official=test")}, level="frame"),
    Protocol("celeba-mediums", "CelebA-Spoof across mediums: other materials and screens are evaluated", CELEBA,
             {"A": Import("celeba-spoof")},
             {"A": Fold({"A": "A only: mediums=train heldout=none"}, "A only: mediums=test")}, level="frame",
             notes=("needs the lists metas/protocol1/*_label.json beside the images when the set is imported",)),
    Protocol("celeba-sensors", "CelebA-Spoof across sensors: high, middle or low quality unseen", CELEBA,
             {"A": Import("celeba-spoof")},
             {quality: Fold({"A": f"A only: sensors_{quality}=train heldout=none"}, f"A only: sensors_{quality}=test")
              for quality in ("high", "middle", "low")}, level="frame",
             notes=("needs the lists metas/protocol2/*/*_label.json beside the images when the set is imported",
                    "report the mean of the three folds")),
    Protocol("celeba-cross", "from CelebA-Spoof to CASIA-FASD", CELEBA,
             {"A": Import("celeba-spoof"), "C": Import("casia-fasd", "--frames 10")},
             {"C": Fold({"A": "A only: official=train heldout=none"}, "C only: official=train,test")}, level="frame"),
)  # fmt: skip
