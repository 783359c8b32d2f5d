"""OULU-NPU's four protocols: session, instrument, phone, and all three at once.

Boulkenafet et al., "OULU-NPU: A mobile face presentation attack database with real-world variations", FG 2017. The dev
part is held out, as in the paper: the threshold is at equal error rates on it. For the third and fourth, the paper
reports mean and standard deviation over the six folds.
"""

from fedvisage.datasets.protocols.protocol import Fold, Import, Protocol

SOURCE = "Boulkenafet et al., FG 2017"
SETS = {"O": Import("oulu-npu", "--frames 10")}
PHONES = "123456"


def _fold(training: str, testing: str) -> Fold:
    return Fold({"O": f"O only: official=train,dev heldout=dev{training}"}, f"O only: official=test{testing}")


def _others(phone: str) -> str:
    return ",".join(candidate for candidate in PHONES if candidate != phone)


PROTOCOLS = (
    Protocol("oulu-1", "OULU-NPU 1: an unseen session", SOURCE, SETS,
             {"O": _fold(" session=1,2", " session=3")}, "source-eer"),
    Protocol("oulu-2", "OULU-NPU 2: unseen printers and displays", SOURCE, SETS,
             {"O": _fold(" file=1,2,4", " file=1,3,5")}, "source-eer"),
    Protocol("oulu-3", "OULU-NPU 3: an unseen phone, in six folds", SOURCE, SETS,
             {phone: _fold(f" phone={_others(phone)}", f" phone={phone}") for phone in PHONES}, "source-eer"),
    Protocol("oulu-4", "OULU-NPU 4: an unseen session, instrument and phone, in six folds", SOURCE, SETS,
             {phone: _fold(f" phone={_others(phone)} session=1,2 file=1,2,4", f" phone={phone} session=3 file=1,3,5")
              for phone in PHONES}, "source-eer"),
)  # fmt: skip
